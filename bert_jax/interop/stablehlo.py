"""Exports a model's forward pass with its parameters as one StableHLO file, which runs without this package (`jax.export`).

- `forward.stablehlo`: the bytes of `jax.export`; `jax.export.deserialize(bytes).call(input_ids, attention_mask, token_type_ids)`
  takes int32 arrays [batch, length] and returns a dict of float32 arrays;
- `signature.json`: the inputs and outputs, the platforms, the labels, and an example of a call;
- the tokenizer's files.

An id outside of its embedding table results in NaN."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from bert_jax import __version__
from bert_jax.errors import UserError, nearest
from bert_jax.files import JsonObject, write_json
from bert_jax.interface.words import prefixed
from bert_jax.interop import FUNCTIONS, PLATFORMS
from bert_jax.interop.directory import OURS, replaced_when_complete
from bert_jax.interop.huggingface import Model
from bert_jax.interop.names import our_shapes
from bert_jax.model.bert import Bert
from bert_jax.model.heads.bert_with_head import BertWithHead
from bert_jax.model.kernels.dispatch import resolve
from bert_jax.model.layers import Array
from bert_jax.model.pretraining import pretraining_model
from bert_jax.model.tokens import Tokens

FORWARD, SIGNATURE = "forward.stablehlo", "signature.json"
INPUTS = {
    "input_ids": "ids of the vocabulary, [CLS] first",
    "attention_mask": "1 on tokens, 0 on padding",
    "token_type_ids": "0 on the first text, 1 on the second",
}
LARGEST = 2**31 - 2**24
"""The most bytes of parameters in a file. `jax.export` cannot write more than 2 GiB, of which the program itself needs some."""
HOW = """import jax, numpy
forward = jax.export.deserialize(open("forward.stablehlo", "rb").read())
outputs = forward.call(input_ids, attention_mask, token_type_ids)  # int32 numpy arrays [batch, length] -> a dict of arrays"""


def natural_function(model: Model) -> str:
    """Returns the default function of a model. The function is "labels" if the model has a task head, "pretraining" if it has
    only pretraining heads, and "encode" if it has no head."""
    if model.head is not None:
        return "labels"
    return "pretraining" if {"mlm_head", "softmax", "nsp_head"} & set(model.parts) else "encode"


def parts_used(model: Model, function: str) -> tuple[str, ...]:
    """Returns the parts that `function` uses in addition to embeddings and encoder. Raises UserError if the model lacks a part
    that the function needs."""
    if function not in FUNCTIONS:
        raise UserError(f"a model has no function {function!r}: {nearest(function, FUNCTIONS)}")
    heads = tuple(part for part in model.parts if part in ("mlm_head", "softmax", "nsp_head"))
    if function == "labels":
        if model.head is None:
            others = "pretraining or encode" if heads else "encode"
            raise UserError(f"this model has no task head, so it predicts no labels; choose the function {others}")
        if model.head.layout.read_positions:
            raise UserError(
                f"a {model.head.kind} head needs the positions of the mentions, but the exported function has no such input; "
                "choose the function encode"
            )
        if model.head.has_crf:
            raise UserError(
                "a CRF needs the positions of the words, but the exported function has no such input; choose the function encode"
            )
        return ("pooler", model.head.subtree) if model.head.has_pooler(model.config) else (model.head.subtree,)
    if function == "encode":
        return tuple(part for part in model.parts if part == "pooler")
    if not heads:
        others = "labels or encode" if model.head else "encode"
        raise UserError(f"this model has no pretraining head that predicts tokens; choose the function {others}")
    return ("pooler", *heads) if "nsp_head" in heads else heads


def export_stablehlo(
    directory: str | os.PathLike[str],
    model: Model,
    *,
    function: str | None = None,
    length: int | None = None,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    card: str = "",
) -> JsonObject:
    """Writes `model`'s forward pass and returns the content of `signature.json`. An older export is replaced when the new one is
    complete.

    `function` is one of FUNCTIONS. The default is `natural_function(model)`. The function can be called with any batch size. If
    `length` is given, texts must have this length. Otherwise, any length up to the size of the position table is possible. The
    function computes in float32. `card` is the text of the model card. Raises UserError if a part that the function uses was
    never trained, if a platform is unknown, if `length` exceeds the position table, or if the parameters exceed LARGEST."""
    function = function or natural_function(model)
    used = parts_used(model, function)
    untrained = [part for part in used if part in model.untrained]
    if untrained:
        raise UserError(
            f"{' and '.join(untrained)} was never trained, so the outputs are meaningless; train this part, or drop it"
        )
    limit = model.config.max_position
    if length is not None and not 1 <= length <= limit:
        raise UserError(f"length={length} must be between 1 and {limit:,}, the size of the position table")
    for platform in platforms:
        if platform not in PLATFORMS:
            raise UserError(f"there is no platform {platform!r}: {nearest(platform, PLATFORMS)}")
    with replaced_when_complete(pathlib.Path(directory), "stablehlo", card) as incomplete:  # a wrong directory is refused first
        exported = _exported(_forward(model, used, function), limit, length, platforms)
        signature = _signature(model, exported, function)
        (incomplete / FORWARD).write_bytes(exported.serialize())
        write_json(incomplete / SIGNATURE, signature)
        model.tokenizer.save(incomplete)
    return signature


