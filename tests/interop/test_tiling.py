"""A larger model starts as the tiling of a smaller one: every number is at the position where the published code puts it."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model, export_model, import_model
from bert_jax.interop.tiling import layer_sources, tiled
from bert_jax.model.config import ModelConfig, modern_block, published
from tests.interop.tiny import as_model, make_model, make_vocabulary

MODERN = ("full", "sliding", "sliding", "full", "sliding", "sliding", "full")
SMALL: dict[str, Any] = {
    **modern_block(4, radius=3), "num_layers": 4, "hidden_size": 24, "num_heads": 3, "intermediate_size": 20,
}  # fmt: skip
LARGE: dict[str, Any] = {
    "num_layers": 7, "hidden_size": 40, "num_heads": 5, "intermediate_size": 37, "layer_types": MODERN,
}  # fmt: skip


def made(vocabulary: pathlib.Path, **fields: Any) -> Model:
    return as_model(*make_model(vocabulary, **{"vocab_multiple": 1, **fields}), vocabulary)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return make_vocabulary(tmp_path_factory.mktemp("tiling") / "vocabulary", cased=True)


def grown(model: Model, directory: pathlib.Path, **sizes: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the tensors in the files of a model and of its tiling."""
    export_model(directory / "small", model)
    wanted = dataclasses.replace(model.config, **sizes)
    export_model(directory / "large", tiled(import_model(directory / "small"), wanted))
    found = import_model(directory / "large")
    assert all(getattr(found.config, name) == size for name, size in sizes.items())
    return tuple(load_file(directory / name / "model.safetensors") for name in ("small", "large"))


def middle(old: np.ndarray, new: int, block: int = 1, offset: int | None = None) -> np.ndarray:
    """Returns an array whose first axis is extended by the published loops, in whole blocks of this size: the old array in the
    middle, its end before it, its beginning after it, and so on."""
    small, large = len(old) // block, new // block
    start = (large - small) // 2 if offset is None else offset
    rows: list[Any] = [None] * large
    for i in range(small):
        rows[start + i] = i
    for i in range(start):
        rows[start - 1 - i] = small - 1 - (i % small)
    for i in range(start + small, large):
        rows[i] = (i - start) % small
    return np.concatenate([old[row * block : (row + 1) * block] for row in rows])


def both(old: np.ndarray, rows: int, columns: int) -> np.ndarray:
    return middle(middle(old, rows).T, columns).T


def source_layer(layer: int, small: int, large: int) -> int:
    return min(round(layer * small / large), small - 1)


def layer_of(name: str) -> int | None:
    found = re.search(r"layers?\.(\d+)\.", name)
    return int(found[1]) if found else None


def test_modernbert_tensors_are_tiled_as_in_the_published_code(vocabulary, tmp_path):
    small, large = grown(made(vocabulary, **SMALL), tmp_path, **LARGE)
    words = small["model.embeddings.tok_embeddings.weight"].shape[0]
    parts = {"Wqkv": 3, "Wi": 2}  # the number of parts of each fused matrix
    checked = 0
    for name, value in large.items():
        layer = layer_of(name)
        old_name = name if layer is None else name.replace(f".{layer}.", f".{source_layer(layer, 4, 7)}.")
        if layer and "attn_norm" in name and old_name not in small:
            np.testing.assert_array_equal(value, np.ones(40, np.float32))
            continue
        old = small[old_name]
        if len(old) == words:  # the vocabulary stays
            expected = old if old.ndim == 1 else middle(old.T, value.shape[1]).T
        else:
            pieces = np.split(old, parts.get(name.split(".")[-2], 1))
            size = len(value) // len(pieces)
            expected = np.concatenate([middle(x, size) if x.ndim == 1 else both(x, size, value.shape[1]) for x in pieces])
        np.testing.assert_array_equal(value, expected, err_msg=name)
        checked += 1
    assert checked == len(large) > 40


def test_heads_are_tiled_as_wholes_for_odd_differences(vocabulary, tmp_path):
    small, large = grown(made(vocabulary, **SMALL), tmp_path, **LARGE | {"num_heads": 6, "hidden_size": 48})
    for n, part in enumerate(np.split(large["model.layers.0.attn.Wqkv.weight"], 3)):
        old = np.split(small["model.layers.0.attn.Wqkv.weight"], 3)[n]
        np.testing.assert_array_equal(part, middle(middle(old, 48, block=8).T, 48).T)
    old = small["model.layers.0.attn.Wo.weight"]
    np.testing.assert_array_equal(large["model.layers.0.attn.Wo.weight"], middle(middle(old, 48).T, 48, block=8).T)


