"""The table that maps our parameter tree to the tensor names of Hugging Face's BERT, in both directions.

Our arrays are stacked over layers and have a separate axis for heads; transformers has one matrix per layer in PyTorch's layout
[out, in]. Each row of the table has both names and both layouts, from which shapes, transposes and the splitting of heads follow;
no other module has names of transformers.

The tensor names are those of transformers' `BertForPreTraining` and its variants with other heads (`modeling_bert.py`); a plain
`BertModel` has no prefix `bert.`. A head without a transformers class has our names, with dots, and our layout.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from bert_jax.errors import UserError, nearest
from bert_jax.interface.words import counted
from bert_jax.interop import PARTS
from bert_jax.interop.weights import check_finite
from bert_jax.model.characters import BYTES, character_shapes
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads import HEAD_PARTS
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.registry import HEADS
from bert_jax.model.positions import fixed_table, has_parameters
from bert_jax.model.pretraining import abstract_parameters


@dataclasses.dataclass(frozen=True)
class Row:
    """One kind of parameter. Layouts are axis letters; letters in brackets are flattened into one axis of the other format's
    tensor.

    A `{}` in `theirs` is the layer number; our array then has a leading axis N.
    """

    ours: str
    our_axes: str
    theirs: str
    their_axes: str

    @property
    def stacked(self) -> bool:
        """True if our array is stacked over layers along an axis N."""
        return "{}" in self.theirs

    @property
    def part(self) -> str:
        """The top-level part of our tree that the parameter belongs to: embeddings, encoder, pooler or a head."""
        return self.ours.split("/")[0]


POSITIONS = "bert.embeddings.position_embeddings.weight"
"""The position table, which is a parameter of ours only where positions are learned; the other format always has its tensor."""

OWN_PREFIX = "bert_jax."
"""The prefix of all names of a model that Hugging Face's BERT would compute differently (`positions.is_own_transformer`)."""

