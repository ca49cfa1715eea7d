"""Reads and writes checkpoints of the original BERT (google-research/bert, TensorFlow 1) without TensorFlow.

- `bert_config.json`: the model configuration, and under "bert_jax" the settings that the format cannot express;
- `bert_model.ckpt.index`, `bert_model.ckpt.data-00000-of-00001`: float32 tensors under the names of `modeling.py`;
- `vocab.txt`.

The tensor names are derived from the table in `names` by `RULES`. The original has the heads of `run_pretraining.py`,
`run_classifier.py` (our "sequence_head") and `run_squad.py` ("span_head"). Its decoder is always tied to the word embeddings,
and its LayerNorm epsilon is always 1e-12.

`hidden_act` "gelu" is ambiguous, because it meant erf in the first release, but the code has used the tanh approximation since
February 2019. "gelu" is read as erf, as in transformers' converter, unless `activation` is given. The two functions differ by
less than 0.0005 for any argument. Both are written as "gelu", and a field under "bert_jax" distinguishes them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import PyTree

from bert_jax.data.tokenizers.tokenizer import VOCAB_FILE, Tokenizer, load_tokenizer
from bert_jax.data.tokenizers.tokenizer_files import unfit_for_vocab_txt
from bert_jax.errors import UserError
from bert_jax.files import JsonObject, read_object, write_json
from bert_jax.interop import PARTS
from bert_jax.interop.directory import OURS, replaced_when_complete
from bert_jax.interop.families.bert import FIELDS
from bert_jax.interop.families.family import Row
from bert_jax.interop.huggingface import check_same_vocabulary, check_vocabulary, rows_without_pieces
from bert_jax.interop.huggingface_config import config_from_json
from bert_jax.interop.names import (
    REQUIRED_PARTS,
    drop_remedy,
    list_some,
    matching,
    params_from_tensors,
    rows,
    tensors_from_params,
    their_names,
    their_shape,
)
from bert_jax.interop.tensor_bundle import Bundle, find_bundle, read_bundle, write_bundle
from bert_jax.interop.weights import check_finite
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads import head_classes, make_head
from bert_jax.model.heads.head import TaskHead

CONFIG = "bert_config.json"
CHECKPOINT = "bert_model.ckpt"
SPECIALS = ("[UNK]", "[CLS]", "[SEP]", "[MASK]")
EPSILON = 1e-12
ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
"""The activations that both the original and this package have."""
TYPES_BY_DEFAULT = 16  # the default of type_vocab_size in the original, while ours is 2

RULES = (
    (r"^classifier\.", "output_"),  # run_classifier.py
    (r"^qa_outputs\.", "cls/squad/output_"),  # run_squad.py
    (r"^cls\.seq_relationship\.", "cls/seq_relationship/output_"),
    (r"^cls\.predictions\.bias$", "cls/predictions/output_bias"),
    (r"output_weight$", "output_weights"),  # [out, in], as in transformers, because the original multiplies by the transpose
    (r"encoder\.layer\.", "encoder/layer_"),
    (r"_embeddings\.weight$", "_embeddings"),
    (r"LayerNorm\.weight$", "LayerNorm/gamma"),
    (r"LayerNorm\.bias$", "LayerNorm/beta"),
    (r"\.weight$", "/kernel"),  # [in, out]
    (r"\.", "/"),
)
"""Replacements that change the names of transformers to the names of the original, in this order. Only tensors whose new name
ends in "kernel" have a different layout."""

FIRST_MOMENTS = ("adam_m", "Adam", "lamb_m")
SECOND_MOMENTS = ("adam_v", "Adam_1", "lamb_v")
"""The names of a variable's first and second moments in three optimizers: the optimizer of the original, TensorFlow's Adam, and
the usual implementation of LAMB."""
MOST_LABELS = 1 << 20  # if a head has more outputs, it is reported as having a wrong shape
STEP = "global_step"
OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"  # every TensorFlow 2 checkpoint has this key


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notes:
    """The content of a checkpoint other than parameters, configuration and tokenizer."""

    messages: tuple[str, ...]
    """Sentences for the user about assumed values, ignored tensors and copied fields."""
    head: TaskHead | None
    """The task head in the parameters. Its labels are LABEL_0, ... except in checkpoints that this package has written."""
    other_fields: JsonObject
    """The fields of bert_config.json that this package does not use."""
    step: int | None
    """The checkpoint's global_step."""
    first_moments: dict[str, PyTree[np.ndarray]] | None = None
    """The tree for the `mu` of our optimizers, with zeros in the padding of the vocabulary. None if `read_slots` is false."""
    second_moments: dict[str, PyTree[np.ndarray]] | None = None
    """The same as `first_moments`, for `nu`."""


