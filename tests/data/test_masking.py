from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bert_jax.data.config import ExampleConfig
from bert_jax.data.counter_rng import lower_half, make_key, random_bits, random_bits_32, uniform_integers
from bert_jax.data.masking import (
    UNUSED,
    MaskingTables,
    choose_spans,
    choose_tokens,
    choose_whole_words,
    masking_tables,
    replace_tokens,
    span_lengths,
)
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from tests.data.corpora import vocabulary


def keys_of(examples: int) -> np.ndarray:
    return random_bits(make_key(1), np.arange(examples))[:, np.newaxis]


def random_candidates(examples: int, places: int) -> np.ndarray:
    candidates = np.random.default_rng(0).random((examples, places)) < 0.8
    candidates[:, 0] = False
    return candidates


def test_exactly_the_wanted_number_of_candidates_is_chosen_in_ascending_order():
    candidates = random_candidates(500, 33)  # the last position alone needs a sixth bit
    counts = np.minimum(np.arange(500) % 13, candidates.sum(axis=1))
    positions = choose_tokens(keys_of(500), candidates, counts, 12)
    assert positions.shape == (500, 12)
    used = positions != UNUSED
    assert (used.sum(axis=1) == counts).all()
    assert (used == (np.arange(12) < counts[:, np.newaxis])).all()
    assert candidates[np.nonzero(used)[0], positions[used]].all()
    assert (np.diff(positions.astype(int), axis=1)[used[:, 1:]] > 0).all()


def test_candidates_are_drawn_uniformly_without_replacement():
    candidates = np.ones((40_000, 20), bool)
    candidates[:, [0, 7, 19]] = False
    positions = choose_tokens(keys_of(40_000), candidates, np.full(40_000, 4), 6)[:, :4]
    chosen = np.zeros((40_000, 20), bool)
    np.put_along_axis(chosen, positions.astype(int), True, axis=1)
    assert (chosen.sum(axis=0)[[0, 7, 19]] == 0).all()
    among = chosen[:, candidates[0]].astype(float)
    assert np.abs(among.mean(axis=0) - 4 / 17).max() < 5 * np.sqrt(4 / 17 / 40_000)
    together = among.T @ among / 40_000
    np.fill_diagonal(together, 4 * 3 / 17 / 16)
    assert np.abs(together - 4 * 3 / 17 / 16).max() < 5 * np.sqrt(4 * 3 / 17 / 16 / 40_000)


def test_rows_without_candidates_have_no_masks():
    assert (choose_tokens(keys_of(1), np.zeros((1, 9), bool), np.array([0]), 4) == UNUSED).all()


def words_of(candidates, continues):
    """Returns the positions of each word of an example."""
    words = []
    for position in np.flatnonzero(candidates).tolist():
        if continues[position] and candidates[position - 1]:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def greedy_words(bits, candidates, continues, count, most_words=None):
    """Masks one example by the original's loop over words in random order, limited to the first `most_words`."""
    words = words_of(candidates, continues)
    chosen = []
    for word in sorted(words, key=lambda word: (int(bits[word[0]]), word[0]))[:most_words]:
        if len(chosen) >= count:
            break
        if len(chosen) + len(word) <= count:
            chosen += word
    return sorted(chosen)


def test_whole_word_masks_equal_the_loop_of_bert():
    rng = np.random.default_rng(0)
    candidates = random_candidates(400, 61)
    continues = rng.random((400, 61)) < rng.uniform(0, 0.8, (400, 1))
    counts = np.minimum(np.arange(400) % 12 + 1, candidates.sum(axis=1))
    positions = choose_whole_words(keys_of(400), candidates, continues, counts, 12)
    bits = random_bits_32(keys_of(400), 61)
    for example in range(400):
        expected = greedy_words(bits[example], candidates[example], continues[example], counts[example])
        assert positions[example].tolist() == expected + [int(UNUSED)] * (12 - len(expected))


