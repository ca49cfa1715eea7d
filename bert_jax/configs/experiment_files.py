"""From an experiment file to frozen dataclasses: reads the file with its command-line overrides, `--config.a.b=1`, adds new
defaults to stored configurations, and builds the dataclasses (`dataclass_from_dict`). Unknown keys, wrong types and values out
of range are UserErrors. The message about an unknown key suggests keys of a similar spelling, or keys that have this name in
other codebases.

The key of an override is looked up in the experiment, and the value is parsed according to the annotation of the key.
`ml_collections.config_flags` is not used because it only knows the keys and types in the experiment file. It cannot set a key
that is None in the file or absent from the file. It also reads `null` as a string, rejects 2e3 for an integer, and does not
suggest similar keys.

dacite is not used, since the code would not be shorter. It takes 81 lines with the same error messages. It does not report the
path of an unknown key, which suggestions need. It also accepts True for 1. Finally, it builds a group before the ranges of the
keys in the group can be checked, so the checks of the group itself would fail first.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface import python_files
from bert_jax.interface.flags import expand_home
from bert_jax.interface.ranges import (
    Count,
    check_value,
    hints,
    intervals,
    is_group,
    is_path,
    range_text,
    value_types,
    whole_number,
)
from bert_jax.interface.words import shown

if TYPE_CHECKING:  # these modules import jax, which --help does not need
    from bert_jax.configs.finetuning import FinetuningExperiment
    from bert_jax.configs.pretraining import PretrainingExperiment

Schema = type | Callable[[JsonObject], type] | None

TOTAL_STEPS = "steps"
OBJECTIVE_OPTIONS = "objective_options"
UNSET = "null"
NONE = (UNSET, "none", "None")


def read_experiment(given: str, overrides: Sequence[tuple[str, str]], schema: Schema, flag: str = "config") -> JsonObject:
    """Returns the configuration of an experiment file as nested plain dicts, with the overrides applied.

    `given` is the value of `--config` (or of another `flag`): FILE[:ARG]. `overrides` are pairs of dotted key and text, such as
    ("a.b", "1"). `schema` is the dataclass of the experiment, or a function from the file's values to this dataclass. If
    `schema` is None, keys and types come from the file's values. In a pretraining experiment, the pseudo-key "steps" scales the
    whole run before the other overrides (see `with_total_steps`).
    """
    config = python_files.load(given, f"--{flag}")
    known = schema if schema is None or isinstance(schema, type) else schema(config)
    if (total := dict(overrides).get(TOTAL_STEPS)) is not None:
        from bert_jax.configs.pretraining import PretrainingExperiment, with_total_steps

        if known is PretrainingExperiment:
            config = with_total_steps(config, int(read_value(f"--{flag}.{TOTAL_STEPS}={total}", total, Count)))
            overrides = [(key, text) for key, text in overrides if key != TOTAL_STEPS]
    has_objective = OBJECTIVE_OPTIONS in getattr(known, "__dataclass_fields__", ())  # a study has none
    for key, text in overrides:
        group, _, option = key.partition(".")
        if group != OBJECTIVE_OPTIONS or not option or not has_objective:
            override(config, known, key, text, flag)
    for key, text in overrides:  # options come last, since the other keys determine the objective
        if key.startswith(f"{OBJECTIVE_OPTIONS}.") and has_objective:
            options = config.setdefault(OBJECTIVE_OPTIONS, {})
            kind = known.objective_settings(config)  # type: ignore[union-attr]
            if not dataclasses.fields(kind):
                raise UserError(f"--{flag}.{key}={text}: the objective {kind.__name__} has no settings; leave this flag out")
            override(options, kind, key.partition(".")[2], text, f"{flag}.{OBJECTIVE_OPTIONS}")
    return config


def with_defaults(
    kind: type[PretrainingExperiment] | type[FinetuningExperiment], stored: JsonObject, *, extra_key: str
) -> JsonObject:
    """Adds the defaults of newer keys to a configuration stored in a workdir or a reference curve.

    `extra_key` is a key of the file that is not part of the experiment. This key is kept. Values that are not a configuration
    of this kind are returned unchanged."""
    values = {key: value for key, value in stored.items() if key != extra_key}
    try:
        experiment = kind.from_dict(values)
    except UserError:
        return stored
    return experiment.to_dict() | {extra_key: stored.get(extra_key)}


def split_overrides(arguments: Sequence[str], flag: str = "config") -> tuple[list[tuple[str, str]], list[str]]:
    """Splits `arguments` into overrides and all other arguments. An override, `--config.a.b=1` or `--config.a.b 1`, becomes a
    pair ("a.b", "1").

    Raises UserError if an override has no value, or if a key has two different values.
    """
    overrides: dict[str, str] = {}
    rest = []
    waiting = iter(arguments)
    for argument in waiting:
        if not argument.startswith(f"--{flag}."):
            rest.append(argument)
            continue
        key, equals, text = argument.removeprefix(f"--{flag}.").partition("=")
        if not equals:
            text = next(waiting, "")
            if not text or text.startswith("--"):
                raise UserError(f"{argument} has no value; write {argument}=VALUE")
        key = key.replace("[", ".").replace("]", "")
        if overrides.setdefault(key, text) != text:
            both = " and ".join(f"--{flag}.{key}={value}" for value in (overrides[key], text))
            raise UserError(f"{both} contradict each other; give one of them")
    return list(overrides.items()), rest


def override(config: dict[str, Any], schema: Any, key: str, text: str, flag: str = "config") -> None:
    """Sets the dotted `key` of `config` to `text`, which is parsed according to the type of the key in `schema`. `config` holds
    nested plain values and is changed in place.

    `phases.0.steps` indexes into a list. `null` undoes the experiment file's value: the key becomes None if its type allows
    None. Otherwise, the key gets its default. `schema` is a config dataclass. If `schema` is None, the types come from the
    values in `config`. Raises UserError if the key is unknown or a group, or if the value has the wrong type.
    """
    flag = f"--{flag}.{key}={text}"
    *groups, name = key.split(".")
    node: Any = config
    hint = schema
    for depth, group in enumerate(groups):
        hint = _child_annotation(node, hint, groups[:depth], group, (schema, key, flag))
        place = int(group) if isinstance(node, list) else group
        if isinstance(node, dict) and node.get(group) is None:
            node[group] = {}
        node = node[place]
    hint = _child_annotation(node, hint, groups, name, (schema, key, flag))
    there = node.get(name) if isinstance(node, dict) else node[int(name)]
    items = typing.get_args(hint)[:1]
    inside: list[str] = []
    if is_group(hint):
        inside = [f"{key}.{inner}" for inner in sorted(hints(hint))]
    elif isinstance(there, Mapping):
        inside = [f"{key}.{inner}" for inner in sorted(there)]
    elif items and is_group(items[0]):
        inside = [f"{key}.{i}.{inner}" for i in range(len(there or ())) for inner in sorted(hints(items[0]))]
    if inside:
        raise UserError(f"{flag}: {key} is a group; set one of {', '.join(inside)}")
    if text == UNSET and type(None) not in value_types(hint) and isinstance(node, dict):
        node.pop(name, None)
    else:
        node[int(name) if isinstance(node, list) else name] = read_value(flag, text, hint, _current_value(there, schema, key))


def _child_annotation(node: Any, hint: Any, above: Sequence[str], name: str, asked: tuple[Any, str, str]) -> Any:
    """Returns the annotation of `name` in a group or a list of groups. Raises UserError if there is no key or index `name`.

    `asked` is (schema, whole key, flag), for messages.
    """
    schema, key, flag = asked
    place = ".".join([flag.removeprefix("--").partition(f".{key}=")[0], *above])
    items = typing.get_args(hint)[:1]
    if is_group(hint) and isinstance(node, Mapping):
        known = hints(hint)
        if name in known:
            return known[name]
        raise UserError(f"{flag}: there is no {name!r} in {place}; {did_you_mean(key, schema, known)}")
    if isinstance(node, list) and (not items or is_group(items[0])):
        place_in_list = whole_number(name, 0, len(node) - 1)
        if place_in_list is not None:
            return items[0] if items else type(node[place_in_list])
        numbers = f"the list has the indices 0 to {len(node) - 1}" if node else "the list is empty"
        raise UserError(f"{flag}: there is no {name!r} in {place}; {numbers}")
    # Types come from the values in the file.
    if (hint in (None, dict) or typing.get_origin(hint) is dict) and isinstance(node, Mapping):
        if name in node:
            return type(node[name])
        keys = f"valid keys: {', '.join(map(str, node))}" if node else "the group is empty"
        raise UserError(f"{flag}: there is no {name!r} in {place}; {keys}")
    raise UserError(f"{flag}: there is no {name!r} in {place}; {place} is a single value")


def _current_value(there: Any, schema: Any, key: str) -> str:
    """Returns the end of an error message, " (now VALUE)", with the key's value in the experiment file, or with the default of
    the key. Returns "" if the key has neither."""
    if there is None and schema is not None:
        for name in key.split("."):
            if not is_group(schema):
                schema = (typing.get_args(schema) or (None,))[0]
                continue
            field = next(field for field in dataclasses.fields(schema) if field.name == name)
            there, schema = field.default, hints(schema)[name]
    return "" if there is None or there is dataclasses.MISSING else f" (now {there})"


def read_value(flag: str, text: str, hint: Any, now: str = "") -> Any:
    """Parses `text` as the first type of the annotation `hint` that accepts it. If no type accepts the text, raises UserError
    with the accepted types."""
    kinds = [kind for kind in value_types(hint) if kind is not type(None)]
    if len(kinds) < len(value_types(hint)) and text in NONE:
        return None
    for kind in kinds:
        with contextlib.suppress(ValueError, KeyError, OverflowError):
            return _parse(text, kind)
    wanted = " or ".join(map(_type_name, kinds))
    ranges = "".join(f", {range_text(one)}" for one in intervals(hint))
    raise UserError(f"{flag}: wanted {wanted}{ranges}{now}")


def _parse(text: str, kind: Any) -> Any:
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    if kind is int:
        number = float(text) if "e" in text.lower() else int(text)
        if number != int(number):
            raise ValueError
        return int(number)
    if kind is float:
        return float(text)
    if kind in (list, tuple) or typing.get_origin(kind) is tuple:
        return _parse_list(text, value_types(typing.get_args(kind)[0]) if typing.get_args(kind) else ())
    return text


def _parse_list(text: str, kinds: Sequence[Any]) -> list[Any]:
    """Parses `[1, 2]`, `1,2` and `['a', 'b']`. Also parses `[a,b]`, since a shell removes the quotes inside unquoted
    brackets."""
    if not text.strip():
        raise ValueError
    # RecursionError and MemoryError are raised if brackets are nested too deeply.
    with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        value = ast.literal_eval(text)
        items = list(value) if isinstance(value, list | tuple) else [value]
        if not kinds or all(type(item) in kinds or (type(item) is int and float in kinds) for item in items):
            return items
    inner = text.strip()
    if {inner[0], inner[-1]} & set("[]()"):
        if inner[0] + inner[-1] not in ("[]", "()"):
            raise ValueError
        inner = inner[1:-1]
    words = [word.strip().strip("'\"") for word in inner.split(",")]
    return [_parse(word, kinds[0] if kinds else str) for word in words if word]


def _type_name(kind: Any) -> str:
    if typing.get_origin(kind) is tuple and str in value_types(typing.get_args(kind)[0]):
        return "a list as [a, b]"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}.get(kind, "a list as [1, 2]")


def suggested_flag(argument: str, schema: Any) -> str:
    """Returns the end of an error message if an unknown flag resembles a key of the experiment, otherwise "". For
    `--learning_rate`, the result is "did you mean --config.optimizer.learning_rate?"."""
    found = suggested_keys(argument.lstrip("-").partition("=")[0], schema) if schema is not None else []
    return f"did you mean {' or '.join(f'--config.{key}' for key in found)}?" if found else ""


# ------------------------------------------------------------------------------------------------ nested values -> dataclasses
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
