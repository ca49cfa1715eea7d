"""Translates between `ModelConfig` and Hugging Face's `config.json`, using the table of the model's family (`families/`)."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from bert_jax.errors import UserError
from bert_jax.files import Json, JsonObject
from bert_jax.interface.named import file_record, is_in_file, split_named
from bert_jax.interface.ranges import whole_number
from bert_jax.interop.directory import OURS
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.families.family import Family, export_family, family_named
from bert_jax.model import ENCODERS, POSITIONS
from bert_jax.model.config import IN_FILES, Architecture, ModelConfig, TrainingOnly
from bert_jax.model.heads import HEAD_PARTS, head_class

if TYPE_CHECKING:  # pretraining runs load no task heads
    from bert_jax.model.heads.head import TaskHead

WRITER_FIELDS = (
    "model_type", "architectures", "num_labels", "torch_dtype", "dtype", "transformers_version", "use_return_dict",
)  # fmt: skip
"""Fields that this package interprets in all families, or that describe the program that wrote the file."""

SETTINGS = tuple(
    field.name
    for field in (*dataclasses.fields(Architecture), *dataclasses.fields(TrainingOnly))
    if field.name not in ("encoder", "positions", "character_cnn")
)
"""The fields of `ModelConfig` that are saved with a model. Fields that have no key in the model's family are saved under
"bert_jax"."""

MOST_LABELS = 1_000_000

HEAD_FIELDS = ("id2label", "label2id", "problem_type", "classifier_dropout")
"""Fields that describe a task head. They are copied unchanged if no head uses them."""

ARCHITECTURES = BERT.classes
"""Class of transformers' BERT -> the parts that its files must have in addition to embeddings and encoder."""

OWN_FIELDS: dict[str, type] = {"kind": str, "pooling": str, "layers": str, "lstm": int}
"""The fields under "head" for a task head without a transformers class. The other fields of the head are stored as in
transformers."""
OPTIONAL_FIELDS: dict[str, type] = {"crf": str, "mix_at": str}
"""Fields under "head" that only some heads have. A field with its default is left out."""

PROBLEM_TYPES = {
    "single_label_classification": "classification",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}
"""transformers' `problem_type` -> `TaskHead.problem`."""


def architecture_name(
    parts: Collection[str], head: TaskHead | None = None, direction: str = "both", family: Family = BERT
) -> str:
    """Returns the class of the family for a model with these `parts` and this `direction`. The model has all parts of the
    class. A task head takes precedence over the pretraining heads. If transformers has no class for the task head, the head is
    ignored."""
    if head is not None and not head.is_plain:
        parts = set(parts) - {head.subtree}
    parts = {"mlm_head" if part == "softmax" else part for part in parts}
    for name, needed in family.classes.items():
        if needed and needed[-1] in parts and needed[-1] in HEAD_PARTS:
            return name
    other = {"both": family.causal}.get(direction, next((name for name in family.classes if name.endswith("ForMaskedLM")), ""))
    classes = {name: needed for name, needed in family.classes.items() if needed and name != other}
    return next((name for name, needed in classes.items() if set(needed) <= set(parts)), next(iter(family.classes)))


def config_to_json(
    config: ModelConfig,
    *,
    architecture: str,
    ids: Mapping[str, int],
    head: TaskHead | None = None,
    other_fields: Mapping[str, Json] | None = None,
    family: Family | None = None,
) -> JsonObject:
    """Returns the `config.json` of a model saved as `architecture` (a transformers class name), with `other_fields` unchanged.
    `ids` has the ids of the special tokens by role (pad, cls, sep, mask). `family` is by default the family of `config`."""
    carried: JsonObject = dict(other_fields or {})
    family = family or export_family(config)
    named = {"architectures": [architecture], "model_type": family.model_type, **family.write(config, ids, carried)}
    stated = head_to_json(head) if head else {}
    return carried | named | {name: value for name, value in stated.items() if value is not None or name not in named}


