"""Text -> token ids: WordPiece, SentencePiece and the tokenizers of other models, behind one interface. No jax.

In: text, files of a model. Out: token ids and their offsets, vocabularies.

    tokenizer.py             Tokenizer: the interface; loads the tokenizer of a model directory
    tokenizer_files.py       reads the files that tokenizers are stored in
    rust_tokenizer.py        tokenizers run by the library `tokenizers`
    sentencepiece_model.py   SentencePiece models
    wordpiece.py             WordPiece vocabularies
    vocabulary_training.py   trains vocabularies
"""
