from __future__ import annotations

import functools
import json

import jax
import numpy as np
import pytest

from bert_jax.analysis.maps import Slots, first_row, word_slots
from bert_jax.analysis.named_array import NamedArray
from bert_jax.analysis.windows import Kind, Window, Word, read_window, read_windows, text_words, written_words
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from tests.analysis.reference import in_words, weights_of
from tests.data.tokenizers.test_json_tokenizer import SPECIALS, plain


def test_words_have_their_pieces_and_kinds_and_a_written_mask_is_a_mask(analyser):
    words = text_words(analyser.engine.model.tokenizer, "the cab, [MASK] is!")
    assert [(word.text, len(word.ids), word.kind) for word in words] == [
        ("the", 1, Kind.WORD), ("cab", 3, Kind.WORD), (",", 1, Kind.PUNCTUATION), ("[MASK]", 1, Kind.WORD),
        ("is", 1, Kind.WORD), ("!", 1, Kind.PUNCTUATION),
    ]  # fmt: skip
    assert words[3].ids == (analyser.engine.model.tokenizer.mask_id,)


def test_the_pieces_of_a_window_come_from_the_tokenizer(analyser):
    tokenizer = analyser.engine.model.tokenizer
    text = "Paris, the capital: of (Apfel) xyz. \U0001f600 é 中"
    (window,) = read_windows(analyser.engine, text)
    item = window.item()
    assert item.ids == [tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id]
    assert item.columns["words"][:3] == [0, 1, 2]
    assert len(item.columns["words"]) == len(item.columns["kinds"]) == len(item.ids)


def test_a_text_longer_than_the_position_table_is_split_between_words_without_loss(analyser):
    engine = analyser.engine
    text = " ".join(["the cab"] * 30 + ["x" * 90, "of"])  # a word that is longer than the table is cut as well
    windows = list(read_windows(engine, text))
    ids = [i for window in windows for i in window.item().ids[1:-1]]
    assert ids == engine.model.tokenizer.encode(text)
    assert max(len(window.item().ids) for window in windows) == engine.config.max_position == 40
    assert windows[0].words[-2].text in ("the", "cab")
    with pytest.raises(UserError, match="more than the 40 of the model's position table; shorten it"):
        read_window(engine, text)


def test_a_window_may_fill_the_position_table(analyser):
    assert len(read_window(analyser.engine, "the " * 38).words) == 40
    with pytest.raises(UserError, match=r"is 41 tokens with its .* more than the 40 of the model's position table; shorten it"):
        read_window(analyser.engine, "the " * 39)


@pytest.mark.parametrize("takes_space", [False, True])
def test_a_mask_takes_the_space_before_it_and_other_special_tokens_do_not(tmp_path, takes_space):
    file = plain(tmp_path, list(SPECIALS)) / "tokenizer.json"
    content = json.loads(file.read_text())
    (mask,) = [token for token in content["added_tokens"] if token["content"] == "[MASK]"]
    mask["lstrip"] = takes_space
    file.write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    words = text_words(tokenizer, "a [MASK] b [SEP]")
    assert [word.text for word in words] == ["a", "[MASK]", "b", "[SEP]"]
    assert [word.ids for word in words[::2]] == [tuple(tokenizer.encode(text)) for text in ("a" if takes_space else "a ", " b ")]


def test_words_that_the_tokenizer_would_split_otherwise_start_at_pieces_that_continue_no_word(analyser):
    tokenizer = analyser.engine.model.tokenizer
    ids = [tokenizer.pieces.index(piece) for piece in ("##a", "b", "##c", "!", "the", "##a", "##b")]
    found = written_words(tokenizer, ids)
    assert [(word.ids, word.kind) for word in found] == [
        ((ids[0],), Kind.WORD), ((*ids[1:3],), Kind.WORD), ((ids[3],), Kind.PUNCTUATION), ((*ids[4:],), Kind.WORD),
    ]  # fmt: skip
    assert [word.text for word in found][1:] == ["bc", "!", "theab"]
    plain = tokenizer.encode("the cab!")
    assert [(word.text, word.kind) for word in written_words(tokenizer, plain)] == [
        ("the", Kind.WORD), ("cab", Kind.WORD), ("!", Kind.PUNCTUATION),
    ]  # fmt: skip


@pytest.mark.parametrize("texts", [("",), (" \u200b",), ("the", " ")])
def test_a_text_without_a_token_is_refused(analyser, texts):
    with pytest.raises(UserError, match="has no tokens; give text"):
        read_window(analyser.engine, *texts)


