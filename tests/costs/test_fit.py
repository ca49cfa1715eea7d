"""What would make a step fit: the search for the largest batch, and what counts as a program's memory."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.costs.compiling import DoesNotFit
from bert_jax.costs.fit import Size, Trial, first_that_fits, largest
from bert_jax.costs.hlo import parse
from bert_jax.costs.memory import local_bytes, memory_of, used_bytes
from bert_jax.terminal import UserError
from tests.costs.test_estimate import A, program


@pytest.mark.parametrize("most", [0, 1, 6, 10, 11, 254])
@pytest.mark.parametrize("known", [True, False])
def test_the_search_finds_the_largest_batch_that_fits(most: int, known: bool):
    tried: list[int] = []

    def measure(rows: int) -> tuple[bool, float]:
        tried.append(rows)
        return rows <= most, 100.0 + rows if known else 0.0

    found = largest(measure, Size(0, 100.0), Size(255, 355.0 if known else 0.0), 100.0 + most + 0.5)
    assert found.rows == most
    assert len(tried) == len(set(tried)) <= 8
    assert not known or len(tried) <= 3


def test_the_search_ends_where_bytes_do_not_grow_in_a_line():
    def used(rows: int) -> float:
        return 100.0 + rows**4 / 1e7

    found = largest(lambda rows: (rows <= 200, used(rows)), Size(0, used(0)), Size(255, used(255)), used(200) + 0.1)
    assert found.rows == 200


class Refusing:
    """A compiler to which a program is what it says of it."""

    def compile(self, lowered: Exception) -> None:
        raise lowered


def test_a_remedy_that_is_no_valid_experiment_or_does_not_fit_is_passed_over():
    trials = [Trial("a", lambda: UserError("no")), Trial("b", lambda: DoesNotFit(2, 1, "hbm"))]
    assert first_that_fits(Refusing(), trials) is None  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        first_that_fits(Refusing(), [Trial("c", ZeroDivisionError)])  # type: ignore[arg-type]


@dataclasses.dataclass
class Statistics:
    """As `jax.stages.Compiled.memory_analysis()` gives them."""

    argument_size_in_bytes: int = 10 * 2**20
    output_size_in_bytes: int = 9 * 2**20
    alias_size_in_bytes: int = 8 * 2**20
    temp_size_in_bytes: int = 5 * 2**20
    generated_code_size_in_bytes: int = 2**20
    peak_memory_in_bytes: int = 14 * 2**20


def test_donated_arguments_count_once_and_the_compilers_peak_before_the_sum_of_parts():
    assert used_bytes(Statistics()) == 15 * 2**20
    assert used_bytes(Statistics(peak_memory_in_bytes=0)) == (10 + 9 - 8 + 5 + 1) * 2**20


def test_memory_is_made_of_named_arguments_padding_temporaries_and_code():
    lines = (A, '%x = f32[1024,1024]{1,0:T(8,128)} negate(%a), metadata={op_name="jit(step)/jvp(M)/layers/neg"}',
             "ROOT %r = f32[1024,1024]{1,0:T(8,128)} add(%x, %a)")  # fmt: skip
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    split = NamedSharding(mesh, PartitionSpec("data"))
    batch = jax.ShapeDtypeStruct((8, 2**18), jnp.float32, sharding=split)
    assert local_bytes({"x": batch}) == 2 * 2**20
    found = memory_of(Statistics(), parse(program(*lines)), {"batch": {"x": batch}}, 16 * 2**20)
    assert found.arguments == {"batch": 2 * 2**20, "padding": 8 * 2**20}
    assert found.temporaries == {"activations": 4 * 2**20}
    assert (found.total, found.code, found.has) == (15 * 2**20, 2**20, 16 * 2**20)
