"""Maps our parameter tree to the tensors of other programs, in both directions, using the table of the model's family
(`families/`).

Our arrays are stacked over layers and have a separate axis for heads. transformers has one matrix per layer in PyTorch's layout
[out, in]. Each row of a table has both names and both layouts. The layouts determine shapes, transposes, and how heads and
fused matrices are split. If a parameter is not in the family's table, e.g. in a head without a transformers class, its tensor
has our own name, with dots, and our own layout."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import math
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from bert_jax.errors import UserError, nearest
from bert_jax.interface.named import is_in_file
from bert_jax.interface.words import counted
from bert_jax.interop import PARTS
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.families.family import Family, Row, export_family
from bert_jax.interop.weights import check_finite
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads import HEAD_PARTS
from bert_jax.model.positions import fixed_table
from bert_jax.model.pretraining import NEVER_TRAINED, abstract_parameters
from bert_jax.objectives.model import unboxed

if TYPE_CHECKING:  # pretraining runs load no task heads
    from bert_jax.model.heads.head import TaskHead

OWN_PREFIX = "bert_jax."
"""The prefix of the tensor names of a Transformer that no class of transformers supports."""

REQUIRED_PARTS = ("embeddings", "encoder")


@functools.lru_cache(maxsize=64)
def rows(config: ModelConfig, head: TaskHead | None = None) -> tuple[Row, ...]:
    """Returns the rows of all parameters of a model with its pretraining heads and the task head. The first rows are the rows
    of the family's table that the model has. They are followed by rows with our own names and shapes."""
    family, parameters = export_family(config), _parameters(config, head)
    plain = head is not None and family.has_class_for(head)
    own = {head.subtree} if head is not None and not plain else set()
    table = [row for row in family.table if row.ours in parameters and row.subtree not in own]
    if is_in_file(config.encoder):  # the layers have their own names and shapes
        table = [row for row in table if row.subtree != "encoder"]
    if is_in_file(config.positions):  # an array with the name of BERT's table may have another shape
        sizes, shapes = axis_sizes(config, head), {path: x.shape for path, x in unboxed(parameters).items()}
        fits = {row.ours: tuple(_size(axis, sizes) for axis in row.our_axes.split()) == shapes[row.ours] for row in table}
        table = [row for row in table if fits[row.ours] or not row.ours.startswith("embeddings/position_embeddings/")]
    table = [row for row in table if row.when is None or row.when(config)]
    found: dict[str, Row] = {}
    taken: dict[tuple[str, tuple[int, int]], str] = {}
    for row in sorted(table, key=lambda row: row.subtree != "pooler") if plain else table:
        # ModernBERT's dense layers before the decoder and before a classifier have the same name
        if taken.setdefault((row.theirs, row.split), row.subtree) == row.subtree:
            found[row.ours] = row
    known = [found[row.ours] for row in table if row.ours in found]
    return (*known, *(_own_row(path, boxed, family, config) for path, boxed in parameters.items() if path not in found))


@functools.lru_cache(maxsize=64)
def _parameters(config: ModelConfig, head: TaskHead | None) -> dict[str, Any]:
    """Returns path -> boxed shape of every parameter, with stacked layers and padded vocabulary."""
    one_layer = dataclasses.replace(config, scan_layers=True) if config.has_attention else config  # tracing it is faster
    tree: dict[str, Any] = abstract_parameters(one_layer, next_sentence=config.kind.pools)
    if head is not None:
        from bert_jax.model.heads.bert_with_head import initial_label_parameters  # pretraining does not load it

        tree |= jax.eval_shape(lambda: initial_label_parameters(one_layer, head, jax.random.key(0)))
    return flatten_dict(tree, sep="/")


def _own_row(path: str, boxed: Any, family: Family, config: ModelConfig) -> Row:
    """Returns the row of a parameter with our own name and shape. A vocabulary axis is written as V, or as W in a decoder with
    its own vocabulary. Any other axis is written as INDEX:SIZE."""
    shape, names = unboxed({path: boxed})[path].shape, nn.get_partition_spec(boxed)
    if stacked := "/layers/" in path:
        shape, names = shape[1:], names[1:]
    words = [n for n, name in enumerate(names) if name == "vocab"] or ([0] if path in NEVER_TRAINED else [])
    letter = "W" if config.decoder_vocab_size and path.startswith(("decoder/", "lm_head/")) else "V"
    letters = " ".join(letter if n in words else f"{n}:{size}" for n, size in enumerate(shape))
    theirs = path.replace("softmax/", "mlm_head/")  # the name of the softmax in files
    theirs = theirs.replace("/layers/", ".layers.{}.") if stacked else theirs
    inside = path.split("/")[0] in (*REQUIRED_PARTS, "pooler")
    return Row(path, letters, (family.prefix if inside else "") + theirs.replace("/", "."), letters)