class _Counterpart(NamedTuple):
    """The tensor of transformers that corresponds to a tensor of the original."""

    theirs: str  # transformers' name
    subtree: str
    shape: tuple[int, ...]  # in the original's layout


def original_row(row: Row) -> Row:
    """Returns `row` with the original's name and layout instead of transformers' name and layout."""
    name = row.theirs
    for pattern, replacement in RULES:
        name = re.sub(pattern, replacement, name)
    if not name.endswith("/kernel"):
        return dataclasses.replace(row, theirs=name)
    groups = re.findall(r"\([^)]*\)|\S+", row.their_axes)
    return dataclasses.replace(row, theirs=name, their_axes=" ".join(reversed(groups)))


def import_tf1(
    path: str | os.PathLike[str],
    *,
    vocab_multiple: int = 1,
    drop: Collection[str] = (),
    activation: str | None = None,
    lowercase: bool | None = None,
    read_slots: bool = False,
) -> tuple[dict[str, PyTree[np.ndarray]], ModelConfig, Tokenizer, Notes]:
    """Reads a checkpoint of the original BERT. Returns (parameters, configuration, tokenizer, notes).

    `path` is the checkpoint's directory or the common prefix of its files. Parameters are float32 numpy arrays, with the
    vocabulary padded to `vocab_multiple`. The pooler and the heads are included if the checkpoint has them. `drop` lists parts
    of our tree, or tensors (`*` as a wildcard), to leave out. `activation` is the variant of "gelu". `lowercase` is the casing,
    for a vocabulary that does not show it. The slots of the optimizer are read if `read_slots` is true, and otherwise only
    reported.

    Raises UserError if a file is missing or damaged. If tensors are missing, unexpected or of a different shape, the error
    lists all of them."""
    prefix = find_bundle(path)
    config_path = prefix.with_name(CONFIG)
    fields = _read_json(config_path)
    ours = fields[OURS] if isinstance(fields.get(OURS), dict) else {}
    gelu = fields.get("hidden_act", "gelu") == "gelu"
    activation = activation or (ours.get("activation") if gelu else None)
    config = _config(fields, str(config_path), activation, vocab_multiple)
    casing = ours.get("do_lower_case") if lowercase is None else lowercase
    tokenizer = load_tokenizer(prefix.parent, lowercase=casing, max_word_characters=ours.get("max_input_chars_per_word"))
    check_vocabulary(tokenizer, config, str(prefix.parent))
    check_same_vocabulary(ours, tokenizer, str(prefix.parent))

    bundle = read_bundle(prefix)
    if OBJECTS in bundle:
        raise UserError(
            f"{prefix} is a TensorFlow 2 checkpoint, whose tensors have other names than in the original; use the TensorFlow 1 "
            "release"
        )
    head = _head(bundle, ours, str(config_path))
    counterparts = _counterparts(config, head)
    slots, dropped, counters = _slots(bundle, counterparts), _dropped(bundle, counterparts, drop), _counters(bundle, counterparts)
    elsewhere = {*slots, *dropped, *counters}
    names = [name for name in bundle if name not in elsewhere]
    _check_tensors(bundle, names, counterparts)
    params = params_from_tensors(_tensors(bundle, names, counterparts), config, str(prefix), head=head)

    step = int(bundle[STEP]) if STEP in bundle and not bundle.entries[STEP].shape else None
    moments = {}
    if read_slots:
        if step is None:
            raise UserError(f"{prefix} has no {STEP}, so its optimizer state cannot be used; import it without slots")
        for field, kinds in (("first_moments", FIRST_MOMENTS), ("second_moments", SECOND_MOMENTS)):
            slot_tensors = _slot_tensors(bundle, names, counterparts, kinds)
            moments[field] = params_from_tensors(slot_tensors, config, str(prefix), head=head)
    other = {name: value for name, value in fields.items() if name not in (*FIELDS.values(), "hidden_act", OURS)}
    notes = Notes(
        messages=tokenizer.notes
        + rows_without_pieces(tokenizer, config)
        + _messages(
            assumed_gelu=gelu and activation is None,
            slots={} if read_slots else slots,
            dropped=dropped,
            counters=[name for name in counters if name != STEP],
            step=step,
            other=other,
        ),
        head=head if head and head.subtree in params else None,
        other_fields=other,
        step=step,
        **moments,
    )
    return params, config, tokenizer, notes


