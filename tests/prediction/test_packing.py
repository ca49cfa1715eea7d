from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from bert_jax.prediction.packing import BatchShape, Item, Packed, assign_rows, full_batches, pack, power_of_two, row_length

INPUTS = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
PAD = 7


def items_of(lengths: list[int], seed: int = 0, places: bool = True) -> list[Item]:
    """Returns items of those lengths with random ids, second segments, positions and targets."""
    draw = random.Random(seed)
    items = []
    for n in lengths:
        ids = [draw.randrange(10, 1000) for _ in range(n)]
        marked = tuple(sorted(draw.sample(range(n), min(n, draw.choice((0, 0, 1, 3)))))) if places else ()
        targets = tuple(draw.randrange(1000) for _ in marked) if draw.random() < 0.5 else ()
        items.append(Item(ids, draw.randrange(n) if n > 1 and draw.random() < 0.5 else -1, marked, targets))
    return items


def realistic_lengths(count: int, longest: int = 512, seed: int = 3) -> list[int]:
    """Returns log-normal lengths around 26 tokens, like sentences of running text."""
    lengths = np.random.default_rng(seed).lognormal(np.log(24), 0.6, count)
    return np.clip(lengths, 3, longest).astype(int).tolist()


def shape_of(packed: Packed) -> tuple[int, ...]:
    """Returns (B, L, T, K), for which a program is compiled."""
    return (*packed.arrays["input_ids"].shape, *packed.arrays["starts"].shape, *packed.arrays["query_positions"].shape)


def expected_rows(items: list[Item], packed: Packed) -> dict[str, np.ndarray]:
    """Returns the four [B, L] arrays written token by token from the items, at the positions in `packed.starts`."""
    rows, length = packed.arrays["input_ids"].shape
    arrays = {name: np.zeros(rows * length, int) for name in INPUTS}
    arrays["input_ids"][:] = PAD
    for slot, (i, start) in enumerate(zip(packed.items, packed.starts, strict=True)):
        item = items[i]
        assert start // length == (start + len(item.ids) - 1) // length, "an item is in a single row"
        for k, token in enumerate(item.ids):
            assert arrays["sequence_ids"][start + k] == 0, "no other item is there"
            arrays["input_ids"][start + k] = token
            arrays["token_type_ids"][start + k] = int(0 <= item.segment_b <= k)
            arrays["position_ids"][start + k] = k
            arrays["sequence_ids"][start + k] = slot + 1
    return {name: array.reshape(rows, length) for name, array in arrays.items()}


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("longest", [16, 40, 100, 512])
def test_every_item_is_in_one_row_with_its_own_positions_segments_and_sequence_id(longest, devices):
    draw = random.Random(longest)
    lengths = [draw.choice((1, 2, longest, longest - 1, draw.randint(1, longest), draw.randint(1, 16))) for _ in range(300)]
    items = items_of(lengths)
    batches = list(pack(items, BatchShape(longest=longest, tokens=1024, devices=devices, pad_id=PAD)))
    assert sorted(itertools.chain.from_iterable(b.items for b in batches)) == list(range(300))
    for packed in batches:
        for name, wanted in expected_rows(items, packed).items():
            assert packed.arrays[name].dtype == np.int32
            np.testing.assert_array_equal(packed.arrays[name], wanted, err_msg=name)
        rows, length = packed.arrays["input_ids"].shape
        assert rows % devices == 0
        assert length <= longest
        assert rows * length <= max(1024, length) * devices, "at most the requested number of tokens"