def axis_sizes(config: ModelConfig, head: TaskHead | None = None) -> dict[str, int]:
    """Returns axis letter -> its size in an exported file. In our arrays, V and W may be larger, since vocabularies are
    padded."""
    return {
        "V": config.vocab_size,
        "W": config.decoder_vocab_size or config.vocab_size,
        "S": config.max_position,
        "T": config.type_vocab_size,
        "D": config.hidden_size,
        "E": config.hidden_size,
        "H": config.num_heads,
        "G": config.key_value_heads,
        "K": config.head_width,
        "F": config.intermediate_size,
        "C": 2,
        "Y": 0 if head is None else head.num_outputs,
    }


def our_shapes(config: ModelConfig, head: TaskHead | None = None) -> dict[str, tuple[int, ...]]:
    """Returns path -> shape of every parameter of our tree, with stacked layers and padded vocabulary."""
    parameters = unboxed(_parameters(config, head))
    return {row.ours: parameters[row.ours].shape for row in rows(config, head)}


def their_shape(row: Row, config: ModelConfig, head: TaskHead | None = None) -> tuple[int, ...]:
    """Returns the shape of the tensor in the other format that contains `row`, for a model with this `config` and `head`."""
    first, *others = _part_shape(row, config, head) or (None,)
    return () if first is None else (first * row.split[1], *others)


def _part_shape(row: Row, config: ModelConfig, head: TaskHead | None) -> tuple[int, ...]:
    """Returns the shape of only `row`, flattened as in the other format."""
    sizes = axis_sizes(config, head)
    return tuple(math.prod(_size(axis, sizes) for axis in group) for group in _groups(row.their_axes))


def _size(axis: str, sizes: Mapping[str, int]) -> int:
    """Returns the size of an axis, which is written as a letter (a key of `sizes`) or as INDEX:SIZE."""
    return int(axis.partition(":")[2]) if ":" in axis else sizes[axis]


