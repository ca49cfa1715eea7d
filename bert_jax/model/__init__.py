"""Arrays to logits: BERT and its predecessors as Linen modules. No mesh, no files, no loss.

In: int32 arrays of token ids, types, positions and sequence ids. Out: hidden states and logits.

    config.py          ModelConfig; the published sizes
    products.py        matrix products and their gradients
    layers.py          Dense, LayerNorm, GELU, dropout
    embeddings.py      token ids -> vectors
    characters.py       word vectors from characters
    attention.py       self-attention, plain
    residual_norm.py   LayerNorm(x + dropout(y))
    kernels/           fused attention and residual norm for TPUs and GPUs; `kernels/dispatch.py` says which runs where
    encoder.py         the stack of layers
    lstm.py             the recurrence of an LSTM, in one or two directions
    bilm.py             the layers of a bidirectional LSTM language model
    static.py           the layers of a static model: none
    bert.py            embeddings, encoder, pooler
    features.py        the features of task heads: mixes of layers, pooling over tokens, an LSTM
    crf.py             a conditional random field over the labels of words
    heads/             the pooler and the heads of pretraining and of tasks
    pretraining.py     BERT with the two pretraining heads
    decoding.py        the next token of a left-to-right model, with a cache of keys and values: a token costs one row
"""
