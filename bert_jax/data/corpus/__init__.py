"""Converts raw text to tokenised documents. Run as `python -m bert_jax.corpus`. This folder does not import jax.

In: text, JSON lines, Parquet, Arrow, tfds data sets. Out: a corpus directory, memory-mapped by `open_corpus`.

    sources.py               sources of text, and their division into shards
    tables.py                Parquet and Arrow: files, splits, the column with the text, its rows
    tfds_catalogue.py        finds or fetches tfds data sets by name
    tfds_text.py             reads text from tfds data sets, without TensorFlow
    embedded/                the embedded corpus: a tfds builder over the docstrings of the installed packages
    layouts.py               which line breaks end a sentence, a paragraph or a document
    reading.py               bytes to documents
    cleaning.py              a document's lines to sentences; drops and counts lines and documents that are not text
    sentences.py             running text to sentences
    hub.py                   resolves the name of a vocabulary: a file, a workdir, a corpus, a model on the hub
    arrays.py                .npy files, written piece by piece; errors of the disk
    workers.py               runs jobs on worker processes
    shard.py                 reads, cleans, tokenises and writes one shard in one worker
    heldout.py               chooses the held-out documents; changes the choice without tokenising again
    build.py                 builds all shards over processes and hosts, then the manifest
    survey.py                statistics of a finished corpus
    report.py                the corpus report
    integrity.py             checks sizes, counts and order of the files against the manifest, at every start
    verification.py          checks the contents of the files against their checksums, in the background
    staging.py               the local copy of a corpus in a bucket
    store.py                 Corpus: the finished corpus, memory-mapped, and its offsets through all shards
"""