def test_starts_and_places_point_at_their_tokens_in_the_flat_batch():
    items = items_of(realistic_lengths(400, 100))
    for packed in pack(items, BatchShape(longest=100, tokens=1024, devices=8, pad_id=PAD)):
        flat = packed.arrays["input_ids"].reshape(-1)
        assert packed.arrays["starts"][: len(packed.items)].tolist() == list(packed.starts)
        assert len(packed.arrays["starts"]) >= len(packed.items)
        taken: list[int] = []
        for i, own in zip(packed.items, packed.query_positions, strict=True):
            item = items[i]
            taken += range(own.start, own.stop)
            assert flat[packed.arrays["query_positions"][own]].tolist() == [item.ids[place] for place in item.query_positions]
            assert packed.arrays["targets"][own].tolist() == list(item.targets or [0] * len(item.query_positions))
        assert taken == list(range(len(taken))), "the positions of the items are adjacent"
        assert not packed.arrays["query_positions"][len(taken) :].any()
        assert len(packed.arrays["query_positions"]) == len(packed.arrays["targets"])


def windows_of(items: list[Item], tokens: int, longest: int = 512, devices: int = 1) -> list[Packed]:
    """Yields a long input, packed 1,024 items per device at a time."""
    step = 1024 * devices
    parts = (items[start : start + step] for start in range(0, len(items), step))
    return [b for part in parts for b in pack(part, BatchShape(longest=longest, tokens=tokens, devices=devices, pad_id=PAD))]


# The row lengths 64, 128, 192, 256, 384, 512, and for each the numbers of rows 1, 4, 16, ... up to the batch's tokens
PROGRAMS = {1024: 3 + 3 + 3 + 2 + 2 + 2, 16_384: 5 + 5 + 5 + 4 + 4 + 4}


@pytest.mark.parametrize("tokens", PROGRAMS)
def test_5000_texts_of_any_length_need_few_compiled_programs(tokens):
    lengths = [*realistic_lengths(4000), *np.random.default_rng(0).integers(1, 513, 1000).tolist()]
    random.Random(0).shuffle(lengths)
    assert len({shape_of(b) for b in windows_of(items_of(lengths, places=False), tokens)}) <= PROGRAMS[tokens]


def test_places_multiply_the_programs_by_powers_of_four_only():
    batches = windows_of(items_of(realistic_lengths(5000)), 1024)
    places = {len(b.arrays["query_positions"]) for b in batches}
    assert places <= {8, 32, 128, 512}
    assert len({shape_of(b) for b in batches}) <= 20


@pytest.mark.parametrize("devices", [1, 8])
def test_nine_tenths_of_packed_sentence_tokens_are_text(devices):
    lengths = realistic_lengths(8192)
    assert 24 < np.mean(lengths) < 32
    batches = windows_of(items_of(lengths, places=False), 1024, devices=devices)
    computed = sum(b.arrays["input_ids"].size for b in batches)
    assert sum(lengths) / computed >= 0.9


@pytest.mark.parametrize(
    ("low", "high", "least"), [(33, 40, 0.8), (65, 84, 0.8), (130, 199, 0.75), (260, 339, 0.75), (384, 384, 0.95)]
)
def test_texts_of_similar_length_leave_little_padding(low, high, least):
    """With powers of two only, the first four would fill 0.57 - 0.65 of their rows, and the windows that `answer` makes 0.75."""
    lengths = np.random.default_rng(0).integers(low, high + 1, 1024).tolist()
    computed = sum(b.arrays["input_ids"].size for b in windows_of(items_of(lengths, places=False), 1024))
    assert sum(lengths) / computed >= least


@pytest.mark.parametrize("longest", [40, 100, 512])
def test_items_as_long_as_the_table_have_rows_of_that_length(longest):
    (packed,) = pack(items_of([longest, longest]), BatchShape(longest=longest, tokens=1024))
    assert packed.arrays["input_ids"].shape[1] == longest
    assert packed.arrays["position_ids"].max() == longest - 1


def test_one_short_text_gets_a_short_row():
    (packed,) = pack(items_of([5]), BatchShape(longest=512, tokens=1024))
    assert packed.arrays["input_ids"].shape == (1, 16)
    assert packed.arrays["starts"].shape == (2,)  # a slot for every eight tokens
    assert not packed.arrays["input_ids"][0, 5:].any()


