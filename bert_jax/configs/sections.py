"""Builds frozen dataclasses from nested plain values. Unknown keys, wrong types and values out of range are UserErrors. The
message about an unknown key suggests keys of a similar spelling, or keys that have this name in other codebases.

dacite is not used, since the code would not be shorter. It takes 81 lines with the same error messages. It does not report the
path of an unknown key, which suggestions need. It also accepts True for 1. Finally, it builds a group before the ranges of the
keys in the group can be checked, so the checks of the group itself would fail first."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from bert_jax.errors import UserError
from bert_jax.interface.flags import expand_home
from bert_jax.interface.ranges import check_value, hints, is_group, is_path, value_types
from bert_jax.interface.words import shown

Section = TypeVar("Section")


def dataclass_from_dict(kind: type[Section], values: Any, where: str, root: Any = None) -> Section:
    """Builds the dataclass `kind` from nested dicts. Dataclasses and lists of dataclasses in its fields are built recursively.

    `where` is the dotted key of `values`, for messages. `root` is the dataclass of the whole experiment, for suggestions.
    Raises UserError if a key is unknown or missing, or if the type or range of a value does not match the annotation.
    """
    root = root or kind
    if not isinstance(values, Mapping):
        raise UserError(f"{where} must be a group of keys, not {values!r}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            full = f"{where}.{name}"
            raise UserError(f"there is no {full}; {did_you_mean(full.partition('.')[2], root, fields)}")
        arguments[name] = _value(f"{where}.{name}", value, hints(kind)[name], fields[name].default, root)
    missing = [
        name
        for name, field in fields.items()
        if field.default is field.default_factory is dataclasses.MISSING and name not in arguments
    ]
    if missing:
        raise UserError(f"{where} needs {' and '.join(missing)}")
    return kind(**arguments)


def _value(key: str, value: Any, hint: Any, default: Any, root: Any) -> Any:
    """Converts and checks `value` according to the annotation `hint` of its field."""
    items = typing.get_args(hint)[:1]
    if is_group(hint):
        return dataclass_from_dict(hint, value, key, root)
    if items and is_group(items[0]):
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise UserError(f"{key} must be a list of {key.rpartition('.')[2]}, not {value!r}")
        return tuple(dataclass_from_dict(items[0], item, f"{key}.{i}", root) for i, item in enumerate(value))
    made = _typed(key, value, value_types(hint), default)
    if is_path(hint) and isinstance(made, str):
        if "\0" in made:
            raise UserError(f"{key}={made!r} contains a zero byte, which is invalid in a path; correct the experiment file")
        made = expand_home(made, f"{key}={made}")
    check_value(key, made, hint)
    return made


def _typed(key: str, value: Any, kinds: tuple[Any, ...], default: Any) -> Any:
    """Returns `value` as one of the types `kinds`. The only conversions are from integers to floats and from lists to tuples."""
    for kind in kinds:
        if typing.get_origin(kind) is tuple:
            if isinstance(value, Sequence) and not isinstance(value, str):
                inside = value_types(typing.get_args(kind)[0])
                return tuple(_typed(f"{key}.{i}", item, inside, dataclasses.MISSING) for i, item in enumerate(value))
        elif typing.get_origin(kind) is dict:
            if isinstance(value, Mapping):
                return dict(value)
        elif kind is float and isinstance(value, int) and not isinstance(value, bool):
            # `float()` would overflow for a larger integer, which the range check rejects.
            return float(value) if abs(value) < 10**300 else value
        elif type(value) is kind:
            return value
    names = {bool: "true or false", float: "a float", int: "an int", str: "a str", type(None): "none", dict: "a group of keys"}
    wanted = " or ".join(names.get(typing.get_origin(kind) or kind, "a list") for kind in kinds)
    like = "" if default is dataclasses.MISSING else f", like the default {default!r}"
    raise UserError(f"{key}={shown(value)} must be {wanted}{like}")


# ----------------------------------------------------------------------------------------------------------- keys
ALIASES = {
    "zero_sharding": ("spread_state", "zero", "zero_stage"),
    "learning_rate": ("lr", "rate", "peak_lr", "peak_learning_rate"),
    "epochs": ("epoch", "num_epochs", "n_epochs", "num_train_epochs"),
    "batch_size": ("bs", "batch", "train_batch_size", "per_device_train_batch_size", "global_batch_size"),
    "weight_decay": ("wd", "decay"),
    "warmup_steps": ("warmup", "num_warmup_steps"),
    "warmup_fraction": ("warmup", "warmup_ratio", "warmup_proportion"),
    "steps": ("max_steps", "num_steps", "total_steps", "train_steps", "num_train_steps"),
    "length": ("max_length", "max_len", "max_seq_length", "seq_len", "seq_length", "sequence_length"),
    "accumulation": ("gradient_accumulation_steps", "accumulation_steps", "grad_accum", "gradient_accumulation"),
    "clip_norm": ("clip", "grad_clip", "max_grad_norm", "gradient_clip", "gradient_clipping"),
    "schedule": ("scheduler", "lr_schedule", "lr_scheduler", "lr_scheduler_type"),
    "b1": ("beta1", "adam_beta1", "adam_b1"),
    "b2": ("beta2", "adam_beta2", "adam_b2"),
    "epsilon": ("eps", "adam_epsilon"),
    "layer_norm_epsilon": ("layer_norm_eps",),
    "hidden_dropout": ("dropout", "hidden_dropout_prob"),
    "attention_dropout": ("dropout", "attention_probs_dropout_prob"),
    "num_layers": ("layers", "n_layers", "num_hidden_layers", "depth"),
    "num_heads": ("heads", "n_heads", "num_attention_heads"),
    "hidden_size": ("width", "d_model", "dim", "hidden_dim", "embed_dim"),
    "intermediate_size": ("ffn_dim", "d_ff", "feed_forward_size"),
    "max_position": ("max_position_embeddings", "max_positions"),
    "doc_stride": ("stride",),
    "max_answer": ("max_answer_tokens", "max_answer_length"),
    "max_question": ("max_query_length",),
    "max_predictions": ("max_predictions_per_seq",),
    "masking": ("whole_word", "whole_word_mask", "do_whole_word_mask", "wwm"),
    "masked_fraction": ("mlm_probability", "masked_lm_prob", "mask_prob"),
    "remat": ("rematerialisation", "rematerialization", "gradient_checkpointing"),
    "log_every": ("log_steps", "logging_steps", "log_interval"),
    "evaluation.every": ("eval_every", "eval_steps", "eval_interval"),
    "checkpoints.every": ("save_every", "save_steps", "checkpoint_every"),
    "checkpoints.keep": ("save_total_limit", "keep_checkpoints", "max_to_keep"),
    "init_from": ("init_checkpoint", "pretrained", "model_name_or_path", "checkpoint"),
    "seed": ("random_seed",),
    "data_dir": ("data", "dataset", "data_path"),
}
"""The last part of a key -> names of the key in other codebases. If the last part is ambiguous, the last two parts are used."""


def leaf_keys(schema: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every dotted key of a config dataclass with its annotation. Of a list of groups, only the keys of item 0 are
    included, e.g. "phases.0.steps"."""
    for name, hint in hints(schema).items():
        inner = typing.get_args(hint)[:1]
        if is_group(hint):
            yield from leaf_keys(hint, f"{above}{name}.")
        elif inner and is_group(inner[0]):
            yield from leaf_keys(inner[0], f"{above}{name}.0.")
        else:
            yield above + name, hint