def export_tf1(
    directory: str | os.PathLike[str],
    params: Mapping[str, PyTree[np.ndarray]],
    config: ModelConfig,
    tokenizer: Tokenizer,
    *,
    head: TaskHead | None = None,
    other_fields: JsonObject | None = None,
    card: str = "",
) -> None:
    """Writes a directory that the original's programs can read. An existing directory is replaced when the new one is complete.

    `params` is our unboxed tree, with every array whole on this process. `head` is its task head, if any. `other_fields` are
    copied into bert_config.json. `card` is the text of the model card. Raises UserError if the original cannot represent the
    model, or if values are not finite."""
    directory = pathlib.Path(directory)
    _check_representable(config, tokenizer, head, str(directory))
    ours: JsonObject = {
        "activation": config.activation,
        "do_lower_case": tokenizer.vocabulary.lowercase,
        "max_input_chars_per_word": tokenizer.max_word_characters,
        "vocabulary_sha256": tokenizer.vocabulary.sha256,
    }
    if head is not None:
        ours["head"] = {"kind": head.kind, **dataclasses.asdict(head)}
    fields = dict(other_fields or {}) | {theirs: getattr(config, name) for name, theirs in FIELDS.items()}
    del fields[FIELDS["layer_norm_epsilon"]]  # the original has a constant instead of this field
    fields |= {"hidden_act": "gelu" if config.activation == "gelu_tanh" else config.activation, OURS: ours}
    counterparts = {counterpart.theirs: name for name, counterpart in _counterparts(config, head).items()}
    theirs = tensors_from_params(params, config, head)
    tensors = {counterparts[name]: _layout(counterparts[name], x) for name, x in theirs.items()}
    check_finite(tensors, f"nothing is written to {directory}: {{found}}; the model is unusable")
    with replaced_when_complete(directory, "tf1", card) as incomplete:
        write_json(incomplete / CONFIG, fields, sort_keys=True)
        (incomplete / VOCAB_FILE).write_text("".join(f"{piece}\n" for piece in tokenizer.pieces), encoding="utf-8")
        write_bundle(incomplete / CHECKPOINT, tensors)


def _counterparts(config: ModelConfig, head: TaskHead | None) -> dict[str, _Counterpart]:
    """Maps the original's name of every tensor of the model to the corresponding tensor of transformers."""
    counterparts = {}
    for row in rows(config, head):
        original = original_row(row)
        shape = their_shape(original, config, head)
        theirs = their_names(row, config)
        for n, name in enumerate(their_names(original, config)):
            counterparts[name] = _Counterpart(theirs[n], row.subtree, shape)
    return counterparts


def _layout(name: str, tensor: np.ndarray) -> np.ndarray:
    """Converts a tensor from the original's layout to transformers', or back."""
    return tensor.T if name.endswith("/kernel") else tensor


def _read_json(path: pathlib.Path) -> JsonObject:
    if not path.exists():
        raise UserError(f"{path} is missing; copy the file of the pretrained model there")
    return read_object(path, "copy the model again")


def _config(fields: JsonObject, source: str, activation: str | None, vocab_multiple: int) -> ModelConfig:
    config = config_from_json({FIELDS["type_vocab_size"]: TYPES_BY_DEFAULT, **fields}, source)
    if not config.tied_decoder:
        raise UserError(f"{source}: tie_word_embeddings=false, which the original does not support; remove it")
    changes: JsonObject = {"vocab_multiple": vocab_multiple} | ({"activation": activation} if activation else {})
    return dataclasses.replace(config, **changes)