# Axis letters: D width, E width (as an output), H heads, K head width, F feed-forward width, V vocabulary, S positions, T token
# types, C = 2 classes. In a task head: Y outputs, Q the same (of the word before), J inputs, I width of a token, M layers of a
# mix; in its LSTM: W width of a direction, Z the same (as an input), U width of both directions, G = 4 gates, X = 2 directions.
TABLE = (
    Row("embeddings/word_embeddings/embedding", "V D", "bert.embeddings.word_embeddings.weight", "V D"),
    Row("embeddings/position_embeddings/embedding", "S D", POSITIONS, "S D"),
    Row("embeddings/token_type_embeddings/embedding", "T D", "bert.embeddings.token_type_embeddings.weight", "T D"),
    Row("embeddings/layer_norm/scale", "D", "bert.embeddings.LayerNorm.weight", "D"),
    Row("embeddings/layer_norm/bias", "D", "bert.embeddings.LayerNorm.bias", "D"),
    Row("encoder/layers/attention/query/kernel", "D H K", "bert.encoder.layer.{}.attention.self.query.weight", "(H K) D"),
    Row("encoder/layers/attention/query/bias", "H K", "bert.encoder.layer.{}.attention.self.query.bias", "(H K)"),
    Row("encoder/layers/attention/key/kernel", "D H K", "bert.encoder.layer.{}.attention.self.key.weight", "(H K) D"),
    Row("encoder/layers/attention/key/bias", "H K", "bert.encoder.layer.{}.attention.self.key.bias", "(H K)"),
    Row("encoder/layers/attention/value/kernel", "D H K", "bert.encoder.layer.{}.attention.self.value.weight", "(H K) D"),
    Row("encoder/layers/attention/value/bias", "H K", "bert.encoder.layer.{}.attention.self.value.bias", "(H K)"),
    Row("encoder/layers/attention/output/kernel", "H K D", "bert.encoder.layer.{}.attention.output.dense.weight", "D (H K)"),
    Row("encoder/layers/attention/output/bias", "D", "bert.encoder.layer.{}.attention.output.dense.bias", "D"),
    Row("encoder/layers/attention_layer_norm/scale", "D", "bert.encoder.layer.{}.attention.output.LayerNorm.weight", "D"),
    Row("encoder/layers/attention_layer_norm/bias", "D", "bert.encoder.layer.{}.attention.output.LayerNorm.bias", "D"),
    Row("encoder/layers/feed_forward/intermediate/kernel", "D F", "bert.encoder.layer.{}.intermediate.dense.weight", "F D"),
    Row("encoder/layers/feed_forward/intermediate/bias", "F", "bert.encoder.layer.{}.intermediate.dense.bias", "F"),
    Row("encoder/layers/feed_forward/output/kernel", "F D", "bert.encoder.layer.{}.output.dense.weight", "D F"),
    Row("encoder/layers/feed_forward/output/bias", "D", "bert.encoder.layer.{}.output.dense.bias", "D"),
    Row("encoder/layers/feed_forward_layer_norm/scale", "D", "bert.encoder.layer.{}.output.LayerNorm.weight", "D"),
    Row("encoder/layers/feed_forward_layer_norm/bias", "D", "bert.encoder.layer.{}.output.LayerNorm.bias", "D"),
    Row("pooler/dense/kernel", "D E", "bert.pooler.dense.weight", "E D"),
    Row("pooler/dense/bias", "E", "bert.pooler.dense.bias", "E"),
    Row("mlm_head/transform/kernel", "D E", "cls.predictions.transform.dense.weight", "E D"),
    Row("mlm_head/transform/bias", "E", "cls.predictions.transform.dense.bias", "E"),
    Row("mlm_head/layer_norm/scale", "D", "cls.predictions.transform.LayerNorm.weight", "D"),
    Row("mlm_head/layer_norm/bias", "D", "cls.predictions.transform.LayerNorm.bias", "D"),
    Row("mlm_head/bias", "V", "cls.predictions.bias", "V"),
    Row("nsp_head/dense/kernel", "D C", "cls.seq_relationship.weight", "C D"),
    Row("nsp_head/dense/bias", "C", "cls.seq_relationship.bias", "C"),
)

REQUIRED_PARTS = ("embeddings", "encoder")

DECODER = Row("mlm_head/decoder", "V D", "cls.predictions.decoder.weight", "V D")
"""The decoder of a model in which it is not tied to the word embeddings (`ModelConfig.tied_decoder`)."""


def rows(config: ModelConfig, head: TaskHead | None = None) -> tuple[Row, ...]:
    """The rows for a model: `TABLE` (without the position table where positions are not learned), the decoder where it is not
    tied, and the task head."""
    if config.encoder != "transformer":
        return (*_predecessor_rows(config), *(_own_rows(head) if head else ()))
    result: tuple[Row, ...] = TABLE if config.tied_decoder else (*TABLE, DECODER)
    if config.positions != "learned":
        result = (*(row for row in result if row.theirs != POSITIONS), *_position_rows(config))
    if head is None:
        return result
    if not head.is_plain:
        return (*result, *_own_rows(head))
    return (
        *result,
        Row(f"{head.part}/dense/kernel", "D Y", f"{head.module}.weight", "Y D"),
        Row(f"{head.part}/dense/bias", "Y", f"{head.module}.bias", "Y"),
    )


def _position_rows(config: ModelConfig) -> Iterator[Row]:
    """The rows of the parameters of positions that are not learned tables, in names and shapes of our own; an axis is its number
    and its size."""
    if config.positions == "learned" or not has_parameters(config):
        return
    for path, box in flatten_dict(abstract_parameters(config), sep="/").items():
        if path.startswith("embeddings/position_embeddings/") or "/attention/positions/" in path:
            shape = box.value.shape[1:] if "/layers/" in path else box.value.shape
            letters = " ".join(_numbered(shape))
            yield Row(path, letters, f"bert.{path}".replace("/layers/", ".layers.{}.").replace("/", "."), letters)


