"""Mask policies in users' files: what a policy is given, and which of its positions are predicted."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from bert_jax.data import masking
from bert_jax.data.config import ExampleConfig
from bert_jax.data.masking import UNUSED, Examples, MaskingTables, choose
from bert_jax.errors import UserError

PIECES = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "the", "##re", "cat", "##s", "a", "\u2581b")
IDS = np.array([[1, 4, 5, 6, 7, 3, 8, 2, 0, 0], [1, 3, 2, 0, 0, 0, 0, 0, 0, 0]])
TABLES = MaskingTables(
    mask_id=9,
    legal_ids=np.array([4], np.int32),
    continuation=np.array([piece.startswith("##") for piece in PIECES]),
    pieces=PIECES,
    spell=lambda ids: "".join(PIECES[i] for i in ids),
)
KEYS = np.array([[5], [6]], np.uint64)
REVERSED = "[position for word in reversed(example.words) for position in word]"


def policy(directory: pathlib.Path, returns: str, arguments: str = "example, rate, rng") -> str:
    """Writes a policy that remembers its arguments in `SEEN`, and returns its name."""
    remembers = "SEEN.append((example, rate, rng.integers(10**9)))"
    (directory / "policy.py").write_text(f"SEEN = []\ndef mine({arguments}):\n    {remembers}\n    return {returns}\n")
    return f"{directory}/policy.py:mine"


def chosen(name: str, **changes: object) -> list[list[int]]:
    """Returns the positions that the policy chooses in the two examples, without unused ones."""
    config = ExampleConfig(**({"length": 10, "max_predictions": 4, "masked_fraction": 0.5, "masking": name} | changes))
    candidates = np.isin(IDS, range(4, 10))
    positions, decisions = choose(Examples(config, TABLES, KEYS, np.array([8, 3]), IDS, candidates))
    assert positions.shape == (2, config.max_predictions)
    assert decisions is None
    return [row[row != UNUSED].tolist() for row in positions]


def test_a_policy_is_given_the_example_its_words_the_rate_and_random_numbers_of_its_key(tmp_path):
    name = policy(tmp_path, REVERSED)
    chosen(name)
    (first, rate, drawn), (second, _, other) = masking._policy(name).__globals__["SEEN"]
    assert (first.ids.tolist(), first.ids.dtype) == (IDS[0, :8].tolist(), np.int32)
    assert first.pieces == ("[CLS]", "the", "##re", "cat", "##s", "[UNK]", "a", "[SEP]")
    assert first.words == ((1, 2), (3, 4), (6,))
    assert (first.limit, rate) == (4, 0.5)
    assert [first.text(word) for word in ((3,), (2,), (6,))] == ["cat", "re", "a"]
    assert (second.ids.tolist(), second.words) == ([1, 3, 2], ())
    assert [drawn, other] == [np.random.Generator(np.random.Philox(key=key)).integers(10**9) for key in (5, 6)]


def test_the_first_positions_up_to_the_limit_are_predicted_once_each(tmp_path):
    assert chosen(policy(tmp_path, f"example.words and [6, 6, *{REVERSED}]")) == [[1, 3, 4, 6], []]


def test_a_packed_example_has_the_part_of_the_limit_of_its_length(tmp_path):
    assert chosen(policy(tmp_path, REVERSED), packed_examples=2) == [[3, 4, 6], []]  # 4 * 8 // 10


@pytest.mark.parametrize(
    ("returns", "says"),
    [
        ("5", "returned 5, not a sequence of integers"),
        ("[1.5]", r"returned \[1.5\], not a sequence of integers"),
        ("[9, 0]", r"returned the position 0 \(the token '\[CLS\]'\) for an example with 8 tokens; return only pos"),
        ("[7]", r"the position 7 \(the token '\[SEP\]'\)"),
        ("[8]", r"the position 8 \(outside the example\)"),
        ("[-1]", r"the position -1 \(outside the example\)"),
    ],
)
def test_other_results_than_positions_of_words_are_refused(tmp_path, returns, says):
    with pytest.raises(UserError, match=says):
        chosen(policy(tmp_path, returns))


def test_a_policy_without_three_arguments_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"policy.py:mine is not a function of three arguments .*; write `def mine\(exam"):
        chosen(policy(tmp_path, "[]", "example, rate"))
    (tmp_path / "three.py").write_text("mine = 3\n")
    with pytest.raises(UserError, match=r"three.py:mine is not a function of three arguments \(3 is not a callable object\)"):
        chosen(f"{tmp_path}/three.py:mine")
