from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bert_jax.data.rows import (
    Feature,
    LabelLayout,
    RowShape,
    assemble_features,
    feature_logits,
    pack_features,
    row_shape,
)
from tests.random_features import CANDIDATES, KINDS, LABELS, LAYOUTS, random_features

PAD = 1
COUNT = 40


def feature_of(*lengths: int) -> Feature:
    return Feature(0, tuple(np.full(n, 7, np.int32) for n in lengths), tuple(np.zeros(n, np.int32) for n in lengths))


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("sequence", LabelLayout()),
        ("regression", LabelLayout(dtype=np.float32)),
        ("multi_label", LabelLayout(shape=(len(LABELS),), dtype=np.float32)),
        ("token", LabelLayout(per_token=True, logits_per_token=True)),
        ("span", LabelLayout(shape=(2,), are_positions=True, logits_per_token=True)),
        ("choice", LabelLayout(logits_per_candidate=True)),
        ("mention", LabelLayout(read_positions=3)),
    ],
)
def test_labels_of_each_kind_have_the_arrays_of_their_layout(kind: str, layout: LabelLayout):
    assert LAYOUTS[kind] == layout


@pytest.fixture(scope="module", params=KINDS)
def packed(request):
    """Returns (features, rows, shape, batch) of forty features of every kind, with an empty row at the end."""
    features = random_features(request.param, COUNT, seed=3)
    shape = row_shape(features, LAYOUTS[request.param])
    rows = pack_features(features, shape)
    assert max(map(len, rows)) > 1, "nothing is packed, so nothing is tested"
    return features, rows, shape, assemble_features(features, rows, len(rows) + 1, shape, PAD)


def slots_of(features, rows, shape):
    """Returns (feature, row, slot, its tokens, its types) for every sequence."""
    for r, members in enumerate(rows):
        for place, i in enumerate(members):
            for candidate, (ids, types) in enumerate(zip(features[i].ids, features[i].types, strict=True)):
                yield features[i], r, place * shape.candidates + candidate, ids, types


def test_every_sequence_is_in_one_row_with_positions_from_zero(packed):
    features, rows, shape, batch = packed
    for _, r, slot, ids, types in slots_of(features, rows, shape):
        own = np.flatnonzero(batch["sequence_ids"][r] == slot + 1)
        assert (own == np.arange(own[0], own[0] + len(ids))).all()
        assert own[0] == batch["cls_positions"][r, slot]
        np.testing.assert_array_equal(batch["input_ids"][r, own], ids)
        np.testing.assert_array_equal(batch["token_type_ids"][r, own], types)
        np.testing.assert_array_equal(batch["position_ids"][r, own], np.arange(len(ids)))


def test_rows_hold_nothing_but_their_sequences(packed):
    features, rows, _, batch = packed
    empty = batch["sequence_ids"] == 0
    assert (~empty).sum() == sum(feature.size for feature in features)
    assert (batch["input_ids"][empty] == PAD).all()
    assert not batch["position_ids"][empty].any()
    assert not any(batch[name][len(rows) :].any() for name in ("sequence_ids", "cls_positions", "labels", "label_weights"))


def test_every_array_has_its_documented_shape_and_type(packed):
    *_, shape, batch = packed
    rows, tokens, features = len(batch["input_ids"]), shape.length, shape.features
    layout = shape.layout
    slots = features * (CANDIDATES if layout.logits_per_candidate else 1)
    wanted = dict.fromkeys(("input_ids", "token_type_ids", "position_ids", "sequence_ids"), ((rows, tokens), np.int32))
    wanted["cls_positions"] = (rows, slots), np.int32
    wanted["labels"] = (rows, tokens) if layout.per_token else (rows, features, *layout.shape), np.dtype(layout.dtype)
    wanted["label_weights"] = (rows, tokens if layout.per_token else features), np.float32
    if layout.per_token:
        wanted["word_starts"] = (rows, tokens), np.int32
    if layout.read_positions:
        wanted["read_positions"] = (rows, features, layout.read_positions), np.int32
    assert {name: (array.shape, array.dtype) for name, array in batch.items()} == wanted