def test_attention_between_words_sums_over_the_target_and_averages_over_the_source(analyser, model):
    window = read_window(analyser.engine, "the cab of Paris,", "is France xyz")
    assert window.words[window.segment_b].text == "is"
    (pieces, words), *_ = analyser.engine.batches(first_row, [window.item()])
    expected = weights_of(model, window)
    n, count = expected.shape[-1], len(window.words)
    # the same weights in a different batch: float32 rounds them differently, by 2e-6 on a CPU with SSE4.2
    np.testing.assert_allclose(pieces[:, :, :n, :n], expected, atol=1e-5)
    starts = np.flatnonzero(np.diff([-1, *window.item().columns["words"]]))
    assert len(starts) == count
    np.testing.assert_allclose(words[:, :, starts[:, None], starts], in_words(expected, window), atol=1e-5)
    np.testing.assert_allclose(words[:, :, starts].sum(-1), 1, atol=1e-5)


def test_a_named_array_is_selected_by_label():
    array = NamedArray(np.arange(6).reshape(2, 3), {"layer": (1, 2), "head": (1, 2, 3)})
    assert array.sel(layer=2, head=3).values == 5
    assert array.sel(head=1).axes == {"layer": (1, 2)}
    with pytest.raises(UserError, match="layer 3 does not exist; known: 1 to 2"):
        array.sel(layer=3)
    with pytest.raises(UserError, match="there is no axis 'layers': did you mean 'layer'"):
        array.sel(layers=1)
    with pytest.raises(ValueError, match="labels for an array of shape"):
        NamedArray(np.zeros((2, 2)), {"layer": (1,)})


def test_the_context_of_a_word_is_written_as_in_the_text():
    texts = ["[CLS]", *"abcdefghi", "(", "k", ")", ",", *"mnopqrstu", ".", "[SEP]"]
    window = Window(tuple(Word(text, (1,), Kind.WORD) for text in texts))
    assert window.context(11) == "c d e f g h i ([k]), m n o p q r"
    assert window.context(1) == "[a] b c d e f g h i"
    assert window.context(23) == "n o p q r s t u [.]"
    assert window.context(14, reach=1) == "[m] n"  # "," does not begin a text
    assert window.context(2, reach=1) == "a [b] c"


def test_a_pair_has_a_second_segment_unless_the_model_has_none():
    words = tuple(Word(str(i), (i,) * (1 + i % 2), Kind.WORD) for i in range(4))
    assert Window(words, segment_b=2).item().segment_b == 3
    assert Window(words, segment_b=2).item(of_pairs=False).segment_b == Window(words).item().segment_b == -1
    assert (Window(words).start, Window(words).item().columns["words"]) == (0, [0, 1, 1, 2, 3, 3])


def test_words_of_a_batch_are_at_the_columns_of_their_first_tokens():
    batch = {
        "sequence_ids": np.array([[1, 1, 1, 1, 2, 2, 2, 0, 0], [3, 3, 3, 3, 3, 3, 3, 3, 3], [0] * 9], np.int32),
        "position_ids": np.array([[0, 1, 2, 3, 0, 1, 2, 0, 0], [*range(9)], [0] * 9], np.int32),
        "words": np.array([[0, 1, 1, 2, 2, 3, 3, 0, 0], [0, 1, 2, 2, 2, 3, 4, 5, 5], [0] * 9], np.int32),
        "kinds": np.array([[3, 1, 1, 4, 3, 2, 2, 0, 0], [3, 1, 2, 2, 2, 1, 1, 1, 1], [0] * 9], np.int32),
    }
    slots = jax.jit(word_slots)(batch)
    firsts = [[0, 1, 1, 3, 4, 5, 5], [0, 1, 2, 2, 2, 5, 6, 7, 7], []]
    members = np.zeros((3, 9, 9))
    for row, columns in enumerate(firsts):
        members[row, range(len(columns)), columns] = 1
    np.testing.assert_array_equal(slots.members, members)
    np.testing.assert_array_equal(slots.sequence, [[1, 1, 0, 1, 2, 2, 0, 0, 0], [3, 3, 3, 0, 0, 3, 3, 3, 0], [0] * 9])
    np.testing.assert_array_equal(slots.number, batch["words"])
    np.testing.assert_array_equal(slots.kind, [[3, 1, 0, 4, 3, 2, 0, 0, 0], [3, 1, 2, 0, 0, 1, 1, 1, 0], [0] * 9])
    np.testing.assert_array_equal(slots.is_word[0], [False, True, False, False, False, True, False, False, False])
    together = np.zeros((9, 9), bool)
    for some in ([0, 1, 3], [4, 5]):
        together[np.ix_(some, some)] = True
    np.testing.assert_array_equal(slots.together[0], together)
    pieces = jax.jit(functools.partial(word_slots, in_words=False))(batch)
    np.testing.assert_array_equal(pieces.members[0, :7, :7], np.eye(7))
    np.testing.assert_array_equal(pieces.sequence[0], batch["sequence_ids"][0])
    assert isinstance(pieces, Slots)


def test_a_named_array_is_an_array_of_any_type():
    values = np.arange(3)
    array = NamedArray(values, {"layer": (1, 2, 3)})
    assert array.__array__(np.float32).dtype == np.float32
    assert np.shares_memory(array.__array__(copy=False), values)
    assert not np.shares_memory(array.__array__(copy=True), values)