def own_fields(config: ModelConfig, head: TaskHead | None) -> JsonObject:
    """Returns the fields under "bert_jax" in `config.json`. They record positions that are not learned, since transformers
    reads a fixed table as a learned one. They also record other settings without a key in the family, the user's files that
    compute layers, positions, norms or activations, and a task head without a transformers class."""
    family = export_family(config)
    positions = family.always.get("positions", "learned")
    fields: JsonObject = {} if config.positions == positions else {"positions": config.positions}
    fields |= {"encoder": config.encoder} if is_in_file(config.encoder) else {}
    for name in IN_FILES:
        if file := file_record(getattr(config, name), f"config.model.{name}"):
            fields[f"{name}_file"] = dict(file)
    fields |= {"character_cnn": True} if config.character_cnn else {}
    stored = dataclasses.replace(config.with_sliding_theta(), positions=positions, character_cnn=False)
    read = family.read(family.write(stored, {}, {}), "")
    different = (name for name in SETTINGS if getattr(stored, name) != read.get(name, getattr(ModelConfig, name)))
    if lost := {name: getattr(config, name) for name in different}:
        fields["model"] = lost
    if head is not None and not family.has_class_for(head):
        others = [name for name in OPTIONAL_FIELDS if getattr(head, name) != getattr(type(head), name)]
        fields["head"] = {name: getattr(head, name) for name in (*OWN_FIELDS, *others)}
    return fields


def head_to_json(head: TaskHead) -> JsonObject:
    """Returns the standard fields of a `config.json` that describe a task head."""
    fields: JsonObject = {"classifier_dropout": head.dropout}
    if head.labels:
        fields["id2label"] = {str(i): label for i, label in enumerate(head.labels)}
        fields["label2id"] = {label: i for i, label in enumerate(head.labels)}
    if "problem" in head.settings:
        fields["problem_type"] = next(name for name, problem in PROBLEM_TYPES.items() if problem == head.problem)
    return fields


def config_from_json(fields: JsonObject, source: str) -> ModelConfig:
    """Returns the `ModelConfig` of a `config.json`. Fields about compilation (dtype, vocabulary padding, ...) have their
    defaults.

    Raises a UserError that names `source` and the field if a field is missing, has the wrong type or cannot be represented.
    """
    family = family_named(fields.get("model_type", "bert"), source)
    values = family.read(fields, source)
    values |= {"encoder": family.model_type} if family.model_type in ENCODERS else {}
    values |= _lost_fields(recorded(fields), source)
    if is_in_file(own := str(recorded(fields).get("encoder", ""))):
        values["encoder"] = own
    values["positions"] = _positions(recorded(fields), values.get("positions", "learned"), source)
    for name in IN_FILES:
        if is_in_file(given := values.get(name, "")):
            values[name] = _in_same_file(given, name, recorded(fields), source)
    characters = recorded(fields).get("character_cnn", False)
    if not isinstance(characters, bool):
        raise UserError(f'{source}: "character_cnn" under "{OURS}" is {characters!r}, not true or false; export the model again')
    try:
        return ModelConfig(character_cnn=characters, **values)
    except UserError as error:  # the message names our fields instead of the file's
        raise UserError(f"{source}: {error}") from None


def _lost_fields(ours: JsonObject, source: str) -> JsonObject:
    """Returns the settings under "model", which have no key in the family. Raises UserError if a name is unknown or a value has
    the wrong type."""
    stated = ours.get("model", {})
    if not isinstance(stated, dict) or not stated.keys() <= set(SETTINGS):
        found = str(stated)[:100]
        raise UserError(f'{source}: "model" under "{OURS}" is {found}, not an object of settings; export the model again')
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in stated.items()}
    for name, value in values.items():
        default = getattr(ModelConfig, name)
        kinds: tuple[type, ...] = (int, float, type(None)) if default is None or type(default) is float else (type(default),)
        if not isinstance(value, kinds) or (isinstance(value, bool) and not isinstance(default, bool)):
            raise UserError(f'{source}: "{name}" under "{OURS}", "model" is {value!r}; export the model again')
    return values


def _positions(ours: JsonObject, usual: str, source: str) -> str:
    """Returns `ModelConfig.positions` from the fields under "bert_jax", or `usual` if they have no positions. Raises UserError
    if the positions are unknown."""
    positions = ours.get("positions", usual)
    if positions in POSITIONS or (isinstance(positions, str) and is_in_file(positions)):
        return str(positions)
    raise UserError(f'{source}: "positions" under "{OURS}" is {positions!r}; known: {", ".join(POSITIONS)}')