def tensors_from_params(
    params: Mapping[str, PyTree[np.ndarray]], config: ModelConfig, head: TaskHead | None = None
) -> dict[str, np.ndarray]:
    """Converts our parameter tree (or a tree of gradients) to float32 tensors, by their names in the other format. The padding
    rows of the vocabulary are removed. If the model does not learn a position table, the fixed table is added.

    `params` may lack whole parts (as in a model without the NSP head), but not single parameters. Raises a ValueError that
    lists missing parameters, unknown parameters and wrong shapes. They are bugs, not mistakes of a user."""
    flat = flatten_dict(params, sep="/")
    table, shapes = rows(config, head), our_shapes(config, head)
    present = {path.split("/")[0] for path in flat} | set(REQUIRED_PARTS)
    problems = [f"missing {row.ours}" for row in table if row.subtree in present and row.ours not in flat]
    problems += [f"unknown {path}" for path in flat if path not in shapes]
    problems += [
        f"{path} is {list(np.shape(x))}, expected {list(shapes[path])}"
        for path, x in flat.items()
        if path in shapes and np.shape(x) != shapes[path]
    ]
    if problems:
        raise ValueError("parameters do not fit the model configuration: " + "; ".join(problems))
    pieces: dict[str, dict[int, np.ndarray]] = {}
    for row in table:
        if row.ours in flat:
            value = np.asarray(flat[row.ours], np.float32)
            layers = value[row.first :] if row.stacked else value[None]
            for n, name in enumerate(their_names(row, config)):
                pieces.setdefault(name, {})[row.split[0]] = _to_theirs(layers[n], row, config, head)
    tensors = {name: np.concatenate([x[i] for i in sorted(x)]) if len(x) > 1 else x[0] for name, x in pieces.items()}
    if (fixed := fixed_table(config)) is not None and (table_name := export_family(config).position_table):
        tensors[table_name] = fixed
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

    The pooler and the heads may be missing as a whole, unless they are `required`. The parts in `drop` are left out. Raises a
    UserError that names `source` if other tensors are missing, unexpected, of a different shape or integers, or if values are
    not finite. The error lists the tensors by their names in `tensors`."""
    in_file = {name: stored for stored, name in canonical_names(tensors, config).items()}
    tensors = canonical(tensors, config, source)
    if (fixed := fixed_table(config)) is not None and export_family(config).position_table:
        tensors = _without_fixed_positions(tensors, config, fixed, source)
    expected = _expected(config, head)
    tensors = {name: x for name, x in tensors.items() if find_subtree(name, expected) not in drop}
    there = {expected[name].subtree for name in tensors if name in expected}
    for name in export_family(config).omitted:
        if name in expected and expected[name].subtree in there:
            tensors.setdefault(name, np.zeros(their_shape(expected[name], config, head), np.float32))
    present = ({expected[name].subtree for name in tensors if name in expected} | set(REQUIRED_PARTS) | set(required)) - set(drop)
    missing = [name for name, row in expected.items() if row.subtree in present and name not in tensors]
    unused = [in_file.get(name, name) for name in tensors if name not in expected]
    misshapen = [
        f"{in_file.get(name, name)} {list(x.shape)} instead of {list(their_shape(expected[name], config, head))}"
        for name, x in tensors.items()
        if name in expected and x.shape != their_shape(expected[name], config, head)
    ]
    whole = [name for name, x in tensors.items() if name in expected and x.dtype.kind in "biuc"]
    quantised = [f"{in_file.get(name, name)} ({tensors[name].dtype})" for name in whole]
    if quantised:
        raise UserError(f"{source} has integer weights for {list_some(quantised)}; save the model without quantisation")
    problems = {"missing": missing, "not part of this model": unused, "other shapes than in config.json": misshapen}
    if any(problems.values()):
        listed = "; ".join(f"{what}: {list_some(names)}" for what, names in problems.items() if names)
        whole = sorted({expected[n].subtree for n in missing} - {expected[n].subtree for n in tensors if n in expected})
        remedy = f" (for random weights, declare {' and '.join(whole)} as new)" if whole and not unused and not misshapen else ""
        if unused and not missing and not misshapen:
            remedy = f"; {drop_remedy(unused, [in_file.get(name, name) for name in expected])}"
        raise UserError(f"{source} does not contain the BERT that its config.json describes: {listed}{remedy}")
    flat: dict[str, np.ndarray] = {}
    for row in rows(config, head):
        if row.subtree in present:
            layers = [_to_ours(tensors[name], row, config, head) for name in their_names(row, config)]
            if row.first:  # the first layers lack the parameter, and the model does not read the values in their entries
                blank = np.full(_part_shape(row, config, head), row.ours.endswith("/scale"), np.float32)
                layers = [blank] * row.first + layers
            flat[row.ours] = np.stack(layers) if row.stacked else layers[0]
    check_finite(flat, f"{source} cannot be used because of {{found}}; use an earlier state of the model, or copy it again")
    # the head is then a tied decoder without bias
    without = {"mlm_head"} & present - {row.subtree for row in rows(config, head)}
    return {**unflatten_dict(flat, sep="/"), **{part: {} for part in without}}


def _without_fixed_positions(
    tensors: dict[str, np.ndarray], config: ModelConfig, wanted: np.ndarray, source: str
) -> dict[str, np.ndarray]:
    """Removes the position table from `tensors`. Raises UserError unless the table equals `wanted` in the file's precision."""
    name = export_family(config).position_table
    table = np.asarray(tensors.get(name, ()))
    if table.shape != wanted.shape or not np.array_equal(table, wanted.astype(table.dtype)):
        raise UserError(
            f"{source}: {name} is not the {config.positions} table of {counted(config.max_position, 'row')} that "
            'config.json names; if it was trained, remove "positions" under "bert_jax" in config.json'
        )
    return {other: x for other, x in tensors.items() if other != name}


def _expected(config: ModelConfig, head: TaskHead | None) -> dict[str, Row]:
    """Returns tensor name -> its row. A tensor that consists of several parts has a row for each part. In this case, the first
    row is returned."""
    expected: dict[str, Row] = {}
    for row in rows(config, head):
        for name in their_names(row, config):
            expected.setdefault(name, row)
    return expected


def find_subtree(name: str, expected: Mapping[str, Row]) -> str:
    """Returns the subtree of our parameters to which a tensor of the other format belongs, or "" if it belongs to none. A
    tensor of a head is recognised by the name of its module alone."""
    if name in expected:
        return expected[name].subtree
    module = name.split(".")[0]
    if module in HEAD_PARTS:
        return module
    return next((row.subtree for row in BERT.table if row.subtree in HEAD_PARTS and row.theirs.startswith(f"{module}.")), "")