def random_words(examples: int, places: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (candidates, continues) of texts. The mean number of pieces per word differs between examples."""
    rng = np.random.default_rng(0)
    return random_candidates(examples, places), rng.random((examples, places)) < rng.uniform(0, 0.8, (examples, 1))


def test_word_count_masks_equal_a_loop_over_words_in_random_order():
    candidates, continues = random_words(400, 61)
    drawn = choose_whole_words(keys_of(400), candidates, continues, np.full(400, 14), 14, CONFIG.predicted_words)
    bits = random_bits_32(keys_of(400), 61)
    for example in range(400):
        words = len(words_of(candidates[example], continues[example]))
        expected = greedy_words(bits[example], candidates[example], continues[example], 14, max(1, round(0.15 * words)))
        assert drawn[example].tolist() == expected + [int(UNUSED)] * (14 - len(expected))


def test_counting_words_masks_all_word_lengths_at_the_same_rate():
    """Words have 1 to 5 pieces; there are 30 of them, so 0.15 * 30 rounds to 4 words."""
    sizes = np.array([1, 2, 3, 4, 5] * 6)
    heads = np.cumsum(sizes) - sizes
    continues = np.ones((20_000, sizes.sum()), bool)
    continues[:, heads] = False
    candidates, room = np.ones_like(continues), np.full(20_000, sizes.sum())
    pieces = np.full(20_000, 6)
    by_words = choose_whole_words(keys_of(20_000), candidates, continues, room, 90, CONFIG.predicted_words)
    by_pieces = choose_whole_words(keys_of(20_000), candidates, continues, pieces, 90)
    for positions, same in [(by_words, True), (by_pieces, False)]:
        of_size = np.bincount(sizes[np.searchsorted(heads, positions[np.isin(positions, heads)])], minlength=6)[1:]
        assert (stats.chisquare(of_size).pvalue > 1e-4) == same
        if same:
            assert of_size.sum() == 4 * 20_000


def span_loop(key, candidates, continues, count):
    """Draws spans one after another for one example: {masked position: the first position of its span}."""
    words, masked, draw = words_of(candidates, continues), {}, 0
    while fitting := [i for i, w in enumerate(words) if w[0] not in masked and len(w) <= count - len(masked)]:
        bits = random_bits(key, np.array([draw]))
        first, draw = fitting[int(uniform_integers(len(fitting), bits)[0])], draw + 1
        for i in range(first, min(first + int(span_lengths(lower_half(bits))[0]), len(words))):
            apart = i > first and words[i][0] != words[i - 1][-1] + 1
            if apart or words[i][0] in masked or len(words[i]) > count - len(masked):
                break
            masked |= dict.fromkeys(words[i], words[first][0])
    return masked


def test_spans_equal_a_sequential_loop():
    candidates, continues = random_words(400, 61)
    counts = np.minimum(np.arange(400) % 25, candidates.sum(axis=1))
    positions, firsts = choose_spans(keys_of(400), candidates, continues, counts, 24)
    for example in range(400):
        expected = span_loop(keys_of(400)[example], candidates[example], continues[example], counts[example])
        used = positions[example] != UNUSED
        assert dict(zip(positions[example][used].tolist(), firsts[example][used].tolist(), strict=True)) == expected
        assert positions[example][used].tolist() == sorted(expected)
        assert (firsts[example][~used] == UNUSED).all()


def test_spans_are_geometric_up_to_ten_words_with_a_mean_of_3_8():
    lengths = span_lengths(random_bits(make_key(3), np.arange(100_000)))
    expected = 0.2 * 0.8 ** np.arange(10)
    assert stats.chisquare(np.bincount(lengths)[1:], 100_000 * expected / expected.sum()).pvalue > 1e-4
    assert lengths.mean() == pytest.approx(3.8, abs=0.03)


def test_the_first_span_starts_uniformly_and_has_its_full_length():
    """Rows have 40 single pieces, of which 10 are masked: the first span is complete unless the row ends."""
    candidates = np.ones((20_000, 40), bool)
    draws = random_bits(keys_of(20_000)[:, 0], np.zeros(20_000, np.int64))
    wanted = span_lengths(lower_half(draws))
    positions, firsts = choose_spans(keys_of(20_000), candidates, np.zeros_like(candidates), np.full(20_000, 10), 10)
    assert (positions != UNUSED).all()
    start = uniform_integers(40, draws)
    assert stats.chisquare(np.bincount(start, minlength=40)).pvalue > 1e-4
    assert ((firsts == start[:, np.newaxis]).sum(axis=1) == np.minimum(wanted, 40 - start)).all()


def test_whole_word_masking_of_single_pieces_has_the_distribution_of_plain_masking():
    candidates = np.ones((20_000, 12), bool)
    candidates[:, 0] = False
    positions = choose_whole_words(keys_of(20_000), candidates, np.zeros_like(candidates), np.full(20_000, 3), 3)
    assert stats.chisquare(np.bincount(positions.ravel(), minlength=12)[1:]).pvalue > 1e-4


CONFIG = ExampleConfig(length=128, max_predictions=20)


TABLE_8 = [(0.8, 0.1), (1.0, 0.0), (0.8, 0.0), (0.8, 0.2), (0.0, 0.8), (0.0, 1.0)]
"""The mixes of the paper's Table 8: the probabilities of [MASK] and of a random token; other tokens stay."""


@pytest.mark.parametrize(("mask", "random"), [*TABLE_8, (0.0, 0.0), (0.5, 0.25)])
def test_the_mix_of_mask_random_and_kept_is_as_configured(mask, random):
    config = ExampleConfig(length=128, max_predictions=20, mask_probability=mask, random_probability=random)
    tokens = np.full(200_000, 500, np.int32)
    tables = MaskingTables(103, np.arange(1000, 3000, dtype=np.int32))
    seen = replace_tokens(tokens, random_bits(make_key(2), np.arange(200_000)), config, tables)
    for share, expected in [(seen == 103, mask), (seen >= 1000, random), (seen == 500, 1 - mask - random)]:
        assert share.mean() == pytest.approx(expected, abs=5 * np.sqrt(max(expected * (1 - expected), 0) / 200_000) + 1e-12)


def test_random_replacements_are_uniform_over_the_legal_ids():
    legal = np.array([7, 11, 13, 200, 201, 30_000], np.int32)
    config = ExampleConfig(length=128, max_predictions=20, mask_probability=0.0, random_probability=1.0)
    bits, tables = random_bits(make_key(2), np.arange(60_000)), MaskingTables(103, legal)
    seen = replace_tokens(np.zeros(60_000, np.int32), bits, config, tables)
    ids, counts = np.unique(seen, return_counts=True)
    assert ids.tolist() == legal.tolist()
    assert stats.chisquare(counts).pvalue > 1e-4


def test_special_ids_are_never_legal_replacements():
    tables = masking_tables(vocabulary(1000))
    assert not set(tables.legal_ids.tolist()) & {0, 100, 101, 102, 103}
    assert len(tables.legal_ids) == 995


def test_the_number_of_masks_follows_the_formula_of_bert():
    lengths = np.arange(5, 129)
    expected = [min(20, max(1, round(0.15 * length)), length - 3) for length in lengths.tolist()]
    assert CONFIG.predictions(lengths).tolist() == expected


def test_placeholders_are_not_replacements_and_pieces_continue_words(tmp_path):
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, "##s", "[unused12]", "unused"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = load_tokenizer(tmp_path / "vocab.txt", lowercase=True)
    tables = masking_tables(tokenizer.vocabulary, tokenizer)
    assert [words[i] for i in tables.legal_ids] == [*letters, "##s", "unused"]
    assert [words[i] for i in np.flatnonzero(tables.continuation)] == ["##s"]


def test_the_published_vocabulary_has_29523_legal_replacements(shared_data):
    tokenizer = load_tokenizer(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    tables = masking_tables(tokenizer.vocabulary, tokenizer)
    assert len(tables.legal_ids) == 30_522 - 5 - 994
    assert tables.continuation.sum() == sum(piece.startswith("##") for piece in tokenizer.pieces)
