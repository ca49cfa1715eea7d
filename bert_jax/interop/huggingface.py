"""Hugging Face model directories: what `transformers.BertForPreTraining.from_pretrained` reads, written and read without PyTorch.

- `config.json`: the model's shape, and under "bert_jax" the vocabulary's hash and what the exporter adds;
- `model.safetensors`: float32 tensors under `BertForPreTraining`'s names;
- `vocab.txt` (or `spiece.model`), `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from bert_jax import __version__
from bert_jax.corpus.tokenizer import CONFIG_FILE as TOKENIZER_CONFIG
from bert_jax.corpus.tokenizer import MODEL_FILES, VOCAB_FILE, Tokenizer, load_tokenizer
from bert_jax.interop.directory import aside, replaced_when_complete
from bert_jax.interop.names import params_from_tensors, tensors_from_params
from bert_jax.interop.settings import config_from_json, config_to_json
from bert_jax.model.settings import ModelConfig
from bert_jax.terminal import UserError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
OTHER_WEIGHTS = ("pytorch_model.bin", f"{WEIGHTS}.index.json", "tf_model.h5", "flax_model.msgpack")
FILES = (CONFIG, WEIGHTS, VOCAB_FILE, MODEL_FILES[0], TOKENIZER_CONFIG, "tokenizer.json", "special_tokens_map.json")
METADATA = {"format": "pt"}  # transformers 4 refuses a file that does not say which framework laid it out
OURS = "bert_jax"
"""The key of config.json that holds what only we write; transformers keeps and ignores it."""


def export_model(
    directory: str | os.PathLike,
    params: Mapping[str, Any],
    model_config: ModelConfig,
    tokenizer_directory: str | os.PathLike[str],
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Writes a model directory; one that exists already is replaced once the new one is complete.

    `params` is our unboxed tree, every array whole on this process. `extra` is any JSON to keep under config.json's "bert_jax",
    the step for example. The transformers class it is saved for follows from the heads it has.
    """
    directory = pathlib.Path(directory)
    tokenizer = load_tokenizer(pathlib.Path(tokenizer_directory))
    _check_vocabulary(tokenizer, model_config, str(tokenizer_directory))
    fields = config_to_json(model_config, architecture=_architecture(params), pad_token_id=tokenizer.pad_id)
    fields[OURS] = {"version": __version__, "vocabulary_sha256": tokenizer.vocabulary.sha256, **(extra or {})}
    tensors = tensors_from_params(params, model_config)
    with replaced_when_complete(directory, is_ours=_exported_by_us, format_files=FILES) as incomplete:
        (incomplete / CONFIG).write_text(json.dumps(fields, indent=2) + "\n")
        tokenizer.save(incomplete)
        _state_longest_text(incomplete / TOKENIZER_CONFIG, model_config.max_position)
        safetensors.numpy.save_file(tensors, incomplete / WEIGHTS, metadata=METADATA)
        (incomplete / WEIGHTS).chmod((incomplete / CONFIG).stat().st_mode)  # safetensors makes it readable by its owner only


def import_model(directory: str | os.PathLike, *, vocab_multiple: int = 1) -> tuple[dict[str, Any], ModelConfig, Tokenizer]:
    """Reads a BERT from a Hugging Face directory (or the workdir of a run) as (parameters, configuration, tokenizer).

    Parameters are float32 numpy arrays, the vocabulary padded to `vocab_multiple`. The pooler and the heads are there if the file
    has them: a bare encoder gives a tree without "mlm_head" and "nsp_head".
    """
    directory = find_model_directory(directory)
    fields = read_config(directory)
    config = dataclasses.replace(config_from_json(fields, str(directory / CONFIG)), vocab_multiple=vocab_multiple)
    tokenizer = load_tokenizer(directory)
    _check_vocabulary(tokenizer, config, str(directory))
    written = fields.get(OURS, {}).get("vocabulary_sha256", tokenizer.vocabulary.sha256)
    if written != tokenizer.vocabulary.sha256:
        raise UserError(
            f"{directory}: the vocabulary there (sha256 {tokenizer.vocabulary.sha256[:12]}...) is not the one "
            f"the model was trained with ({written[:12]}...); put the model's own vocabulary file back"
        )
    return params_from_tensors(read_tensors(directory / WEIGHTS), config, str(directory / WEIGHTS)), config, tokenizer


def find_model_directory(path: str | os.PathLike) -> pathlib.Path:
    """The model directory that `path` means: itself, or WORKDIR/model. Raises UserError saying what `path` is instead."""
    path = pathlib.Path(path)
    for candidate in (path, path / "model"):
        for directory in (candidate, aside(candidate)):  # the second only if an export was killed while swapping directories
            if (directory / CONFIG).is_file() and (directory / WEIGHTS).is_file():
                return directory
    if not path.exists():
        raise UserError(f"there is no {path}; models are read from disk only: name a directory that holds {CONFIG} and {WEIGHTS}")
    if not path.is_dir():
        raise UserError(f"{path} is a file; name the directory that holds {CONFIG} and {WEIGHTS}")
    if (path / "checkpoints").is_dir():
        raise UserError(f"{path} is a workdir without an exported model yet; continue its run with the command that started it")
    others = [path / name for name in OTHER_WEIGHTS if (path / name).exists()]
    if others:
        raise UserError(f"{others[0]} is not read; save the weights as one {WEIGHTS} (save_pretrained of transformers does)")
    absent = [name for name in (CONFIG, WEIGHTS) if not (path / name).is_file()]
    raise UserError(f"{path} is not a model directory: {' and '.join(absent)} missing")


def read_config(directory: pathlib.Path) -> dict[str, Any]:
    """The fields of the directory's `config.json`. Raises UserError where there is none, or it is not one JSON object."""
    path = directory / CONFIG
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}); copy the model again") from error
    if not isinstance(fields, dict):
        raise UserError(f"{path} holds no JSON object; copy the model again")
    return fields


def read_tensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Every tensor of a safetensors file in its stored type."""
    try:
        return safetensors.numpy.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        size = f"{path.stat().st_size:,} bytes"
        raise UserError(f"{path} ({size}) is damaged or incomplete ({error}); copy or export the model again") from error


def _check_vocabulary(tokenizer: Tokenizer, config: ModelConfig, where: str) -> None:
    if tokenizer.size != config.vocab_size:
        raise UserError(
            f"{where}: the vocabulary has {tokenizer.size:,} entries but the model's vocab_size is {config.vocab_size:,}; "
            "use the vocabulary the model was trained with"
        )


def _state_longest_text(path: pathlib.Path, tokens: int) -> None:
    """Tells transformers' truncation where the position table ends; its default is no limit, and an index error in the model."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(settings | {"model_max_length": tokens}, indent=2) + "\n", encoding="utf-8")


def _exported_by_us(directory: pathlib.Path) -> bool:
    try:
        return OURS in read_config(directory)
    except UserError:
        return False


def _architecture(params: Mapping[str, Any]) -> str:
    """The transformers class that has exactly these heads."""
    if "mlm_head" in params:
        return "BertForPreTraining" if "nsp_head" in params else "BertForMaskedLM"
    if "nsp_head" in params:
        return "BertForNextSentencePrediction"
    return "BertModel"