def wrapper_prefix(names: Collection[str], family: Family) -> str:
    """Returns the prefix that a wrapper module has added to the names of the tensors in a file, such as "module."
    (DistributedDataParallel) and "_orig_mod." (torch.compile). Returns "" if there is no prefix, or if the file has several
    models."""
    table, prefix = family.word_table, family.prefix
    pattern = rf"((?:[^.]+\.)*?)({re.escape(prefix)})?{re.escape(table.removeprefix(prefix))}"
    found = {match[1] for name in names if (match := re.fullmatch(pattern, name))} if table else set()
    return found.pop() if len(found) == 1 else ""


def canonical_names(names: Collection[str], config: ModelConfig) -> dict[str, str]:
    """Returns the name of a tensor in a file -> its name in the family's table. The prefix of a wrapper is removed, and old
    suffixes are replaced by the current suffixes. The names in the file of a plain encoder lack the family's prefix, so it is
    added. The names of our own encoders are not changed."""
    family = export_family(config)
    if not family.table:
        return {name: name for name in names}
    wrapper, prefix = wrapper_prefix(names, family), family.prefix
    inner = {name: name.removeprefix(wrapper) for name in names}
    bare = not any(name.startswith(prefix) for name in inner.values())
    heads = tuple(f"{module}." for module in (*family.modules, *(part for part in PARTS if part != "pooler")))
    for stored, name in inner.items():
        for old, new in family.renamed.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        inner[stored] = f"{prefix}{name}" if bare and not name.startswith(heads) else name
    return inner


def canonical(tensors: Mapping[str, np.ndarray], config: ModelConfig, source: str) -> dict[str, np.ndarray]:
    """Renames tensors to `canonical_names`, and drops buffers and copies of tied tensors.

    Raises UserError if a copy differs from its tied tensor. In a model without `tied_decoder`, the decoder's weight is not a
    copy. Also raises UserError if a buffer has other values than in transformers, since no other values are supported. Rounding
    differences are allowed, since numpy versions differ in the last digits."""
    family, names, tied = export_family(config), canonical_names(tensors, config), config.tied_decoder
    in_file = {name: stored for stored, name in names.items()}
    renamed = {names[stored]: value for stored, value in tensors.items()}
    for copy, original in family.copies(config).items():
        if copy in renamed:
            value = renamed.pop(copy)
            if not np.array_equal(value, renamed.setdefault(original, value)):
                raise UserError(
                    f"{source}: {in_file[copy]} differs from {in_file.get(original, original)}, but config.json ties the two; "
                    "if they are separate tensors, set tie_word_embeddings to false"
                )
    bias, read = family.untied_bias
    if not tied and read in renamed:  # transformers uses this bias; it also saves the other bias, but does not use it
        renamed[bias] = renamed.pop(read)
    for buffer, (content, values) in family.buffers.items():
        if buffer in renamed:
            found = renamed.pop(buffer).ravel()
            wanted = values(found.size, config)
            rounding = 0.0 if found.dtype.kind in "iu" else 4 * float(jnp.finfo(found.dtype).eps)
            if found.shape != wanted.shape or not np.allclose(found.astype(np.float64), wanted, rtol=0, atol=rounding):
                raise UserError(f"{source}: {in_file[buffer]} must be {content}, ...; other values cannot be represented")
    return renamed


def matching(names: Collection[str], pattern: str, source: str) -> list[str]:
    """Returns the tensors among `names` that match `pattern`, a name in which `*` is a wildcard. Raises UserError if no tensor
    matches."""
    if matched := fnmatch.filter(names, pattern):
        return matched
    hint = nearest(pattern, [*PARTS, *names])
    if hint.startswith("known"):
        hint = f"the tensors are {list_some(names, 4)}"
    raise UserError(
        f"{pattern!r} cannot be dropped, because it is neither a tensor of {source} nor a part; {hint} (parts: "
        f"{', '.join(PARTS)})"
    )


