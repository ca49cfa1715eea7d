"""Raw text to tokenised documents. Run as `python -m bert_jax.corpus`. No jax in this folder.

In: text, JSON lines, tfds data sets. Out: a corpus directory, memory-mapped by `open_corpus`.

    sources.py               what is read, and how it is cut into shards
    catalogue.py             tfds data sets by name
    records.py               a tfds data set as a source of text, without TensorFlow
    embedded/                the embedded corpus: a tfds builder over the docstrings that Python installations hold
    layouts.py               which line breaks end a sentence, a paragraph or a document
    reading.py               bytes to documents
    cleaning.py              a document's lines to sentences; what is not text is dropped and counted
    sentences.py             running text to sentences
    tokenizer.py             Tokenizer, and the identity of its vocabulary
    wordpiece.py             WordPiece with the original's text rules
    unigram.py               SentencePiece
    rust_tokenizer.py        the same tokenizers as objects of the library `tokenizers`
    tokenizer_files.py       vocab.txt, tokenizer.json and the other files of a tokenizer
    hub.py                   the vocabulary that a name means: a file, a workdir, a corpus, a model on the hub
    vocabulary_training.py   a new vocabulary from the corpus
    files.py                 files that are written whole or not at all
    workers.py               worker processes
    shard.py                 one shard: read, cleaned, tokenised and written by one worker
    heldout.py               which documents are held out, and changing that without tokenising anew
    build.py                 all shards, over processes and hosts; then the manifest
    survey.py                counts over a finished corpus
    report.py                the corpus report
    integrity.py             the manifest against the sizes, counts and order of the files, at every start
    verification.py          the contents of the files against their digests, in the background
    store.py                 Corpus: the finished corpus, memory-mapped
"""
