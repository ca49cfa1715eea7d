"""The recurrence of the LSTM, compared with PyTorch's and with a plain loop on single texts."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.lstm import Direction, batch_major, carried, recurrence, time_major

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "lstm_golden.npz"
ROUNDING = 64 * 2.0**-23
"""The tolerance relative to the largest number: float32 rounds each of at most 64 additions and multiplications in a row by up to
half of 2**-23."""


def torch_weights(golden, direction: int) -> dict[str, np.ndarray]:
    """Returns PyTorch's weights of a direction in our form: [inputs, outputs], one bias, without the 1 that we add to the forget
    gate."""
    end = "_reverse" if direction else ""
    of = {name: golden[f"{name}_l0{end}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    bias = of["bias_ih"] + of["bias_hh"] - np.repeat([0.0, 1.0, 0.0, 0.0], len(of["bias_ih"]) // 4).astype(np.float32)
    found = {"input": of["weight_ih"].T, "bias": bias, "kernel": of["weight_hh"].T}
    return found | ({"projection": golden[f"weight_hr_l0{end}"].T} if f"weight_hr_l0{end}" in golden else {})


@pytest.mark.parametrize("case", ["plain", "projected"])
def test_outputs_and_gradients_equal_torch_with_the_same_weights(case):
    with np.load(GOLDEN) as stored:
        golden = {name.removeprefix(f"{case}/"): stored[name] for name in stored.files if name.startswith(f"{case}/")}
    weights = [torch_weights(golden, n) for n in (0, 1)]
    keep = carried(jnp.ones(golden["x"].shape[:2], jnp.int32))

    def outputs(x, weights):
        directions = tuple(
            Direction(x[:: 1 - 2 * n] @ w["input"] + w["bias"][None, None], keep, w["kernel"], w.get("projection"))
            for n, w in enumerate(weights)
        )
        return jnp.concatenate([h[:: 1 - 2 * n] for n, h in enumerate(recurrence(directions))], axis=-1)

    h, pull = jax.vjp(jax.jit(outputs), golden["x"], weights)
    np.testing.assert_allclose(h, golden["h"], rtol=0, atol=1e-6)
    dx, dweights = pull(golden["seeds"])
    theirs = {name.removeprefix("grad_"): x for name, x in golden.items() if name.startswith("grad_")}
    np.testing.assert_allclose(dx, theirs["x"], rtol=0, atol=ROUNDING * np.abs(theirs["x"]).max())
    for n, mine in enumerate(dweights):
        their = torch_weights(theirs | {"weight_ih_l0": theirs["weight_ih_l0"]}, n)
        their["bias"] = theirs[f"bias_ih_l0{'_reverse' if n else ''}"]
        for name, gradient in mine.items():
            np.testing.assert_allclose(gradient, their[name], rtol=0, atol=ROUNDING * np.abs(their[name]).max(), err_msg=name)


@pytest.mark.parametrize("projected", [0, 4])
def test_values_and_gradients_of_packed_texts_equal_a_plain_loop(projected):
    rng = np.random.default_rng(0)
    length, rows, width = 9, 3, 5
    outputs = projected or width

    def random(*shape):
        return rng.standard_normal(shape, np.float32)

    inputs = [random(rows, length, 4 * width) for _ in (0, 1)]
    weights = [(0.4 * random(outputs, 4 * width), 0.4 * random(width, projected) if projected else None) for _ in (0, 1)]
    seeds = [random(rows, length, outputs) for _ in (0, 1)]
    ids = np.array([[1, 1, 1, 2, 2, 2, 2, 0, 0], [1] * 9, [1, 2, 2, 3, 3, 3, 3, 4, 4]], np.int32)

    def plain(inputs, weights):
        total = 0.0
        for n in (0, 1):
            kernel, projection = weights[n]
            h, c = jnp.zeros((rows, outputs)), jnp.zeros((rows, width))
            order = range(length) if n == 0 else range(length - 1, -1, -1)
            for t in order:
                starts = t == order[0] or jnp.asarray(ids[:, t] != ids[:, t - order.step])[:, None]
                h, c = jnp.where(starts, 0.0, h), jnp.where(starts, 0.0, c)
                i, f, g, o = jnp.split(inputs[n][:, t] + h @ kernel, 4, axis=-1)
                c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                h = h if projection is None else h @ projection
                total += (h * seeds[n][:, t]).sum()
        return total

    def ours(inputs, weights):
        directions = tuple(
            Direction(time_major(x, n), carried(time_major(jnp.asarray(ids), n)), *weights[n]) for n, x in enumerate(inputs)
        )
        return sum((batch_major(h, n) * seeds[n]).sum() for n, h in enumerate(recurrence(directions)))

    values, gradients = zip(*(jax.jit(jax.value_and_grad(f, (0, 1)))(inputs, weights) for f in (ours, plain)), strict=True)
    np.testing.assert_allclose(*values, rtol=0, atol=ROUNDING * np.linalg.norm(seeds))
    for mine, theirs in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=ROUNDING * np.abs(theirs).max())