def drop_remedy(unused: Collection[str], needed: Collection[str], mark: str = ".") -> str:
    """Returns the remedy for `unused` tensors. It is a `convert` flag with patterns that match these tensors but no tensor in
    `needed`. `mark` separates the parts of a name."""
    patterns: dict[str, None] = {}
    for name in unused:
        parts = name.split(mark)
        prefixes = (mark.join([*parts[:n], ""]) for n in range(1, len(parts)))
        whole = next((prefix for prefix in prefixes if not any(other.startswith(prefix) for other in needed)), None)
        patterns[name if whole is None else f"{whole}*"] = None
    listed = ",".join(patterns) if len(patterns) <= 12 else "NAME,PATTERN"
    quoted = f"'{listed}'" if "*" in listed else listed
    return f"to leave {'it' if len(unused) == 1 else 'them'} out, use `convert --drop={quoted}`"


def reading_notes(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, head: TaskHead | None, drop: Collection[str]
) -> tuple[str, ...]:
    """Returns clauses for messages about tensors that `params_from_tensors` has renamed, converted or ignored."""
    family, expected = export_family(config), _expected(config, head)
    names = canonical_names(tensors, config)
    in_file = {name: stored for stored, name in names.items()}
    parts = {find_subtree(name, expected) for name in names.values()}
    old = [name for name in tensors if name.endswith(tuple(family.renamed))]
    endings = [ending.lstrip(".") for ending in family.renamed if any(name.endswith(ending) for name in old)]
    buffers = [stored for stored, name in names.items() if name in family.buffers]
    tied = family.copies(config)
    copies = [name for name in tied if name in in_file]
    wrapper = wrapper_prefix(tensors, family)
    narrow = sorted({str(x.dtype) for name, x in tensors.items() if x.dtype != np.float32 and name not in buffers})
    notes = [f"{part} was left out" for part in sorted(parts & set(drop))]
    notes += [f"renamed {counted(len(old), 'tensor')} that end in {' and '.join(endings)}"] if old else []
    notes += [f"the prefix {wrapper!r} was removed from names"] if wrapper and wrapper != OWN_PREFIX else []
    notes += [f"{in_file[name]}, a copy of {in_file.get(tied[name], tied[name])}, was left out" for name in copies]
    notes += [f"{name}, which is not a parameter, was left out" for name in buffers]
    notes += [f"weights in {' and '.join(narrow)} were converted to float32"] if narrow else []
    return tuple(notes)


def their_names(row: Row, config: ModelConfig) -> list[str]:
    """Returns the names of a row's tensors in the other format, in the order of the layers."""
    layers = config.decoder_layers if row.subtree == "decoder" else config.num_layers
    return [row.theirs.format(n) for n in range(row.first, layers)] if row.stacked else [row.theirs]


def list_some(names: Collection[str], most: int = 12) -> str:
    """Returns a text with the first `most` names and the count of the remaining names."""
    return ", ".join(list(names)[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _groups(axes: str) -> list[list[str]]:
    """Parses axis letters: `"(H K) D"` -> `[["H", "K"], ["D"]]`."""
    return [(group or axis).split() for group, axis in re.findall(r"\(([^)]*)\)|(\S+)", axes)]


def _to_theirs(value: np.ndarray, row: Row, config: ModelConfig, head: TaskHead | None) -> np.ndarray:
    ours = row.our_axes.split()
    order = [ours.index(axis) for group in _groups(row.their_axes) for axis in group if axis in ours]
    if row.our_axes.startswith(("V", "W")):  # without the rows that pad a vocabulary
        value = value[: axis_sizes(config)[ours[0]]]
    return np.asarray(value.transpose(order).reshape(_part_shape(row, config, head)), order="C")


def _to_ours(tensor: np.ndarray, row: Row, config: ModelConfig, head: TaskHead | None) -> np.ndarray:
    sizes = axis_sizes(config, head)
    theirs = [axis for group in _groups(row.their_axes) for axis in group if axis in row.our_axes.split()]
    order = [theirs.index(axis) for axis in row.our_axes.split()]
    with np.errstate(over="ignore"):  # a float64 value beyond the range of float32 becomes infinite, which is reported later
        value = np.asarray(tensor, np.float32)
    value = np.split(value, row.split[1])[row.split[0]] if row.split[1] > 1 else value
    value = value.reshape([_size(axis, sizes) for axis in theirs]).transpose(order)
    if row.our_axes.startswith(("V", "W")):
        words = config.decoder_config if row.our_axes.startswith("W") else config
        value = np.pad(value, [(0, words.padded_vocab_size - words.vocab_size)] + [(0, 0)] * (value.ndim - 1))
    return value