@pytest.mark.parametrize(("count", "slots"), [(1, 1), (3, 4)])
def test_a_position_table_shorter_than_a_slot_holds_one_text_per_row(count, slots):
    (packed,) = pack([Item([9])] * count, BatchShape(longest=4, tokens=1024))
    assert packed.starts == tuple(range(0, 4 * count, 4))
    assert packed.arrays["starts"].shape == (slots,)


@pytest.mark.parametrize(("count", "places"), [(0, 8), (8, 8), (9, 32), (32, 32), (33, 128)])
def test_query_positions_are_padded_to_eight_times_powers_of_four(count, places):
    (packed,) = pack([Item(range(40), query_positions=tuple(range(count)))], BatchShape(longest=64, tokens=1024))
    assert packed.arrays["query_positions"].shape == packed.arrays["targets"].shape == (places,)


def test_a_text_has_the_shortest_row_that_holds_it():
    lengths = (16, 32, 64, 128, 192, 256, 384, 512, 1024)
    for shorter, length in itertools.pairwise((0, *lengths)):
        assert {row_length(n) for n in range(shorter + 1, length + 1)} == {length}


@pytest.mark.parametrize(
    ("length", "count", "rows"),
    [
        (21, 30, {64: 3}),
        (42, 30, {128: 3}),
        (85, 30, {256: 3}),
        (18, 42, {128: 7}),  # 126 of 128 tokens instead of 54 of 64, which is worth a longer attention
    ],
)
def test_the_cheapest_of_three_row_lengths_is_used(length, count, rows):
    assert {n: len(some[0]) for n, some in assign_rows([length] * count, 512).items()} == rows


def test_a_row_is_filled_to_its_last_token():
    assert assign_rows([61, 3], 512) == {64: [[0, 1]]}


@pytest.mark.parametrize(("tokens", "devices", "length", "rows"), [(1024, 1, 64, 16), (1024, 8, 100, 80), (100, 8, 512, 8)])
def test_a_full_batch_has_its_tokens_and_at_least_one_row_per_device(tokens, devices, length, rows):
    assert BatchShape(longest=512, tokens=tokens, devices=devices).most_rows(length) == rows


def test_no_items_give_no_batch():
    assert list(pack([], BatchShape(longest=512, tokens=1024))) == []


def test_an_item_longer_than_the_position_table_is_an_error():
    with pytest.raises(ValueError, match="an item of 41 tokens does not fit in 40"):
        list(pack(items_of([3, 41]), BatchShape(longest=40, tokens=1024)))


def test_more_very_short_items_than_slots_go_to_other_batches():
    items = [Item([1]) for _ in range(2000)]
    batches = list(pack(items, BatchShape(longest=512, tokens=1024)))
    assert all(len(b.items) <= len(b.arrays["starts"]) for b in batches)
    assert sum(len(b.items) for b in batches) == 2000


def test_rows_are_not_overfull():
    lengths = realistic_lengths(1000)
    for length, rows in assign_rows(lengths, 512).items():
        assert max(sum(lengths[i] for i in row) for row in rows) <= length


@pytest.mark.parametrize(("n", "wanted"), [(0, 1), (1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_sizes_are_rounded_up_to_powers_of_two(n, wanted):
    assert power_of_two(n) == wanted


def test_full_batches_fill_every_row_and_return_the_remaining_items():
    items, shape = items_of(realistic_lengths(300)), BatchShape(longest=512, tokens=1024)
    full, left = full_batches(items, shape)
    assert full
    for packed in full:
        rows, length = packed.arrays["input_ids"].shape
        assert rows == shape.most_rows(length)
        assert packed.arrays["sequence_ids"].any(axis=1).all()
    taken = [i for packed in full for i in packed.items]
    assert len(set(taken)) == len(taken)
    assert sorted(map(id, left)) == sorted(id(items[i]) for i in set(range(len(items))) - set(taken))
    tokens, row_lengths = sum(len(item.ids) for item in left), {packed.arrays["input_ids"].shape[1] for packed in full}
    assert tokens < sum(shape.most_rows(length) * length for length in row_lengths)