def _exported(
    forward: Callable[..., dict[str, Array]], limit: int, length: int | None, platforms: Sequence[str]
) -> export.Exported:
    """Exports the function for any batch size, and for any length if `length` is None."""
    if length is None:
        shape = export.symbolic_shape("batch, length", constraints=[f"length <= {limit}"])
    else:
        shape = (*export.symbolic_shape("batch"), length)
    ids = jax.ShapeDtypeStruct(shape, jnp.int32)
    return export.export(jax.jit(forward), platforms=tuple(platforms))(*(ids for _ in INPUTS))


def _forward(model: Model, used: Sequence[str], function: str) -> Callable[[Array, Array, Array], dict[str, Array]]:
    """Returns the forward pass as a function with one int32 [B, L] argument for each of INPUTS. The function returns its
    outputs by name, and contains the parameters as constants. Outputs over the vocabulary have no padding."""
    config = dataclasses.replace(model.config, vocab_multiple=1, dtype="float32", scan_layers=True)
    shapes = our_shapes(config, model.head)

    def unpadded(path: tuple[jax.tree_util.DictKey, ...], x: np.ndarray) -> np.ndarray:
        return np.asarray(x[tuple(map(slice, shapes["/".join(key.key for key in path)]))], np.float32)

    kept = {part: tree for part, tree in model.params.items() if part in ("embeddings", "encoder", *used)}
    params = jax.tree_util.tree_map_with_path(unpadded, kept)
    if (size := sum(x.nbytes for x in jax.tree.leaves(params))) > LARGEST:
        raise UserError(
            f"the parameters take {prefixed(size, 'B')} in float32, but a StableHLO file holds at most {prefixed(LARGEST, 'B')}; "
            "choose another --format, or make the model smaller (--layers or --replace-vocab)"
        )
    config = resolve(config, jax.local_devices()[0])
    module: Bert = Bert(config)
    if function == "pretraining":
        module = pretraining_model(config)
    if function == "labels":
        assert model.head is not None
        module = BertWithHead(config, model.head)

    def named_outputs(bert: Any, input_ids: Array, attention_mask: Array, token_type_ids: Array) -> dict[str, Array]:
        positions = jax.lax.broadcasted_iota(jnp.int32, input_ids.shape, 1)
        first = jnp.zeros_like(input_ids[:, :1])  # the position of [CLS]
        batch = {"input_ids": input_ids, "token_type_ids": token_type_ids, "sequence_ids": attention_mask}
        batch |= {"position_ids": positions}
        if function == "labels":
            logits = bert(batch | {"cls_positions": first})["logits"]
            return {"logits": logits if bert.head.per_token else logits.squeeze(1)}
        last, _ = bert.encode(Tokens.of(batch))
        pooled = bert.pool(last, first) if "pooler" in used else None
        if function == "encode":
            return {"last_hidden_state": last} | ({} if pooled is None else {"pooled": pooled.squeeze(1)})
        outputs = {}
        if "mlm_head" in used:
            outputs["mlm_logits"] = bert.mlm_head(last, bert.embeddings.word_embeddings.embedding)
        if "softmax" in used:
            outputs["mlm_logits"] = bert.masked_logits(bert.predicting(Tokens.of(batch)), positions)
        if "nsp_head" in used:
            outputs["nsp_logits"] = bert.nsp_head(pooled).squeeze(1)
        return outputs

    apply = nn.apply(named_outputs, module)
    return lambda *inputs: apply({"params": jax.tree.map(jnp.asarray, params)}, *inputs)


def _signature(model: Model, exported: export.Exported, function: str) -> JsonObject:
    def described(array: jax.core.ShapedArray) -> JsonObject:
        return {"shape": [dim if isinstance(dim, int) else str(dim) for dim in array.shape], "dtype": str(array.dtype)}

    args, _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    outputs: Mapping[str, jax.core.ShapedArray] = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    return {
        "inputs": [{"name": name, **described(args[n]), "meaning": INPUTS[name]} for n, name in enumerate(INPUTS)],
        "outputs": {name: described(x) for name, x in outputs.items()},
        "function": function,
        "labels": list(model.head.labels) if function == "labels" and model.head else [],
        "longest": model.config.max_position,
        "platforms": list(exported.platforms),
        "how_to_call": HOW.splitlines(),
        "format": {"jax.export": exported.calling_convention_version, "jax": jax.__version__},
        OURS: {"version": __version__, "vocabulary_sha256": model.tokenizer.vocabulary.sha256},
    }