def _predecessor_rows(config: ModelConfig) -> Iterator[Row]:
    """The rows of a model that is no Transformer, in names and shapes of our own."""
    for ours, letters in predecessor_axes(config).items():
        theirs = ours.replace("softmax/", "mlm_head/")  # the name of the softmax in files
        yield Row(ours, letters, theirs.replace("/layers/", ".layers.{}.").replace("/", "."), letters)


def _own_rows(head: TaskHead) -> Iterator[Row]:
    """The rows of a task head without a transformers class."""
    axes = {"dense/kernel": "J Y", "dense/bias": "Y"}
    if head.mixed_layers(0):
        for place in ("mix", "output_mix") if head.mix_at == "both" else ("mix",):
            axes |= {f"{place}/weights": "M", f"{place}/gamma": ""}
    if head.lstm:
        for layer, inputs in (("lower", "D" if head.mix_at == "output" else "I"), ("upper", "U")):
            axes |= {
                f"lstm/{layer}_input/kernel": f"{inputs} X G W",
                f"lstm/{layer}_input/bias": "X G W",
                f"lstm/{layer}_recurrence/kernel": "X Z G W",
            }
    if head.has_crf:
        axes |= {"crf/between": "Q Y", "crf/start": "Y", "crf/end": "Y"}
    for name, letters in axes.items():
        ours = f"{head.part}/{name}"
        yield Row(ours, letters, ours.replace("/", "."), letters)


# Copies of a tied tensor that some files also hold (the decoder of the MLM head is the word-embedding table).
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
# The published TensorFlow checkpoints, converted long ago, still carry TensorFlow's names for LayerNorm's parameters. NVIDIA's
# have a name of their own for layers that apply their activation themselves.
OLD_ENDINGS = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    ".dense_act.weight": ".dense.weight",
    ".dense_act.bias": ".dense.bias",
}
# Buffers of transformers, which some versions saved: their names, what they hold, and the values.
BUFFERS: dict[str, tuple[str, Callable[[int], np.ndarray]]] = {
    "bert.embeddings.position_ids": ("0, 1, 2", np.arange),
    "bert.embeddings.token_type_ids": ("0, 0, 0", np.zeros),
}


def axis_sizes(config: ModelConfig, head: TaskHead | None = None) -> dict[str, int]:
    """The size of every axis letter in the other format; our sizes differ in V only, which may be padded."""
    sizes = {
        "V": config.vocab_size,
        "S": config.max_position,
        "T": config.type_vocab_size,
        "D": config.hidden_size,
        "E": config.hidden_size,
        "H": config.num_heads,
        "K": config.head_width,
        "F": config.intermediate_size,
        "C": 2,
        "G": 4,
        **predecessor_sizes(config),
        **{axis: int(axis.partition(":")[2]) for row in _position_rows(config) for axis in row.our_axes.split()},
    }
    if head is None:
        return sizes
    return sizes | {
        "Y": head.num_outputs,
        "Q": head.num_outputs,
        "J": head.input_width(config.hidden_size),
        "I": head.token_width(config.hidden_size),
        "M": head.mixed_layers(config.num_layers),
        "W": head.lstm,
        "Z": head.lstm,
        "U": 2 * head.lstm,
        "X": 2,
    }


def our_shapes(config: ModelConfig, head: TaskHead | None = None) -> dict[str, tuple[int, ...]]:
    """Path -> shape of every parameter of our tree, layers stacked and the vocabulary padded."""
    sizes = axis_sizes(config, head) | {"V": config.padded_vocab_size}
    layers = {True: (config.num_layers,), False: ()}
    return {row.ours: layers[row.stacked] + tuple(sizes[axis] for axis in row.our_axes.split()) for row in rows(config, head)}


