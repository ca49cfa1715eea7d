"""Converts text to token ids. WordPiece, SentencePiece and the tokenizers of other models have one interface. This folder does
not import jax.

In: text, the files of a model. Out: token ids and their offsets, vocabularies.

    tokenizer.py             Tokenizer, the interface; loads the tokenizer of a model directory
    tokenizer_files.py       reads the files that tokenizers are stored in
    json_tokenizer.py        runs any tokenizer.json with the library `tokenizers`
    rust_tokenizer.py        converts our tokenizers to tokenizer.json
    sentencepiece_model.py   SentencePiece models
    marian.py                Marian's tokenizer: two SentencePiece models and a vocabulary
    wordpiece.py             WordPiece vocabularies
    vocabulary_training.py   trains vocabularies
"""
