"""Makes a tiny random BERT and its vocabulary, for all tests that need a model directory."""

from __future__ import annotations

import dataclasses
import pathlib
import string
from collections.abc import Collection
from typing import Any

import numpy as np
import tokenizers
from flax.traverse_util import unflatten_dict

from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.interop.families.electra import DISCRIMINATOR, discriminator_shapes
from bert_jax.interop.huggingface import Model
from bert_jax.interop.names import our_shapes
from bert_jax.model.config import ModelConfig, published
from bert_jax.model.heads.head import TaskHead

WORDS = ("the", "capital", "of", "is", "paris", "france", "Paris", "France", "river", "Apfel")
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def make_vocabulary(directory: pathlib.Path, *, cased: bool) -> pathlib.Path:
    """Writes a tokenizer directory with every letter, every continued letter, digits, some marks and some words."""
    letters = string.ascii_letters if cased else string.ascii_lowercase
    words = [word for word in WORDS if cased or word == word.lower()]
    pieces = [*SPECIALS, *letters, *(f"##{x}" for x in letters), *string.digits, *".,!?'[]", "é", "Ø", "中", "##é", *words]
    directory.mkdir(parents=True)
    source = directory / "source.txt"
    source.write_text(
        "\n".join(piece for piece in pieces if cased or piece == piece.lower() or piece in SPECIALS) + "\n", encoding="utf-8"
    )
    load_tokenizer(source, lowercase=not cased).save(directory)
    source.unlink()
    return directory


def write_xlm_r(directory: pathlib.Path) -> None:
    """Writes a tokenizer.json with the special tokens of XLM-R, and the class of the tokenizer."""
    names = ("<s>", "<pad>", "</s>", "<unk>", "▁a", "▁b", "<mask>")
    library = tokenizers.Tokenizer(tokenizers.models.Unigram([(piece, -1.0) for piece in names], 3))
    library.add_special_tokens([*names[:4], names[-1]])
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    library.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')


def make_model(vocabulary: pathlib.Path, **fields: Any) -> tuple[dict[str, Any], ModelConfig]:
    """Returns (random parameters, configuration) of a BERT for that vocabulary; no setting is the default."""
    settings: dict[str, Any] = {
        "vocab_size": load_tokenizer(vocabulary).size,
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 4,
        "intermediate_size": 24,
        "max_position": 40,
        "type_vocab_size": 3,
        "activation": "gelu_tanh",
        "layer_norm_epsilon": 1e-6,
        "hidden_dropout": 0.2,
        "attention_dropout": 0.05,
        "initializer_range": 0.03,
        "vocab_multiple": 64,
    }
    config = ModelConfig(**(settings | fields))
    rng = np.random.default_rng(5)
    values = {path: 0.3 * rng.standard_normal(shape, np.float32) for path, shape in our_shapes(config).items()}
    return unflatten_dict({path: x + path.endswith("/scale") for path, x in values.items()}, sep="/"), config


def as_model(params: dict[str, Any], config: ModelConfig, vocabulary: pathlib.Path, head: TaskHead | None = None) -> Model:
    """Returns the arguments of an export as a `Model`."""
    return Model(params=params, config=config, tokenizer=load_tokenizer(vocabulary), head=head)


def make_electra(vocabulary: pathlib.Path, **fields: Any) -> Model:
    """Returns a random encoder with the head that finds replaced tokens."""
    params, config = make_model(vocabulary, **fields)
    rng = np.random.default_rng(8)
    values = {path: 0.3 * rng.standard_normal(shape, np.float32) for path, shape in discriminator_shapes(config).items()}
    head = unflatten_dict(values, sep="/")[DISCRIMINATOR]
    encoder = {part: params[part] for part in ("embeddings", "encoder")}
    return dataclasses.replace(as_model(encoder, config, vocabulary), discriminator=head)


def make_translator(vocabulary: pathlib.Path, **fields: Any) -> Model:
    """Returns a random encoder-decoder whose attention is far from uniform: by default 2 encoder layers and 3 decoder layers
    with 4 heads. A translation ends only at the limit."""
    tokenizer = load_tokenizer(vocabulary)
    shape = {
        "vocab_size": tokenizer.size, "hidden_size": 16, "num_layers": 2, "decoder_layers": 3, "num_heads": 4,
        "intermediate_size": 24, "max_position": 24,
    }  # fmt: skip
    config, rng = ModelConfig(**published("transformer_base") | shape | fields), np.random.default_rng(7)
    values: dict[str, np.ndarray] = {}
    for path, size in our_shapes(config).items():
        wide = 1.0 if "/query/" in path or "/key/" in path else 0.4
        values[path] = (wide * rng.standard_normal(size) + path.endswith("/scale")).astype(np.float32)
    barred = [tokenizer.sep_id, *range(tokenizer.target_tokenizer.size, config.decoder_config.vocab_size)]
    values["lm_head/final_logits_bias"][barred] = -1e3
    return as_model(unflatten_dict(values, sep="/"), config, vocabulary)


def make_labelled_model(vocabulary: pathlib.Path, head: TaskHead, parts: Collection[str] = (), **fields: Any) -> Model:
    """Returns a model with a labelled head, the pooler if the head reads it, and other `parts`."""
    _, config = make_model(vocabulary, **fields)
    rng = np.random.default_rng(6)
    values = {path: 0.3 * rng.standard_normal(shape, np.float32) for path, shape in our_shapes(config, head).items()}
    tree = unflatten_dict({path: x + path.endswith("/scale") for path, x in values.items()}, sep="/")
    kept = {"embeddings", "encoder", head.subtree, *parts} | ({"pooler"} if head.reads_pooler else set())
    return as_model({part: tree[part] for part in tree if part in kept}, config, vocabulary, head)
