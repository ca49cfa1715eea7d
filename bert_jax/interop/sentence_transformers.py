"""Reads and writes the text-vector settings of a model directory in the sentence-transformers format. They consist of
`modules.json`, a Pooling module and a token limit."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from bert_jax.data.tokenizers.tokenizer import CONFIG_FILE, Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import Json, JsonObject, read_json, write_json
from bert_jax.interop import TEXT_POOLINGS
from bert_jax.interop.directory import MODULES
from bert_jax.interop.locate import transformer_folder
from bert_jax.model.config import ModelConfig

POOLING_FOLDER, NORMALISE_FOLDER = "1_Pooling", "2_Normalize"
SHORTEST = 3
"""The smallest maximum number of tokens that a file may state for a text."""
LIMITS, GENERAL = "sentence_bert_config.json", "config_sentence_transformers.json"
_OLD_MODES = {
    "cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens", "lasttoken": "lasttoken",
}  # fmt: skip
"""Current name of a pooling -> the end of its old key. Before release 6, there was one key per pooling."""


@dataclasses.dataclass(frozen=True)
class TextVectors:
    """The settings for computing the vector of a text from its token vectors."""

    pooling: str | None
    """One of TEXT_POOLINGS, or "pooler". None if the pooling is not implemented here."""
    normalise: bool = False
    """Whether vectors are scaled to length 1."""
    longest: int | None = None
    """The maximum number of tokens in a text, including [CLS] and [SEP]. None means the model's own limit."""
    unknown: str = ""
    """The settings that are not implemented here."""


def read_text_vectors(source: pathlib.Path, tokenizer: Tokenizer) -> TextVectors | None:
    """Returns the settings in the model directory `source`, or None if there are none. Older releases wrote the settings to the
    parent directory of `source`. Raises UserError if the files are not in this format."""
    directory = source if (source / MODULES).is_file() else source.absolute().parent
    if directory != source and transformer_folder(directory) != source.absolute():
        return None
    try:
        modules = _read(directory / MODULES)
        kinds = {str(module["type"]).rpartition(".")[2]: directory / module["path"] for module in modules}
        for path in kinds.values():
            if not path.resolve().is_relative_to(directory.resolve()):
                raise UserError(
                    f"{directory / MODULES} names {path}, which is outside the directory of the model; copy the model again"
                )
        unknown = sorted(set(kinds) - {"Transformer", "BERT", "Pooling", "Normalize"})
        modes = _pooling_modes(_read(kinds["Pooling"] / "config.json")) if "Pooling" in kinds else ["no Pooling"]
        limits = _read_if_there(source / LIMITS)
        general = _read_if_there(directory / GENERAL)
        longest, stated = limits.get("max_seq_length"), f"{source / LIMITS}: max_seq_length"
        if not longest:  # sentence-transformers 6 writes only model_max_length
            longest, stated = tokenizer.max_length, f"{source / CONFIG_FILE}: model_max_length"
        if longest is not None and (type(longest) is not int or longest < SHORTEST):
            raise UserError(
                f"{stated}={json.dumps(longest)} must be a whole number of tokens, at least {SHORTEST} ([CLS], one token of "
                "the text, and [SEP]); correct it, or remove it"
            )
        if limits.get("do_lower_case") and not tokenizer.vocabulary.lowercase:
            unknown.append("do_lower_case")
        if general.get("default_prompt_name"):
            unknown.append(f"the prompt {general['default_prompt_name']!r}")
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # ValueError: a path that no file can have
        file = directory / MODULES
        raise UserError(
            f"{file}, or a file that it names, is not in the format of sentence-transformers; copy the model again"
        ) from error
    if len(modes) != 1 or modes[0] not in (*TEXT_POOLINGS, "pooler"):
        unknown += modes
    return TextVectors(None if unknown else modes[0], "Normalize" in kinds, longest, ", ".join(unknown))


def write_text_vectors(directory: pathlib.Path, vectors: TextVectors, config: ModelConfig) -> None:
    """Writes the settings to the model directory, in the spellings of all releases."""
    kinds = {"": "Transformer", POOLING_FOLDER: "Pooling"}
    kinds |= {NORMALISE_FOLDER: "Normalize"} if vectors.normalise else {}
    modules: Json = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(kinds.items())
    ]
    modes: JsonObject = {f"pooling_mode_{old}": mode == vectors.pooling for mode, old in _OLD_MODES.items()}
    for path in filter(None, kinds):
        (directory / path).mkdir()
    write_json(directory / MODULES, modules)
    write_json(
        directory / POOLING_FOLDER / "config.json",
        {"word_embedding_dimension": config.hidden_size, "pooling_mode": vectors.pooling, **modes, "include_prompt": True},
    )
    longest = min(vectors.longest or config.max_position, config.max_position)
    write_json(directory / LIMITS, {"max_seq_length": longest, "do_lower_case": False})


def _pooling_modes(settings: JsonObject) -> list[str]:
    """Returns the pooling modes in the settings of a Pooling module. Modes in TEXT_POOLINGS have the same names as there. An
    example of the settings is "pooling_mode": "mean". Older files have "pooling_mode_mean_tokens": true instead."""
    if "pooling_mode" in settings:
        stated = settings["pooling_mode"]
        return [str(mode) for mode in (stated if isinstance(stated, list) else [stated])]
    older = {f"pooling_mode_{_OLD_MODES[mode]}": mode for mode in TEXT_POOLINGS}
    modes = [older.get(name, name) for name, value in settings.items() if name.startswith("pooling_mode_") and value is True]
    return modes or ["no pooling_mode"]


def _read_if_there(path: pathlib.Path) -> Any:
    return _read(path) if path.is_file() else {}


def _read(path: pathlib.Path) -> Any:
    return read_json(path, "copy the model again")