def test_targets_are_at_their_features_with_weight_one_if_known(packed):
    features, rows, shape, batch = packed
    weight = 0
    for feature, r, slot, ids, _ in slots_of(features, rows, shape):
        column, place = batch["cls_positions"][r, slot], slot // shape.candidates
        if shape.layout.per_token:
            own = slice(column, column + len(ids))
            np.testing.assert_array_equal(batch["label_weights"][r, own], feature.target >= 0)
            np.testing.assert_array_equal(batch["labels"][r, own], np.maximum(feature.target, 0))
            np.testing.assert_array_equal(np.flatnonzero(batch["word_starts"][r, own]), feature.read_positions)
            weight += (feature.target >= 0).sum()
        elif slot % shape.candidates == 0:
            wanted = feature.target + column if shape.layout.are_positions else feature.target
            np.testing.assert_array_equal(batch["labels"][r, place], wanted)
            weight += 1
    assert batch["label_weights"].sum() == weight


def test_an_answer_and_the_mentions_are_the_same_pieces_in_the_row_as_in_the_feature():
    for kind in ("span", "mention"):
        features = random_features(kind, COUNT)
        shape = row_shape(features, LAYOUTS[kind])
        rows = pack_features(features, shape)
        batch = assemble_features(features, rows, len(rows), shape, PAD)
        columns = batch["labels" if kind == "span" else "read_positions"]
        for r, members in enumerate(rows):
            for u, i in enumerate(members):
                places = features[i].target if kind == "span" else features[i].read_positions
                np.testing.assert_array_equal(batch["input_ids"][r, columns[r, u]], features[i].ids[0][places])


def test_features_of_unknown_target_have_no_weight(packed):
    features, rows, shape, batch = packed
    unknown = [dataclasses.replace(feature, target=None) if feature.example % 2 else feature for feature in features]
    found = assemble_features(unknown, rows, len(rows) + 1, shape, PAD)
    for name in ("input_ids", "sequence_ids", "cls_positions"):
        np.testing.assert_array_equal(found[name], batch[name])
    known = [feature for feature in features if not feature.example % 2]
    alone = sum(assemble_features([feature], [[0]], 1, shape, PAD)["label_weights"].sum() for feature in known)
    assert 0 < found["label_weights"].sum() == alone


def test_the_logits_of_a_feature_come_from_its_own_slots_or_tokens(packed):
    """The fake model returns the id of every token, or the sum of a sequence's ids."""
    features, rows, shape, batch = packed
    if shape.layout.logits_per_token:
        logits = np.stack([batch["input_ids"], batch["position_ids"]], -1).astype(np.float32)
        wanted = [np.stack([feature.ids[0], np.arange(feature.size)], -1) for feature in features]
    else:
        slots = np.arange(1, shape.slots + 1)
        own = batch["sequence_ids"][:, None, :] == slots[None, :, None]
        logits = (own * batch["input_ids"][:, None, :]).sum(-1, keepdims=True).astype(np.float32)
        wanted = [np.array([ids.sum() for ids in feature.ids]) for feature in features]
    found = feature_logits(logits, features, rows, shape)
    assert len(found) == COUNT
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_packing_holds_every_feature_once_within_the_size_of_rows(packed):
    features, rows, shape, _ = packed
    assert sorted(i for members in rows for i in members) == list(range(COUNT))
    assert max(sum(features[i].size for i in members) for members in rows) <= shape.length
    assert max(map(len, rows)) <= shape.features


@pytest.mark.parametrize(
    ("longest", "length"),
    [(n, n) for n in (32, 64, 128, 192, 256, 384, 512)] + [(33, 64), (129, 192), (385, 512), (513, 640), (641, 768)],
)
def test_the_row_length_is_the_shortest_that_fits_the_longest_feature(longest, length):
    assert row_shape([feature_of(20), feature_of(longest)], LAYOUTS["sequence"]).length == length


def test_a_row_has_slots_for_twice_the_average_number_of_features():
    assert row_shape([feature_of(10), feature_of(30)], LAYOUTS["token"]).features == round(2 * 32 / 20)
    assert row_shape([feature_of(128)], LAYOUTS["token"]).features == 2


def test_choices_have_slots_for_the_largest_number_of_candidates():
    shape = row_shape([feature_of(10, 10), feature_of(20, 20, 20, 20)], LAYOUTS["choice"])
    assert (shape.length, shape.features, shape.candidates, shape.slots) == (128, 5, 4, 20)  # 2 * 128 / mean 50


def test_a_row_shape_with_one_candidate_has_one_slot_per_feature():
    assert RowShape(LAYOUTS["sequence"], 64, 7).slots == 7