def _in_same_file(given: str, field: str, ours: JsonObject, source: str) -> str:
    """Returns the FILE.py:NAME of the user's file that computes the `field` of a model. Raises UserError if the file is missing
    or differs from the file used in training."""
    file = ours.get(f"{field}_file")
    if not isinstance(file, dict):
        raise UserError(f'{source}: {field}={given}, but "{field}_file" is not under "{OURS}"; export the model again')
    _, name, _ = split_named(given)
    for place in (given, f"{file.get('path')}:{name}"):
        with contextlib.suppress(UserError):  # there is no such file
            if (found := file_record(place, source)) and found["sha256"] == file.get("sha256"):
                return place
    raise UserError(
        f"{source}: {given} computes the {field} of this model, but the file is missing, or it or a file that it imports has "
        f'changed since training (sha256 {str(file.get("sha256"))[:12]}...); restore {file.get("path")} with the '
        f'text in "source" under "{OURS}", "{field}_file"'
    )


def architecture_from_json(fields: JsonObject, tensor_names: Collection[str], source: str) -> str:
    """Returns the first known class in "architectures" of `config.json`. If there is no "architectures", returns the class that
    fits the tensors' names. If all classes in "architectures" are unknown, `model_type` must be stated and be a key of
    FAMILIES. In that case, only the pooler and the pretraining heads are looked for, since the unknown class defines the
    meaning of the other tensors.

    Raises UserError if no class is supported, or if several classes fit the tensors.
    """
    family = family_named(fields.get("model_type", "bert"), source)
    named = [] if family.model_type in ENCODERS else fields.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise UserError(f'{source}: architectures={named!r} must be a list such as ["BertModel"]; copy the file again')
    if supported := next((name for name in named if name in family.classes), None):
        return supported
    if named and fields.get("model_type") not in FAMILIES:
        known = ", ".join(family.classes)
        raise UserError(f"{source}: architectures={named!r} is not a supported class; supported classes: {known}")
    classes = {needed[-1]: name for name, needed in family.classes.items() if needed and needed[-1] in HEAD_PARTS}
    modules: dict[str, list[str]] = {}
    for row in family.table:
        if row.subtree in classes and row.ours.endswith("/dense/kernel"):
            modules.setdefault(row.theirs.split(".")[0], []).append(row.subtree)
    for module, parts in () if named else sorted(modules.items(), key=lambda item: len(item[1])):
        if not any(name.startswith(f"{module}.") for name in tensor_names):
            continue
        if len(parts) == 1:
            return classes[parts[0]]
        *kinds, last = (f"{part.removesuffix('_head')}s" for part in parts)
        raise UserError(
            f'{source} has no "architectures", and a {module} can be a head for {", ".join(kinds)} or {last}; '
            f'add the class, for example "architectures": ["{classes[parts[0]]}"]'
        )
    table = [row for row in family.table or BERT.table if row.subtree not in HEAD_PARTS]
    parts_of = {row.theirs: row.subtree for row in reversed(table)}  # if several parts share a name, the first part is used
    return architecture_name({parts_of[name] for name in tensor_names if name in parts_of}, family=family)


def head_from_json(
    fields: JsonObject, architecture: str, source: str, labels: Sequence[str] | None = None
) -> TaskHead | None:
    """Returns the task head of a `config.json`, or None if there is none. The head is found by the class or by the entry under
    "bert_jax". Its labels are the given `labels`, or the labels in the file. The default labels are LABEL_0 and LABEL_1, as in
    transformers.

    Raises UserError if the labels contradict each other, or if the problem is unknown.
    """
    own, classes = _own_head(fields, source), family_named(fields.get("model_type", "bert"), source).classes
    part = next((part for part in classes[architecture] if part in HEAD_PARTS), "")
    name = own.pop("kind", part.removesuffix("_head"))
    if not name:
        return None
    try:
        head = head_class(name)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    labels = (tuple(labels) if labels else _labels(fields, source)) if head.has_labels else ()
    problem = "classification"
    if "problem" in head.settings:
        stated = fields.get("problem_type")
        unstated = "regression" if len(labels) == 1 else "classification"
        if stated is not None and (not isinstance(stated, str) or stated not in PROBLEM_TYPES):
            raise UserError(f"{source}: problem_type={stated!r} is unknown; known: {', '.join(PROBLEM_TYPES)}")
        problem = unstated if stated is None else PROBLEM_TYPES[stated]
    dropout = fields.get("classifier_dropout")
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float, type(None))):
        raise UserError(f"{source}: classifier_dropout={dropout!r} must be a number or null")
    try:
        return head(labels=labels, problem=problem, dropout=dropout, **own)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def recorded(fields: JsonObject) -> JsonObject:
    """Returns the fields under "bert_jax" in a `config.json`, or {} if another program wrote the file."""
    ours = fields.get(OURS, {})
    return ours if isinstance(ours, dict) else {}


