"""The optimizer state in a checkpoint of the original: it is recognised, ignored unless requested, and continued from."""

from __future__ import annotations

import pathlib
import shutil

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.tensor_bundle import read_bundle, shard_path
from bert_jax.interop.tensorflow import import_tf1
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.optimizers import bert_adam_moments, make_optimizer
from tests.interop.released import GOLDEN, assert_same_trees, rewrite
from tests.random_rows import boxed


@pytest.fixture
def golden(tmp_path) -> pathlib.Path:
    """Returns a copy of the run directory that TensorFlow wrote, to be damaged."""
    return pathlib.Path(shutil.copytree(GOLDEN, tmp_path / "golden"))


def test_optimizer_slots_are_trees_like_the_parameters():
    params, _, _, notes = import_tf1(GOLDEN, vocab_multiple=64, read_slots=True)
    assert_same_trees(notes.first_moments, jax.tree.map(lambda x: x / 4, params))
    assert_same_trees(notes.second_moments, jax.tree.map(lambda x: x * x, params))
    assert not any("slots" in message for message in notes.messages)


def test_our_optimizer_continues_from_the_slots():
    params, _, _, notes = import_tf1(GOLDEN, read_slots=True)
    state = make_optimizer(OptimizerConfig(), boxed(params)).init(params)[0]
    continued = state._replace(mu=notes.first_moments, nu=notes.second_moments, count=np.int32(notes.step))
    assert jax.tree.map(np.shape, continued) == jax.tree.map(np.shape, state)
    direction, _ = bert_adam_moments(0.9, 0.999, 1e-6).update(jax.tree.map(np.zeros_like, params), continued)
    bias = params["nsp_head"]["dense"]["bias"]
    step = 0.9 * bias / 4 / (np.sqrt(0.999 * bias * bias) + 1e-6)
    np.testing.assert_allclose(direction["nsp_head"]["dense"]["bias"], step, rtol=1e-6)


def test_slots_are_read_only_on_request(golden):
    bundle = read_bundle(golden / "model.ckpt-1000")
    entry = bundle.entries["bert/pooler/dense/kernel/adam_v"]
    with shard_path(golden / "model.ckpt-1000", 0, 1).open("r+b") as file:
        file.seek(entry.offset)
        file.write(b"spoilt")
    assert_same_trees(import_tf1(golden)[0], import_tf1(GOLDEN)[0])
    with pytest.raises(UserError, match="checksum of bert/pooler/dense/kernel/adam_v is wrong"):
        import_tf1(golden, read_slots=True)


@pytest.mark.parametrize("names", [("Adam", "Adam_1"), ("lamb_m", "lamb_v")])
def test_the_slots_of_other_optimizers_are_recognised(golden, names):
    def renamed(tensors):
        powers = {"beta1_power": np.float32(0.5), "beta2_power": np.float32(0.5)}
        return {name.replace("adam_m", names[0]).replace("adam_v", names[1]): x for name, x in tensors.items()} | powers

    rewrite(golden, renamed)
    params, _, _, notes = import_tf1(golden, read_slots=True)
    assert_same_trees(notes.second_moments, jax.tree.map(lambda x: x * x, params))


def test_untrained_parts_have_zero_moments_and_missing_slots_are_an_error(golden):
    rewrite(golden, lambda tensors: {n: x for n, x in tensors.items() if not n.startswith("bert/pooler/") or "adam" not in n})
    _, _, _, notes = import_tf1(golden, read_slots=True)
    assert not np.any(notes.first_moments["pooler"]["dense"]["kernel"])
    assert np.any(notes.first_moments["nsp_head"]["dense"]["kernel"])
    rewrite(golden, lambda tensors: {n: x for n, x in tensors.items() if n != "bert/embeddings/LayerNorm/beta/adam_m"})
    with pytest.raises(UserError, match="lacks slots, or has slots of wrong shapes: bert/embeddings/LayerNorm/beta/adam_m;"):
        import_tf1(golden, read_slots=True)
    import_tf1(golden)


def test_a_checkpoint_without_slots_or_step_cannot_be_continued(golden):
    rewrite(golden, lambda tensors: {name: x for name, x in tensors.items() if name != "global_step"})
    with pytest.raises(UserError, match="has no global_step, so its optimizer state cannot be used; import it without slots"):
        import_tf1(golden, read_slots=True)
    rewrite(golden, lambda tensors: {n: x for n, x in tensors.items() if "adam" not in n} | {"global_step": np.int64(3)})
    with pytest.raises(UserError, match=r"has no slots \(adam_m, Adam, lamb_m\)"):
        import_tf1(golden, read_slots=True)
    assert import_tf1(golden)[3].step == 3