def suggested_keys(key: str, schema: Any) -> list[str]:
    """Returns the known keys similar to the unknown `key`, most similar first, or an empty list."""
    known = [name for name, _ in leaf_keys(schema)]
    group, _, last = key.replace("-", "_").lower().rpartition(".")
    ours = (last, *(name for name, others in ALIASES.items() if last in others))
    same = [name for name in known if any(f".{name}".endswith(f".{our}") for our in ours)]
    siblings = [name for name in known if name.rpartition(".")[0] == group]
    if here := [name for name in same if name in siblings] or difflib.get_close_matches(key, siblings, n=1, cutoff=0.75):
        return here
    if same:
        return sorted(same, key=lambda name: name.count("."))[:3]
    lasts = {name.rpartition(".")[2]: name for name in reversed(known)}
    groups = sorted({name.rpartition(".")[0] for name in known} - {""})
    close = difflib.get_close_matches(key, [*known, *groups], n=1, cutoff=0.75)
    return close or [lasts[name] for name in difflib.get_close_matches(last, lasts, n=1, cutoff=0.8)]


def did_you_mean(key: str, schema: Any, inside: Any = None) -> str:
    """Returns the end of an error message for an unknown key. It suggests similar keys, or lists the names `inside` the group of
    the key."""
    if found := suggested_keys(key, schema):
        return f"did you mean {' or '.join(map(repr, found))}?"
    return f"valid keys: {', '.join(sorted(inside))}" if inside else "there are no keys"