def test_heads_that_share_keys_still_share_them_after_tiling(vocabulary, tmp_path):
    euro: dict[str, Any] = {**published("eurobert-210m"), "num_layers": 2, "intermediate_size": 20, "max_position": 40}
    del euro["vocab_size"]
    model = made(vocabulary, **euro | {"hidden_size": 24, "num_heads": 4, "num_key_value_heads": 2})
    sizes = {"num_layers": 5, "hidden_size": 60, "num_heads": 10, "num_key_value_heads": 5, "intermediate_size": 21}
    small, large = grown(model, tmp_path, **sizes)
    for layer in range(5):
        old, new = (f"model.layers.{n}.self_attn" for n in (min(round(layer * 2 / 5), 1), layer))
        for name, heads, first in (("k_proj", 5, 1), ("v_proj", 5, 1), ("q_proj", 10, 2)):
            expected = middle(middle(small[f"{old}.{name}.weight"], heads * 6, block=6, offset=first).T, 60).T
            np.testing.assert_array_equal(large[f"{new}.{name}.weight"], expected)
        expected = middle(middle(small[f"{old}.o_proj.weight"], 60).T, 60, block=6, offset=2).T
        np.testing.assert_array_equal(large[f"{new}.o_proj.weight"], expected)
    old_queries = [h // 2 for h in range(4)]  # the small model's key head of each query head
    rows = middle(np.arange(4), 10, offset=2)
    assert [old_queries[h] for h in rows] == [list(middle(np.arange(2), 5, offset=1))[h // 2] for h in range(10)]


def test_every_part_of_a_bert_is_tiled(vocabulary, tmp_path):
    model = made(vocabulary)
    small, large = grown(model, tmp_path, num_layers=3, hidden_size=28, num_heads=7, intermediate_size=24)
    types = "bert.embeddings.token_type_embeddings.weight"
    np.testing.assert_array_equal(large[types], middle(small[types].T, 28).T)
    for name in ("bert.pooler.dense.weight", "cls.predictions.transform.dense.weight"):
        np.testing.assert_array_equal(large[name], both(small[name], 28, 28))
    next_sentence = "cls.seq_relationship.weight"
    np.testing.assert_array_equal(large[next_sentence], middle(small[next_sentence].T, 28).T)
    np.testing.assert_array_equal(large["cls.predictions.bias"], small["cls.predictions.bias"])
    bias = "bert.encoder.layer.{}.attention.self.query.bias"
    np.testing.assert_array_equal(large[bias.format(2)], middle(small[bias.format(1)], 28, block=4))


def test_layers_are_repeated_in_the_published_order():
    assert layer_sources(22, 28).tolist() == [round(i * 22 / 28) for i in range(28)]
    assert layer_sources(22, 28)[:9].tolist() == [0, 1, 2, 2, 3, 4, 5, 6, 6]
    assert layer_sources(4, 4).tolist() == [0, 1, 2, 3]
    assert layer_sources(2, 5).tolist() == [0, 0, 1, 1, 1]  # the formula gives layer 2 for the last one


def test_tiling_to_the_same_sizes_changes_nothing(vocabulary, tmp_path):
    small, large = grown(made(vocabulary, **SMALL), tmp_path)
    assert small.keys() == large.keys()
    assert all(np.array_equal(small[name], large[name]) for name in small)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": 16, "num_heads": 2}, r"config\.model\.hidden_size=16 is smaller than the 24 of m, .* set at least 24"),
        ({"num_layers": 2, "layer_types": MODERN[:2]}, r"num_layers=2 is smaller than the 4 of m, .*convert --keep-layers"),
        ({"num_heads": 4, "hidden_size": 48}, r"are 12 wide, but .* of m are 8 wide\. .*; set config\.model\.num_heads=6$"),
        (
            {"num_heads": 3, "hidden_size": 30},
            r"are 10 wide, but the heads of m are 8 wide\. .*; set another "
            r"config\.model\.hidden_size$",
        ),
        (
            {"num_heads": 6, "hidden_size": 48, "num_key_value_heads": 3},
            r"num_key_value_heads=3 lets 2 query heads share a key head, but in m the number is 1; set it to 6$",
        ),
        (
            {"layer_types": ()},
            r"m has sliding layers, but config\.model has none; in .*layer_types, .* of 4 layers as in m",
        ),
    ],
)
def test_models_that_cannot_be_tiled_are_refused(vocabulary, changes: dict[str, Any], said: str):
    model = dataclasses.replace(made(vocabulary, **SMALL), source="m")
    with pytest.raises(UserError, match=said):
        tiled(model, dataclasses.replace(model.config, **changes))


def test_only_transformers_are_tiled(vocabulary):
    model = dataclasses.replace(made(vocabulary, **SMALL), source="m")
    lstm = ModelConfig(encoder="bilm", hidden_size=48, num_layers=7)
    with pytest.raises(UserError, match=r"but config\.model has the encoder bilm; leave config\.init_tiled out"):
        tiled(model, lstm)