def their_shape(row: Row, config: ModelConfig, head: TaskHead | None = None) -> tuple[int, ...]:
    """The shape of `row`'s tensor in the other format, for a model with this `config` and `head`."""
    sizes = axis_sizes(config, head)
    return tuple(int(np.prod([sizes[a] for a in group])) for group in _groups(row.their_axes))


def tensors_from_params(
    params: Mapping[str, PyTree[np.ndarray]], config: ModelConfig, head: TaskHead | None = None
) -> dict[str, np.ndarray]:
    """Converts our parameter tree (or a tree of gradients) to float32 tensors by name in the other format, without the padding
    rows of the vocabulary, and with the position table of a model that does not learn one.

    `params` may lack whole parts (as a model without the NSP head), but not single parameters. Raises ValueError listing missing
    and unknown parameters and those of another shape, which are a bug and not a user's mistake.
    """
    flat = flatten_dict(params, sep="/")
    table, shapes = rows(config, head), our_shapes(config, head)
    present = {path.split("/")[0] for path in flat} | set(REQUIRED_PARTS)
    problems = [f"missing {row.ours}" for row in table if row.part in present and row.ours not in flat]
    problems += [f"unknown {path}" for path in flat if path not in shapes]
    problems += [
        f"{path} is {list(np.shape(x))}, expected {list(shapes[path])}"
        for path, x in flat.items()
        if path in shapes and np.shape(x) != shapes[path]
    ]
    if problems:
        raise ValueError("parameters do not fit the model configuration: " + "; ".join(problems))
    tensors: dict[str, np.ndarray] = {}
    for row in table:
        if row.ours in flat:
            value = np.asarray(flat[row.ours], np.float32)
            layers = value if row.stacked else value[None]
            tensors |= {name: _to_theirs(layers[n], row, config, head) for n, name in enumerate(their_names(row, config))}
    if (fixed := fixed_table(config)) is not None:
        tensors[POSITIONS] = fixed
    return tensors


def params_from_tensors(
    tensors: Mapping[str, np.ndarray],
    config: ModelConfig,
    source: str,
    *,
    head: TaskHead | None = None,
    required: Collection[str] = (),
    drop: Collection[str] = (),
) -> dict[str, PyTree[np.ndarray]]:
    """Converts tensors by name in the other format to our float32 parameter tree, with zeros in the padding rows of the
    vocabulary.

    The pooler and the heads may be missing as a whole, unless they are `required`; parts to `drop` are left out, if present.
    Raises UserError, with `source` and the tensors' names in `tensors`, listing all other tensors that are missing, unexpected or
    of another shape, tensors of integers, and values that are not finite.
    """
    in_file = {name: stored for stored, name in canonical_names(tensors, config).items()}
    tensors = canonical(tensors, config, source)
    if (fixed := fixed_table(config)) is not None:
        tensors = _without_fixed_positions(tensors, config, fixed, source)
    expected = {name: row for row in rows(config, head) for name in their_names(row, config)}
    tensors = {name: x for name, x in tensors.items() if part_of(name, expected) not in drop}
    present = ({expected[name].part for name in tensors if name in expected} | set(REQUIRED_PARTS) | set(required)) - set(drop)
    missing = [name for name, row in expected.items() if row.part in present and name not in tensors]
    unused = [in_file.get(name, name) for name in tensors if name not in expected]
    misshapen = [
        f"{in_file.get(name, name)} {list(x.shape)} instead of {list(their_shape(expected[name], config, head))}"
        for name, x in tensors.items()
        if name in expected and x.shape != their_shape(expected[name], config, head)
    ]
    whole = [name for name, x in tensors.items() if name in expected and x.dtype.kind in "biuc"]
    quantised = [f"{in_file.get(name, name)} ({tensors[name].dtype})" for name in whole]
    if quantised:
        raise UserError(f"{source} holds no floating-point weights for {some_of(quantised)}; save the model unquantised")
    problems = {"missing": missing, "not part of this model": unused, "other shapes than config.json gives": misshapen}
    if any(problems.values()):
        listed = "; ".join(f"{what}: {some_of(names)}" for what, names in problems.items() if names)
        whole = sorted({expected[n].part for n in missing} - {expected[n].part for n in tensors if n in expected})
        remedy = f" (declare {' and '.join(whole)} as new for random weights)" if whole and not unused and not misshapen else ""
        if unused and not missing and not misshapen:
            remedy = f"; {drop_remedy(unused, [in_file.get(name, name) for name in expected])}"
        raise UserError(f"{source} does not hold the BERT that its config.json describes: {listed}{remedy}")
    flat: dict[str, np.ndarray] = {}
    for row in rows(config, head):
        if row.part in present:
            layers = [_to_ours(tensors[name], row, config, head) for name in their_names(row, config)]
            flat[row.ours] = np.stack(layers) if row.stacked else layers[0]
    check_finite(flat, f"{source} cannot be used: {{found}}; take an earlier state of this model, or copy it again")
    return unflatten_dict(flat, sep="/")


