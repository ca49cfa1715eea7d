"""Reads and writes models in other formats (Hugging Face, TensorFlow 1, StableHLO, word2vec), and changes models.

In: a model directory, a checkpoint, a hub name. Out: a Model in memory, or a model directory in one of these formats.

    locate.py               finds the model directory of MODEL: a directory, a workdir, a name on the hub
    families/               BERT, ModernBERT, EuroBERT, nomic-bert: tensor names, keys of config.json and classes, as tables
    huggingface_config.py   config.json <-> ModelConfig and TaskHead, by these tables
    names.py                parameter tree <-> tensors, by these tables
    weights.py              reads the tensors of a directory: safetensors or PyTorch's format
    directory.py            writes a model directory atomically
    card.py                 the model card of an export, README.md
    huggingface.py          Model; import_model and export_model
    sentence_transformers.py   text vectors: pooling, normalisation, length
    sorted_table.py         LevelDB's table format, in which a TensorFlow checkpoint has its index
    tensor_bundle.py        TensorFlow's checkpoint format
    tensorflow.py           checkpoints of the original BERT
    stablehlo.py            exports a forward pass with its weights as one file
    word2vec.py             word vectors: word2vec's text and binary formats, GloVe, fastText
    surgery.py              changes positions, layers or vocabulary; averages models
    tiling.py               initialises a larger model from a smaller one
    flags.py                the flags of `convert`
    conversion.py           the steps of `convert`: read, change, write, with lines of output that describe each
"""

from __future__ import annotations

from bert_jax.model.heads import HEAD_PARTS

PARTS = ("pooler", "mlm_head", "nsp_head", "softmax", "skip_gram_head", "decoder", "lm_head", *HEAD_PARTS)
"""The optional parts of a model, which an import may drop or add with random weights."""
DTYPES = ("float32", "float16", "bfloat16")
"""The dtypes of weights in a Hugging Face directory."""
NEW_POSITIONS = ("copied", "random")
"""How to fill the new rows of a larger position table."""
FUNCTIONS = ("encode", "pretraining", "labels")
"""The functions that can be exported as StableHLO: the encoder's vectors, the logits of the pretraining heads at every position,
or the logits of a labelled head."""
TEXT_POOLINGS = ("mean", "cls")
"""The poolings of text vectors shared with sentence-transformers."""
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""The platforms for which StableHLO can be exported."""
