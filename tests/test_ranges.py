"""Every number that a person can set has a range; a value outside of it is refused with a sentence that names the range."""

from __future__ import annotations

import pytest
from annotated_types import Interval

from bert_jax.ranges import COUNT, InRange, described
from bert_jax.terminal import FlagParser, UserError

# ------------------------------------------------------------------------------------------------------------------------- flags


def parser() -> FlagParser:
    made = FlagParser(prog="verb")
    made.add_argument("--top-k", type=InRange(int, Interval(ge=1, le=9)), default=5)
    made.add_argument("--price", type=InRange(float, Interval(ge=0)))
    made.add_argument("--margin", type=InRange(float, Interval()))
    made.add_argument("--source", action="append", default=[])
    made.add_argument("--words", action="store_true")
    made.add_argument("texts", nargs="*")
    return made


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--top-k=0", "--top-k=0 must be at least 1 and at most 9; see verb --help"),
        ("--top-k=10", "--top-k=10 must be at least 1 and at most 9"),
        ("--top-k=", "--top-k= must be a whole number, at least 1 and at most 9"),
        ("--top-k=1.5", "--top-k=1.5 must be a whole number, at least 1"),
        ("--top-k=10000000000000", "--top-k=10000000000000 must be at least 1 and at most 9"),
        ("--price=-1", "--price=-1 must be at least 0"),
        ("--price=nan", "--price=nan must be a finite number, at least 0"),
        ("--price=inf", "--price=inf must be a finite number, at least 0"),
        ("--margin=-inf", "--margin=-inf must be a finite number; see"),
        ("--margin=wide", "--margin=wide must be a number; see"),
    ],
)
def test_a_flag_outside_its_range_is_refused_with_the_range(argument: str, says: str):
    with pytest.raises(UserError) as error:
        parser().parse_args([argument])
    assert str(error.value).startswith(says)


def test_a_flag_inside_its_range_is_taken():
    assert parser().parse_args(["--top-k=9", "--price=0", "--margin=-1e3"]).top_k == 9


@pytest.mark.parametrize("given", [["--top-k=1", "--top-k=2"], ["--top-k", "1", "a text", "--top-k=2"]])
def test_a_flag_given_twice_with_different_values_is_refused(given: list[str]):
    with pytest.raises(UserError, match=r"^--top-k=1 and --top-k=2 contradict each other; give one of them$"):
        parser().parse_args(given)


def test_a_flag_may_be_given_twice_alike_and_one_that_collects_with_different_values():
    flags = parser().parse_args(["--top-k=1", "--top-k=1", "--source=a", "--source=b", "--words", "--words", "--", "--top-k=2"])
    assert (flags.top_k, flags.source, flags.texts) == (1, ["a", "b"], ["--top-k=2"])


def test_a_range_reads_as_a_person_would_say_it():
    assert described(COUNT) == "at least 1 and at most 2,147,483,647"
    assert described(Interval(gt=0, lt=0.5)) == "above 0 and below 0.5"
    assert described(Interval()) == ""
