"""Converts raw text to tokenised documents. Run as `python -m bert_jax.corpus`. This folder does not import jax.

In: text, JSON lines, Parquet, Arrow, tfds data sets. Out: a corpus directory, memory-mapped by `open_corpus`.

    sources.py               sources of text, their division into shards, and SourceKind: how a kind of source is found and read
    text_files.py            plain text and JSON lines
    columnar.py              Parquet and Arrow: files, splits, the column with the text, its rows
    parallel.py              texts with their translations: files of lines, TSV, JSON lines; pairs by number
    tfds_text.py             tfds data sets by name: finds or fetches them, reads their text without TensorFlow
    own_texts.py             what a function in the user's own file yields
    embedded/                the embedded corpus: a tfds builder over the docstrings of the installed packages
    cleaning.py              lines of a document to sentences; drops and counts lines and documents that are not text
    sentences.py             layouts of plain text; running text to sentences
    hub.py                   resolves the name of a vocabulary: a file, a workdir, a corpus, a model on the hub
    workers.py               runs jobs on worker processes
    shard.py                 reads, cleans, tokenises and writes one shard; rewrites one, e.g. with another held-out fraction
    build.py                 builds all shards over processes and hosts, then the manifest
    corpus_report.py         statistics of a finished corpus, and the corpus report
    verification.py          checks files against their checksums, in the background; copies a corpus from a bucket
    store.py                 .npy files, written piece by piece; Corpus: all shards, checked and memory-mapped
"""

SOURCES = {
    "embedded": "bert_jax.data.corpus.tfds_text:EMBEDDED_CORPUS",
    "text": "bert_jax.data.corpus.text_files:TEXT",
    "jsonl": "bert_jax.data.corpus.text_files:JSONL",
    "parquet": "bert_jax.data.corpus.columnar:PARQUET",
    "arrow": "bert_jax.data.corpus.columnar:ARROW",
    "tfds": "bert_jax.data.corpus.tfds_text:CATALOGUE",
    "parallel": "bert_jax.data.corpus.parallel:PARALLEL",
}
"""Kind of source, before the colon of --source -> location of its `SourceKind`. To add a kind, write its SourceKind and list it
here."""
OWN = "bert_jax.data.corpus.own_texts:OWN"
"""The kind of FILE.py:NAME."""