def untrained_parts(fields: JsonObject, source: str) -> frozenset[str]:
    """Returns the "untrained" parts under "bert_jax" in a `config.json`. Raises UserError if they are not a list of names."""
    names = recorded(fields).get("untrained", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f'{source}: "untrained" under "{OURS}" is {names!r}, not a list of parts; export the model again')
    return frozenset(names)


def _own_head(fields: JsonObject, source: str) -> JsonObject:
    """Returns the fields under "head" (OWN_FIELDS and OPTIONAL_FIELDS), or {} if there is no such head."""
    own = recorded(fields).get("head") or {}
    others = {name: OPTIONAL_FIELDS[name] for name in own if name in OPTIONAL_FIELDS}
    if own and (not isinstance(own, dict) or {name: type(value) for name, value in own.items()} != OWN_FIELDS | others):
        raise UserError(
            f'{source}: "head" under "{OURS}" is {own!r}, not an object with {", ".join(OWN_FIELDS)}; export the model again'
        )
    return dict(own)


_ANEW = "`convert --labels=A,B,...` sets new labels"


def _labels(fields: JsonObject, source: str) -> tuple[str, ...]:
    by_id = fields.get("id2label")
    if by_id is None:
        number = fields.get("num_labels", 2)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST_LABELS:
            raise UserError(f"{source}: num_labels={number!r} must be a whole number up to {MOST_LABELS:,}; copy the model again")
        return tuple(f"LABEL_{i}" for i in range(number))
    parsed = [whole_number(str(i), -MOST_LABELS) for i in by_id] if isinstance(by_id, dict) else [None]
    numbers = [number for number in parsed if number is not None]
    if numbers != parsed:
        raise UserError(f'{source}: id2label={str(by_id)[:100]} must be an object such as {{"0": "no", "1": "yes"}}; {_ANEW}')
    if sorted(numbers) != list(range(len(numbers))):
        raise UserError(f"{source}: the ids of id2label are {sorted(numbers)}; they must count 0, 1, 2, ...; {_ANEW}")
    ids = dict(zip(numbers, map(str, by_id.values()), strict=True))
    unnamed = next((i for i, label in by_id.items() if not isinstance(label, str | int | float) or not str(label).strip()), None)
    if unnamed is not None:
        raise UserError(
            f"{source}: for the output {unnamed}, id2label has {by_id[unnamed]!r}, which is not a label; correct it, or {_ANEW}"
        )
    labels = tuple(ids[i] for i in range(len(ids)))
    several = next((label for label, count in collections.Counter(labels).items() if count > 1), None)
    if several is not None:
        same = ", ".join(str(i) for i, label in ids.items() if label == several)
        raise UserError(
            f"{source}: id2label has the same label {several!r} for the outputs {same}; give each output its own label, or "
            f"{_ANEW}"
        )
    stated = fields.get("label2id")
    if stated is None:
        return labels
    if not isinstance(stated, dict):
        raise UserError(f'{source}: label2id={str(stated)[:100]} must be an object such as {{"no": 0, "yes": 1}}; remove it')
    swapped = next((label for i, label in enumerate(labels) if str(stated.get(label, i)) != str(i)), None)
    # transformers reads labels from id2label. Names that only label2id has are left over from another model.
    if swapped is not None:
        raise UserError(
            f"{source}: {swapped!r} has the id {stated[swapped]!r} in label2id, but {labels.index(swapped)} in id2label; "
            f"correct one of them, or {_ANEW}"
        )
    return labels
