"""Defines the model families of transformers. Each family has one file with its tensor names, keys of config.json and classes.

In: a `model_type`, or the configuration of a model. Out: the `Family`, whose tables `names.py` and `huggingface_config.py` read.

    family.py       Family, Row and Key: the contract; the family of a model
    bert.py         BERT, and the models that only this package computes
    rotary.py       the keys about rotary positions, windows and heads, in the spellings of transformers 4 and 5
    modernbert.py   ModernBERT, with Ettin and mmBERT
    eurobert.py     EuroBERT
    nomic_bert.py   nomic-bert
    electra.py      ELECTRA, which is read as a BERT
    marian.py       Marian's encoder-decoders, the translators of OPUS-MT

To add a family, add a file and a line in FAMILIES."""

from __future__ import annotations

from collections.abc import Mapping

from bert_jax.model import ENCODERS

FAMILIES: Mapping[str, str] = {
    "bert": "bert_jax.interop.families.bert:BERT",
    "modernbert": "bert_jax.interop.families.modernbert:MODERNBERT",
    "eurobert": "bert_jax.interop.families.eurobert:EUROBERT",
    "nomic_bert": "bert_jax.interop.families.nomic_bert:NOMIC_BERT",
    "marian": "bert_jax.interop.families.marian:MARIAN",
}
"""`model_type` -> the family. A Transformer is exported as the first family that supports it."""
READ_AS_BERT: Mapping[str, str] = {"electra": "bert_jax.interop.families.electra:ELECTRA"}
"""`model_type` -> a family whose models differ from BERT only in names, so that they are read as BERTs."""
OWN_FAMILIES = ("bert_jax", *(name for name in ENCODERS if name != "transformer"))
"""The values of `model_type` for models that only this package supports: Transformers, and the other encoders. transformers
refuses to load these models."""