def _without_fixed_positions(
    tensors: dict[str, np.ndarray], config: ModelConfig, wanted: np.ndarray, source: str
) -> dict[str, np.ndarray]:
    """`tensors` without the position table. Raises UserError unless its rows are the `wanted` ones, in the precision of the
    file."""
    table = np.asarray(tensors.get(POSITIONS, ()))
    if table.shape != wanted.shape or not np.array_equal(table, wanted.astype(table.dtype)):
        raise UserError(
            f"{source}: {POSITIONS} is not the {config.positions} table of {counted(config.max_position, 'row')} that "
            'config.json names; if it was trained, remove "positions" under "bert_jax" in config.json'
        )
    return {name: x for name, x in tensors.items() if name != POSITIONS}


def part_of(name: str, expected: Mapping[str, Row]) -> str:
    """The part of our tree that a tensor of the other format belongs to, "" for none; for heads by the module's name alone."""
    if name in expected:
        return expected[name].part
    module = name.split(".")[0]
    if module in HEAD_PARTS:
        return module
    return next((f"{kind}_head" for kind, head in HEADS.items() if head.module == module), "")


_WORD_TABLE = re.compile(r"((?:[^.]+\.)*?)(bert\.)?embeddings\.word_embeddings\.weight")


def wrapper_of(names: Collection[str]) -> str:
    """The prefix of the names of a BERT's tensors in a file that was saved from a module around it, such as "module." of
    DistributedDataParallel and "_orig_mod." of torch.compile. Empty without one, and if there are several BERTs."""
    found = {match[1] for name in names if (match := _WORD_TABLE.fullmatch(name))}
    return found.pop() if len(found) == 1 else ""


def canonical_names(names: Collection[str], config: ModelConfig) -> dict[str, str]:
    """For each name in a file, the one of `BertForPreTraining`: without the prefix of a wrapper, with today's suffixes, and with
    the prefix of a plain encoder. The names of our own encoders stay."""
    if config.encoder != "transformer":
        return {name: name for name in names}
    wrapper = wrapper_of(names)
    inner = {name: name.removeprefix(wrapper) for name in names}
    bare = not any(name.startswith("bert.") for name in inner.values())
    modules = {*(head.module for head in HEADS.values() if head.module), *HEAD_PARTS}
    heads = ("cls.", *(f"{module}." for module in modules))
    for stored, name in inner.items():
        for old, new in OLD_ENDINGS.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        inner[stored] = f"bert.{name}" if bare and not name.startswith(heads) else name
    return inner


