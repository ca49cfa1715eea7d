from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from bert_jax.sharding.device_errors import OutOfMemory, is_device_error


@pytest.mark.parametrize(
    "error",
    [
        jax.errors.JaxRuntimeError("INTERNAL: Gloo failed"),
        OutOfMemory("this run does not fit in memory"),
        ValueError("UNKNOWN: Gloo AllGather failed: [pair.cc:547] Connection closed by peer [10.77.0.4]:44232"),
        ValueError("UNAVAILABLE: the slice has lost a host"),
    ],
)
def test_device_errors_are_recognised_even_if_jit_raises_a_value_error(error: Exception):
    assert is_device_error(error)


def test_errors_of_code_and_shapes_are_not_device_errors():
    with pytest.raises(TypeError) as of_shapes:
        jnp.zeros(2) + jnp.zeros(3)
    errors = [of_shapes.value, ValueError("the shapes differ"), ValueError("UNKNOWNS: two"), OSError("UNKNOWN: x"), None]
    assert not any(map(is_device_error, errors))