def _head(bundle: Bundle, ours: JsonObject, source: str) -> TaskHead | None:
    """Returns the task head that the tensor names imply. Its labels are read from "bert_jax". If there are none, each output
    gets a default label."""
    kind = next((kind for kind in head_classes().values() if kind.original_variable and kind.original_variable in bundle), None)
    if kind is None:
        return None
    if isinstance(ours.get("head"), dict):
        try:
            return make_head(**ours["head"] | {"labels": tuple(ours["head"].get("labels", ()))})
        except TypeError as error:
            raise UserError(f'{source}: "head" under "{OURS}" is invalid ({error}); remove it') from error
    if not kind.has_labels:
        return kind()
    shape = bundle.entries[kind.original_variable].shape
    outputs = shape[0] if len(shape) == 2 and 0 < shape[0] <= MOST_LABELS else 1  # other shapes are reported by `_check_tensors`
    labels = tuple(f"LABEL_{n}" for n in range(outputs))
    return kind(labels=labels, problem="classification" if len(labels) > 1 else "regression")


def _slots(bundle: Bundle, counterparts: Mapping[str, _Counterpart]) -> dict[str, str]:
    """Returns the tensors of any optimizer as tensor name -> name of its slot, such as "adam_m".

    A slot of a variable NAME is called NAME/SLOT. A slot has the variable's shape, or that shape without one axis (Adafactor's
    sums). A slot with a name in `FIRST_MOMENTS` or `SECOND_MOMENTS` may have any shape."""
    slots = {}
    for name in bundle:
        parts = name.split("/")
        owners = ("/".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
        owner = next((owner for owner in owners if owner in bundle), None)
        if owner is None or name in counterparts:
            continue
        whole, slot = bundle.entries[owner].shape, name.removeprefix(f"{owner}/")
        shapes = (whole, *(whole[:axis] + whole[axis + 1 :] for axis in range(len(whole))))
        if slot in (*FIRST_MOMENTS, *SECOND_MOMENTS) or bundle.entries[name].shape in shapes:
            slots[name] = slot
    return slots


def _counters(bundle: Bundle, counterparts: Mapping[str, _Counterpart]) -> tuple[str, ...]:
    """Returns the scalars of the training program, such as the step count or the loss scale. BERT itself has no scalars."""
    return tuple(name for name in bundle if bundle.entries[name].shape == () and name not in counterparts)


def _dropped(bundle: Bundle, counterparts: Mapping[str, _Counterpart], drop: Collection[str]) -> tuple[str, ...]:
    """Returns the tensors of the parts in `drop`, and the tensors that match a pattern in `drop`. Raises UserError if a pattern
    matches no tensor."""
    dropped = []
    for what in drop:
        in_part = [name for name in bundle if name in counterparts and counterparts[name].subtree == what]
        dropped += in_part or ([] if what in PARTS else matching(list(bundle), what, str(bundle.prefix)))
    return tuple(dict.fromkeys(dropped))


def _check_tensors(bundle: Bundle, names: Collection[str], counterparts: Mapping[str, _Counterpart]) -> None:
    present = {counterparts[name].subtree for name in names if name in counterparts} | set(REQUIRED_PARTS)
    shapes = {name: bundle.entries[name].shape for name in names}
    problems = {
        "missing": [name for name, counterpart in counterparts.items() if counterpart.subtree in present and name not in shapes],
        "not part of this model": [name for name in names if name not in counterparts],
        f"other shapes than in {CONFIG}": [
            f"{name} {list(shapes[name])} instead of {list(counterparts[name].shape)}"
            for name in names
            if name in counterparts and shapes[name] != counterparts[name].shape
        ],
    }
    if any(problems.values()):
        listed = "; ".join(f"{what}: {list_some(each)}" for what, each in problems.items() if each)
        unused = problems["not part of this model"]
        alone = unused and not any(each for each in problems.values() if each is not unused)
        remedy = f"; {drop_remedy(unused, list(counterparts), '/')}" if alone else ""
        raise UserError(f"{bundle.prefix} does not contain the BERT that its {CONFIG} describes: {listed}{remedy}")


def _tensors(bundle: Bundle, names: Collection[str], counterparts: Mapping[str, _Counterpart]) -> dict[str, np.ndarray]:
    return {counterparts[name].theirs: _layout(name, bundle[name]) for name in names}


def _slot_tensors(
    bundle: Bundle, names: Collection[str], counterparts: Mapping[str, _Counterpart], kinds: Collection[str]
) -> dict[str, np.ndarray]:
    """Returns one kind of the optimizer's slots, under the names of the variables.

    If a part has no slots, it was never trained (e.g. the pooler in run_squad.py), so its moments are 0."""
    found = [kind for kind in kinds if any(f"{name}/{kind}" in bundle for name in names)]
    if len(found) != 1:
        what = f"slots of several optimizers ({', '.join(found)})" if found else f"no slots ({', '.join(kinds)})"
        raise UserError(f"{bundle.prefix} has {what}, so its optimizer state cannot be read; import it without slots")
    slots = {name: f"{name}/{found[0]}" for name in names}
    trained = {counterparts[name].subtree for name in names if slots[name] in bundle}
    shapes = {name: bundle.entries[slot].shape for name, slot in slots.items() if slot in bundle}
    unfit = [
        slots[name] for name in names if counterparts[name].subtree in trained and shapes.get(name) != counterparts[name].shape
    ]
    if unfit:
        raise UserError(f"{bundle.prefix} lacks slots, or has slots of wrong shapes: {list_some(unfit)}; import it without slots")
    zeros = {counterparts[name].theirs: np.zeros(counterparts[name].shape, np.float32) for name in names if name not in shapes}
    return zeros | {counterparts[name].theirs: _layout(name, bundle[slots[name]]) for name in shapes}


def _messages(
    *,
    assumed_gelu: bool,
    slots: Mapping[str, str],
    dropped: Collection[str],
    counters: Collection[str],
    step: int | None,
    other: JsonObject,
) -> tuple[str, ...]:
    messages = []
    if assumed_gelu:
        messages.append(
            "hidden_act 'gelu' was read as the exact form (erf); if the model was trained with the tanh approximation, which "
            "the original code uses since February 2019, set activation to gelu_tanh"
        )
    if slots:
        messages.append(f"{len(slots)} slots of the optimizer ({list_some(sorted(set(slots.values())))}) were left out")
    if counters:
        messages.append(f"scalars of the training program were left out: {list_some(counters)}")
    if dropped:
        messages.append(f"dropped: {list_some(dropped)}")
    if step is not None:
        messages.append(f"{STEP} is {step:,}")
    if other:
        messages.append(f"fields of {CONFIG} that bert_jax does not use, copied to exports: {', '.join(other)}")
    return tuple(messages)


def _check_representable(config: ModelConfig, tokenizer: Tokenizer, head: TaskHead | None, where: str) -> None:
    """Raises UserError if the original's code cannot represent the model, or would compute it differently."""
    if not config.tied_decoder:
        raise UserError(f"{where}: the original has no separate decoder (tied_decoder=False); choose another format")
    if config.layer_norm_epsilon != EPSILON:
        raise UserError(
            f"{where}: layer_norm_epsilon={config.layer_norm_epsilon} cannot be represented, because the original always uses "
            f"{EPSILON}; choose another format"
        )
    if config.activation not in ACTIVATIONS:
        raise UserError(
            f"{where}: the original has no activation {config.activation} (only {', '.join(ACTIVATIONS)}); choose another format"
        )
    if head is not None and not head.original_variable:
        raise UserError(f"{where}: the original has no {head.kind} head; drop the head, or choose another format")
    if head is not None and not head.is_plain:
        raise UserError(f"{where}: the original's heads only read the last layer's [CLS] or tokens; choose another format")
    if tokenizer.vocabulary.kind != "wordpiece":
        raise UserError(f"{where}: the original only reads WordPiece, not {tokenizer.vocabulary.kind}; choose another format")
    words = tokenizer.vocabulary
    if words.strip_accents not in (None, words.lowercase) or not words.split_cjk:
        raise UserError(
            f"{where}: the original would tokenise differently from this model (strip_accents={words.strip_accents}, "
            f"split_cjk={words.split_cjk}): it always splits CJK ideographs, and strips accents if and only if it lower-cases; "
            "choose another format"
        )
    specials = tokenizer.tokens([words.unk_id, words.cls_id, words.sep_id, words.mask_id])
    if specials != list(SPECIALS):
        raise UserError(
            f"{where}: the original's special tokens are {', '.join(SPECIALS)}, not {', '.join(specials)}; choose another format"
        )
    if (piece := unfit_for_vocab_txt(tokenizer.pieces)) is not None:
        raise UserError(
            f"{where}: the original reads its vocabulary from {VOCAB_FILE}, but this file cannot hold the piece {piece!r}, "
            "because the piece contains a line end, or starts or ends with white space; choose another format"
        )
    check_vocabulary(tokenizer, config, where)