def canonical(tensors: Mapping[str, np.ndarray], config: ModelConfig, source: str) -> dict[str, np.ndarray]:
    """Renames tensors to `canonical_names`, and drops buffers and copies of tied tensors.

    Raises UserError for a copy that differs from its tied tensor, and for buffers with other values than transformers', which
    cannot be represented. In a model without `tied_decoder`, the decoder's weight is a separate tensor.
    """
    names, tied = canonical_names(tensors, config), config.tied_decoder
    in_file = {name: stored for stored, name in names.items()}
    renamed = {names[stored]: value for stored, value in tensors.items()}
    for copy, original in TIED.items():
        if copy in renamed and tied:
            value = renamed.pop(copy)
            if not np.array_equal(value, renamed.setdefault(original, value)):
                raise UserError(
                    f"{source}: {in_file[copy]} differs from {in_file.get(original, original)}, but config.json ties the two; "
                    "set tie_word_embeddings to false if they are separate"
                )
    if not tied and "cls.predictions.decoder.bias" in renamed:  # transformers uses this bias, and saves the other one unused
        renamed["cls.predictions.bias"] = renamed.pop("cls.predictions.decoder.bias")
    for buffer, (content, values) in BUFFERS.items():
        if buffer in renamed:
            found = renamed.pop(buffer).ravel()
            if not np.array_equal(found, values(found.size)):
                raise UserError(f"{source}: {in_file[buffer]} is not {content}, ...; other values cannot be represented")
    return renamed


def matching(names: Collection[str], pattern: str, source: str) -> list[str]:
    """The tensors, of all `names` in `source`, that `pattern` names: a name, or several with `*` as a wildcard. Raises UserError
    if there is none."""
    if matched := fnmatch.filter(names, pattern):
        return matched
    hint = nearest(pattern, [*PARTS, *names])
    if hint.startswith("known"):
        hint = f"its tensors are {some_of(names, 4)}"
    raise UserError(
        f"{pattern!r} cannot be dropped: neither a tensor of {source} nor a part: {hint}; parts are {', '.join(PARTS)}"
    )


def drop_remedy(unused: Collection[str], needed: Collection[str], mark: str = ".") -> str:
    """The remedy for `unused` tensors: a flag of `convert` with patterns that match them and none of the `needed` ones. `mark`
    separates the parts of a name."""
    patterns: dict[str, None] = {}
    for name in unused:
        parts = name.split(mark)
        prefixes = (mark.join([*parts[:n], ""]) for n in range(1, len(parts)))
        whole = next((prefix for prefix in prefixes if not any(other.startswith(prefix) for other in needed)), None)
        patterns[name if whole is None else f"{whole}*"] = None
    listed = ",".join(patterns) if len(patterns) <= 12 else "NAME,PATTERN"
    quoted = f"'{listed}'" if "*" in listed else listed
    return f"`convert --drop={quoted}` leaves {'it' if len(unused) == 1 else 'them'} out"


def reading_notes(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, head: TaskHead | None, drop: Collection[str]
) -> tuple[str, ...]:
    """Clauses for messages about tensors that `params_from_tensors` has renamed, converted or ignored."""
    expected = {name: row for row in rows(config, head) for name in their_names(row, config)}
    names = canonical_names(tensors, config)
    in_file = {name: stored for stored, name in names.items()}
    parts = {part_of(name, expected) for name in names.values()}
    old = [name for name in tensors if name.endswith(tuple(OLD_ENDINGS))]
    endings = [ending.lstrip(".") for ending in OLD_ENDINGS if any(name.endswith(ending) for name in old)]
    buffers = [stored for stored, name in names.items() if name in BUFFERS]
    copies = [name for name in TIED if name in in_file and config.tied_decoder]
    wrapper = wrapper_of(tensors) if config.encoder == "transformer" else ""
    narrow = sorted({str(x.dtype) for name, x in tensors.items() if x.dtype != np.float32 and name not in buffers})
    notes = [f"{part} was left out" for part in sorted(parts & set(drop))]
    notes += [f"renamed {counted(len(old), 'tensor')} that end in {' and '.join(endings)}"] if old else []
    notes += [f"names were read without {wrapper!r}, with which they begin"] if wrapper and wrapper != OWN_PREFIX else []
    notes += [f"{in_file[name]}, a copy of {in_file.get(TIED[name], TIED[name])}, was left out" for name in copies]
    notes += [f"{name}, which is no parameter, was left out" for name in buffers]
    notes += [f"weights in {' and '.join(narrow)} were converted to float32"] if narrow else []
    return tuple(notes)


def their_names(row: Row, config: ModelConfig) -> list[str]:
    """The names of a row's tensors in the other format, in the order of the layers."""
    return [row.theirs.format(n) for n in range(config.num_layers)] if row.stacked else [row.theirs]


def some_of(names: Collection[str], most: int = 12) -> str:
    """The first `most` of the `names`, and how many more there are."""
    return ", ".join(list(names)[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _groups(axes: str) -> list[list[str]]:
    """`"(H K) D"` -> `[["H", "K"], ["D"]]`."""
    return [(group or axis).split() for group, axis in re.findall(r"\(([^)]*)\)|(\S+)", axes)]


def _to_theirs(value: np.ndarray, row: Row, config: ModelConfig, head: TaskHead | None) -> np.ndarray:
    ours = row.our_axes.split()
    order = [ours.index(axis) for group in _groups(row.their_axes) for axis in group]
    if ours[:1] == ["V"]:
        value = value[: config.vocab_size]
    return np.asarray(value.transpose(order).reshape(their_shape(row, config, head)), order="C")


def _to_ours(tensor: np.ndarray, row: Row, config: ModelConfig, head: TaskHead | None) -> np.ndarray:
    sizes = axis_sizes(config, head)
    theirs = [axis for group in _groups(row.their_axes) for axis in group]
    order = [theirs.index(axis) for axis in row.our_axes.split()]
    with np.errstate(over="ignore"):  # a float64 value beyond float32's range becomes infinite, which is an error later
        value = np.asarray(tensor, np.float32)
    value = value.reshape([sizes[a] for a in theirs]).transpose(order)
    if row.our_axes.startswith("V"):
        value = np.pad(value, [(0, config.padded_vocab_size - config.vocab_size)] + [(0, 0)] * (value.ndim - 1))
    return value


def predecessor_axes(config: ModelConfig) -> dict[str, str]:
    """Path -> axes of every parameter of a biLM or static model, without the axis of the stacked layers.

    Letters: V vocabulary, A width of a word, B directions, G = 4 gates, F width of a cell, D and E width of a hidden state; the
    axes of the convolutions over characters are numbered.
    """
    axes = {"embeddings/word_embeddings/embedding": "V A"}
    if config.character_cnn:
        axes = {"embeddings/characters/symbols": "V bytes"}
        shapes = character_shapes(config.word_width)
        axes |= {f"embeddings/characters/{path}": " ".join(_numbered(shape)) for path, shape in shapes.items()}
    axes |= {"pooler/dense/kernel": "D E", "pooler/dense/bias": "E"}
    if config.encoder == "static":
        return axes | {"skip_gram_head/context_embeddings/embedding": "V A", "skip_gram_head/counts": "V"}
    axes |= {f"encoder/layers/{name}/kernel": "B A G F" for name in ("input", "recurrence")}
    axes |= {"encoder/layers/input/bias": "B G F"}
    axes |= {} if config.intermediate_size == config.word_width else {"encoder/layers/projection/kernel": "B F A"}
    return axes | {"softmax/bias": "V"} | ({} if config.tied_decoder else {"softmax/decoder": "V A"})


def predecessor_sizes(config: ModelConfig) -> dict[str, int]:
    """The sizes of the axes of `predecessor_axes` that BERT does not have."""
    if config.encoder == "transformer":
        return {}
    sizes = {"A": config.word_width, "B": config.hidden_size // config.word_width, "bytes": BYTES}
    if config.character_cnn:
        for shape in character_shapes(config.word_width).values():
            sizes |= _numbered(shape)
    return sizes


def _numbered(shape: tuple[int, ...]) -> dict[str, int]:
    """The name of each axis of `shape`, its number and size such as "1:256", with the size."""
    return {f"{n}:{size}": size for n, size in enumerate(shape)}
