from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bert_jax.data import INPUTS
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizers.vocabulary_training import train_bpe, train_sentencepiece
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model, export_model, import_model
from bert_jax.interop.sentence_transformers import TextVectors
from bert_jax.interop.surgery import (
    average,
    extended,
    find_sources,
    read_tokens,
    with_layers,
    with_positions,
    with_token_types,
    with_vocabulary,
)
from bert_jax.model.config import ModelConfig
from bert_jax.model.embeddings import check_ids
from bert_jax.model.pretraining import HEAD_INPUTS, BertForPreTraining
from tests.interop.test_transformers_loads_exports import zero_padding_rows
from tests.interop.tiny import as_model, make_model


@pytest.fixture(scope="module")
def model(tiny, vocabulary) -> Model:
    return as_model(*tiny, vocabulary)


@pytest.fixture(scope="module")
def untied(vocabulary) -> Model:
    return as_model(*make_model(vocabulary, tied_decoder=False), vocabulary)


def words_of(model: Model) -> np.ndarray:
    return model.params["embeddings"]["word_embeddings"]["embedding"]


def positions_of(model: Model) -> np.ndarray:
    return model.params["embeddings"]["position_embeddings"]["embedding"]


def outputs(model: Model, ids: np.ndarray, types: np.ndarray | None = None) -> dict[str, Any]:
    """Returns all outputs of the model for ids int32 [B, L], at every position."""
    columns = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    types = np.zeros_like(ids) if types is None else types
    first = np.zeros((len(ids), 1), np.int32)
    check_ids(model.config, input_ids=ids, token_type_ids=types, position_ids=columns)
    arrays = (ids, types, columns, np.ones_like(ids), columns, first)
    return _apply(model.config, model.params, dict(zip((*INPUTS, *HEAD_INPUTS), arrays, strict=True)))


@functools.partial(jax.jit, static_argnums=0)
def _apply(config: ModelConfig, params: dict[str, Any], batch: dict[str, np.ndarray]) -> dict[str, Any]:
    return BertForPreTraining(dataclasses.replace(config, scan_layers=True)).apply({"params": params}, batch)


def some_ids(model: Model, length: int, largest: int | None = None) -> np.ndarray:
    return np.random.default_rng(2).integers(0, largest or model.config.vocab_size, (3, length), np.int32)


def reloaded(model: Model, directory: pathlib.Path) -> Model:
    export_model(directory, model)
    return import_model(directory, vocab_multiple=model.config.vocab_multiple)


def assert_all_else_is_kept(changed: Model, model: Model, *tables: str, **fields: Any) -> None:
    """Checks that models differ only in these `fields` of the configuration and in parameters with a name of `tables`."""
    assert changed.config == dataclasses.replace(model.config, **fields)
    ours, theirs = (flatten_dict(zero_padding_rows(one.params, one.config), sep="/") for one in (changed, model))
    assert ours.keys() == theirs.keys()
    for path in ours:
        if not any(table in path for table in tables):
            np.testing.assert_array_equal(ours[path], theirs[path], err_msg=path)


def vocabulary_file(path: pathlib.Path, pieces: list[str], lowercase: bool) -> Tokenizer:
    path.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return load_tokenizer(path, lowercase=lowercase)


# Positions, token types, layers


def test_a_longer_position_table_changes_nothing_below_its_old_end(model, tmp_path):
    longer = reloaded(with_positions(model, 100, "copied"), tmp_path / "m")
    assert_all_else_is_kept(longer, model, "position_embeddings", max_position=100)
    ids = some_ids(model, 40)
    np.testing.assert_array_equal(outputs(longer, ids)["mlm_logits"], outputs(model, ids)["mlm_logits"])
    assert np.isfinite(outputs(longer, some_ids(model, 100))["last"]).all()


def test_copied_positions_repeat_the_learned_table_and_random_ones_are_fresh(model):
    old = positions_of(model)
    copied, random = (positions_of(with_positions(model, 100, new)) for new in ("copied", "random"))
    for i in range(100):
        np.testing.assert_array_equal(copied[i], old[i - 40 * (i // 40)])
    np.testing.assert_array_equal(random[:40], old)
    limit = 2 * model.config.initializer_range
    assert 0.2 * limit < random[40:].std() < 0.6 * limit
    assert np.abs(random[40:]).max() <= limit
    assert len(np.unique(random[40:])) > 900
    np.testing.assert_array_equal(positions_of(with_positions(model, 100, "random", seed=0)), random)
    assert not np.array_equal(positions_of(with_positions(model, 100, "random", seed=1)), random)
    assert_all_else_is_kept(with_positions(model, 100, "random"), model, "position_embeddings", max_position=100)
    for fewer in (7, 40):
        np.testing.assert_array_equal(positions_of(with_positions(model, fewer, "random")), old[:fewer])


def test_a_shorter_position_table_is_the_start_of_the_old_one(model):
    shorter = with_positions(model, 7)
    np.testing.assert_array_equal(positions_of(shorter), positions_of(model)[:7])
    assert_all_else_is_kept(shorter, model, "position_embeddings", max_position=7)
    with pytest.raises(UserError, match="outside"):
        outputs(shorter, some_ids(model, 8))


def test_the_tokenizers_longest_text_follows_the_position_table(model):
    tokenizer = load_tokenizer_with_limit(model, 40)
    stated = dataclasses.replace(model, tokenizer=tokenizer)
    assert with_positions(stated, 100).tokenizer.max_length == 100
    assert tokenizer.max_length == 40
    assert with_positions(model, 100).tokenizer.max_length is None


@pytest.mark.parametrize(("stated", "kept"), [(None, None), (9, 9), (40, None), (512, None)])
def test_the_limit_of_text_vectors_is_kept_only_below_the_old_table(model, stated, kept):
    changed = with_positions(dataclasses.replace(model, vectors=TextVectors("mean", True, stated)), 100)
    assert changed.vectors == TextVectors("mean", True, kept)


def test_translations_end_within_the_new_position_table(model):
    stated = {"max_length": 40, "max_new_tokens": 40, "num_beams": 40}
    for field in ("generation", "other_fields"):  # older models have the settings in config.json
        translator = dataclasses.replace(model, **{field: stated})
        shorter = getattr(with_positions(translator, 7), field)
        assert shorter == {"max_length": 7, "max_new_tokens": 6, "num_beams": 40}
        assert getattr(with_positions(translator, 100), field) == stated
    assert with_positions(model, 7).generation == {}


def load_tokenizer_with_limit(model: Model, length: int) -> Tokenizer:
    tokenizer = extended(model.tokenizer, [])
    tokenizer.max_length = length
    return tokenizer


def test_new_token_types_are_copies_of_type_0_and_old_ones_are_kept(model, tmp_path):
    more = reloaded(with_token_types(model, 5), tmp_path / "m")
    table = more.params["embeddings"]["token_type_embeddings"]["embedding"]
    np.testing.assert_array_equal(table, model.params["embeddings"]["token_type_embeddings"]["embedding"][[0, 1, 2, 0, 0]])
    assert_all_else_is_kept(more, model, "token_type_embeddings", type_vocab_size=5)


def test_fewer_token_types_are_the_first_ones(model):
    fewer = with_token_types(model, 2)
    table = fewer.params["embeddings"]["token_type_embeddings"]["embedding"]
    np.testing.assert_array_equal(table, model.params["embeddings"]["token_type_embeddings"]["embedding"][:2])
    assert_all_else_is_kept(fewer, model, "token_type_embeddings", type_vocab_size=2)
    ids = some_ids(model, 40)
    with pytest.raises(UserError, match="token_type_ids holds 2"):
        outputs(fewer, ids, ids % 2 + 1)


@pytest.mark.parametrize("kept", [[0], [1, 3]])
def test_selected_layers_are_kept(vocabulary, tmp_path, kept):
    deep = as_model(*make_model(vocabulary, num_layers=4), vocabulary)
    fewer = reloaded(with_layers(deep, kept), tmp_path / "m")
    old, new = (model.params["encoder"]["layers"] for model in (deep, fewer))
    jax.tree.map(lambda ours, theirs: np.testing.assert_array_equal(ours, theirs[kept]), new, old)
    assert_all_else_is_kept(fewer, deep, "encoder/layers", num_layers=len(kept))


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ([0, 2], "there is no layer 2 to keep; the model has 2 layers, from 0 to 1"),
        ([-1], "there is no layer -1"),
        ([1, 0], "the layers to keep are 1, 0; name one or more, each once, in ascending order"),
        ([0, 0], "the layers to keep are 0, 0;"),
        ([], "the layers to keep are none;"),
    ],
)
def test_missing_or_unordered_layers_are_refused(model, keep, message):
    with pytest.raises(UserError, match=message):
        with_layers(model, keep)


def test_sizes_of_zero_are_refused(model):
    with pytest.raises(UserError, match="max_position=0 must be at least 1"):
        with_positions(model, 0)
    with pytest.raises(UserError, match="type_vocab_size=-1 must be at least 0"):
        with_token_types(model, -1)
    with pytest.raises(UserError, match="did you mean 'random'"):
        with_positions(model, 50, "randum")


# Vocabularies


def mean_of(table: np.ndarray, pieces: list[str], spelling: list[str]) -> np.ndarray:
    return np.mean([table[pieces.index(piece)].astype(np.float64) for piece in spelling], axis=0).astype(np.float32)


def test_an_added_word_starts_as_the_mean_of_its_pieces_in_every_embedding(untied, tmp_path):
    pieces = untied.tokenizer.pieces
    tokenizer = extended(untied.tokenizer, ["rivers", "AB"])
    sources = find_sources(untied.tokenizer, tokenizer)
    longer = reloaded(with_vocabulary(untied, tokenizer, sources), tmp_path / "m")
    assert (sources.kept, sources.spelt, sources.unknown, sources.removed) == (len(pieces), 2, 0, 0)
    assert longer.tokenizer.pieces == [*pieces, "rivers", "AB"]
    for path in (("embeddings", "word_embeddings", "embedding"), ("mlm_head", "decoder"), ("mlm_head", "bias")):
        old, new = untied.params, longer.params
        for name in path:
            old, new = old[name], new[name]
        assert len(new) == longer.config.padded_vocab_size == 192
        np.testing.assert_array_equal(new[: len(pieces)], old[: len(pieces)])
        np.testing.assert_array_equal(new[len(pieces)], mean_of(old, pieces, ["river", "##s"]))
        np.testing.assert_array_equal(new[len(pieces) + 1], mean_of(old, pieces, ["A", "##B"]))
        assert not new[len(pieces) + 2 :].any()


def test_added_words_do_not_change_the_logits_of_old_words(model):
    tokenizer = extended(model.tokenizer, ["rivers"])
    longer = with_vocabulary(model, tokenizer, find_sources(model.tokenizer, tokenizer))
    ids, size = some_ids(model, 40), model.config.vocab_size
    ours, theirs = outputs(longer, ids), outputs(model, ids)
    np.testing.assert_array_equal(ours["last"], theirs["last"])
    np.testing.assert_array_equal(ours["mlm_logits"][..., :size], theirs["mlm_logits"][..., :size])
    expected = np.mean([theirs["mlm_logits"][..., tokenizer.pieces.index(piece)] for piece in ("river", "##s")], axis=0)
    np.testing.assert_allclose(ours["mlm_logits"][..., size], expected, atol=1e-5)  # a logit is linear in its row and bias


def test_an_added_word_is_one_piece_and_changes_the_hash_of_the_vocabulary(model, tmp_path):
    tokenizer = extended(model.tokenizer, ["rivers", "[E1]"])
    longer = reloaded(with_vocabulary(model, tokenizer, find_sources(model.tokenizer, tokenizer)), tmp_path / "m")
    assert longer.tokenizer.tokens(longer.tokenizer.encode("the rivers")) == ["the", "rivers"]
    assert longer.tokenizer.tokens(longer.tokenizer.encode("the [E1]")) == ["the", "[E1]"]
    assert longer.tokenizer.vocabulary.sha256 != model.tokenizer.vocabulary.sha256
    assert longer.tokenizer.vocabulary.sha256 in (tmp_path / "m" / "config.json").read_text()


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("paris", "'paris' is in the vocabulary already"),
        ("well-read", "split it into 'well', '-', 'read'; add only whole words"),
        ("new york", "split it into 'new', 'york'; add only whole words"),
        ("\u200b", "remove it; leave it out"),
        ("a" * 201, "because words have at most 200 characters"),
        ("##ing", "split it into '#', '#', 'ing'"),
    ],
)
def test_a_token_that_no_text_produces_is_refused(model, token, message):
    with pytest.raises(UserError, match=message):
        extended(model.tokenizer, [token])


def test_a_token_may_be_as_long_as_a_word(model, tmp_path):
    assert extended(model.tokenizer, ["a" * 200]).pieces[-1] == "a" * 200
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in model.tokenizer.pieces), encoding="utf-8")
    shorter = extended(load_tokenizer(path, lowercase=False, max_word_characters=50), ["a" * 50])
    assert shorter.max_word_characters == 50
    assert shorter.tokens(shorter.encode(f"{'a' * 50} {'a' * 51}")) == ["a" * 50, "[UNK]"]


def test_a_token_named_twice_is_refused(model):
    byte_level = train_bpe(["The river runs to the sea."], 300, None)
    for tokenizer in (model.tokenizer, byte_level):
        with pytest.raises(UserError, match=r"'rivers' .* named twice"):
            extended(tokenizer, ["brooks", "rivers", "rivers"])


def test_a_cased_token_for_a_lower_cased_vocabulary_is_refused(tmp_path):
    lowercase = vocabulary_file(tmp_path / "vocab.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a"], True)
    with pytest.raises(UserError, match="change it to 'aa'; add 'aa' instead"):
        extended(lowercase, ["Aa"])


def test_a_file_of_tokens_is_read_once_each_and_in_order(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("river\r\n\n lake \nriver\n")
    assert read_tokens(path) == ["river", "lake"]
    path.write_bytes(b"\xef\xbb\xbfriver\rlake\r\n")
    assert read_tokens(path) == ["river", "lake"]
    path.write_text("\n")
    with pytest.raises(UserError, match="tokens is empty; fetch it again"):
        read_tokens(path)
    path.write_bytes(b"\xff\n")
    with pytest.raises(UserError, match=r"tokens, line 1: byte 1 of the file \(0xff\) is not UTF-8"):
        read_tokens(path)
    with pytest.raises(UserError, match=r"there is no .*none; give a file with one token per line"):
        read_tokens(tmp_path / "none")


def test_a_new_vocabulary_keeps_rows_of_old_pieces_and_averages_those_of_new_ones(model, tmp_path):
    old = model.tokenizer.pieces
    # the special tokens have other positions, and two have other names
    pieces = ["<pad>", "river", "[MASK]", "##iver", "[CLS]", "rivers", "Paris", "[SEP]", "[UNK]", "##é", "東", "##B!", "x"]
    tokenizer = vocabulary_file(tmp_path / "vocab.txt", pieces, False)
    sources = find_sources(model.tokenizer, tokenizer)
    expected = {
        "<pad>": ["[PAD]"], "river": ["river"], "[MASK]": ["[MASK]"], "##iver": ["##i", "##v", "##e", "##r"], "[CLS]": ["[CLS]"],
        "rivers": ["river", "##s"], "Paris": ["Paris"], "[SEP]": ["[SEP]"], "[UNK]": ["[UNK]"], "##é": ["##é"], "東": ["[UNK]"],
        "##B!": ["##B", "[UNK]"], "x": ["x"],
    }  # fmt: skip
    assert [[old[i] for i in ids] for ids in sources.of] == list(expected.values())
    assert (sources.kept, sources.spelt, sources.unknown, sources.removed) == (9, 2, 2, len(old) - 9)
    other = reloaded(with_vocabulary(model, tokenizer, sources), tmp_path / "m")
    for i, spelling in enumerate(expected.values()):
        np.testing.assert_array_equal(words_of(other)[i], mean_of(words_of(model), old, spelling))
    assert other.config.vocab_size == 13
    assert other.tokenizer.pad_id == 0
    assert_all_else_is_kept(other, model, "word_embeddings", "mlm_head/bias", vocab_size=13)
    np.testing.assert_array_equal(other.params["mlm_head"]["bias"][1], model.params["mlm_head"]["bias"][old.index("river")])


def test_a_piece_named_like_an_old_special_token_does_not_get_its_row(model, tmp_path):
    pieces = ["<pad>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    path = tmp_path / "new"
    path.mkdir()
    (path / "tokenizer_config.json").write_text('{"do_lower_case": false, "pad_token": "<pad>"}')
    vocabulary_file(path / "vocab.txt", pieces, False)
    sources = find_sources(model.tokenizer, load_tokenizer(path))
    assert sources.of[0] == (model.tokenizer.pad_id,)
    assert [model.tokenizer.pieces[i] for i in sources.of[1]] == ["[", "P", "##A", "##D", "]"]


def test_a_cased_vocabulary_for_a_lower_cased_model_starts_from_the_lower_cased_words(vocabulary, tmp_path):
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    old = vocabulary_file(tmp_path / "old.txt", [*specials, "paris", "##s", "##e"], True)
    new = vocabulary_file(tmp_path / "new.txt", [*specials, "Paris", "##S", "##É"], False)
    assert [old.tokens(ids) for ids in find_sources(old, new).of[5:]] == [["paris"], ["##s"], ["##e"]]


# Averages


def test_the_average_is_the_mean_of_every_weight_in_any_order(model):
    rng = np.random.default_rng(3)

    def noise_like(x: np.ndarray) -> np.ndarray:
        return np.float32(10.0 ** rng.integers(-3, 4)) * rng.standard_normal(x.shape, np.float32)

    noise = [jax.tree.map(noise_like, model.params) for _ in range(3)]
    models = [dataclasses.replace(model, params=params) for params in noise]
    expected = jax.tree.map(lambda *x: np.mean(np.array(x, np.float64), 0).astype(np.float32), *noise)
    for order in itertools.permutations(models):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9), average(order).params, expected)
    assert {x.dtype for x in jax.tree.leaves(average(models).params)} == {np.dtype(np.float32)}


def test_models_with_the_same_base_in_sliding_layers_are_averaged_if_only_one_states_it(model):
    sliding = dataclasses.replace(model.config, layer_types=("full", "sliding"), sliding_radius=3)
    first, *others = (
        dataclasses.replace(model, config=dataclasses.replace(sliding, sliding_rotary_theta=theta))
        for theta in (None, sliding.rotary_theta, 9.0)
    )
    assert average([first, others[0]]).config == first.config
    with pytest.raises(UserError, match=r"cannot be averaged: sliding_rotary_theta is 10000\.0 and 9\.0"):
        average([first, others[1]])


def test_averaging_a_model_with_itself_does_not_change_it(model):
    same = average([model] * 3)
    np.testing.assert_array_equal(words_of(same), words_of(model))
    assert same.config == model.config


def test_an_averaged_part_counts_as_untrained_if_one_source_is(model):
    assert average([model, dataclasses.replace(model, untrained=frozenset({"nsp_head"}))]).untrained == {"nsp_head"}


def test_models_trained_with_different_dropout_are_averaged(model):
    """A branch of a run (`config.init_state`) may have another dropout than its trunk."""
    other = dataclasses.replace(model, config=dataclasses.replace(model.config, hidden_dropout=0.37, initializer_range=0.5))
    assert average([model, other]).config == model.config


def test_models_that_name_the_same_file_by_two_paths_are_averaged(model, tmp_path):
    def with_norm(name: str, source: str) -> Model:
        (tmp_path / name).write_text(source)
        return dataclasses.replace(model, config=dataclasses.replace(model.config, norm=f"{tmp_path / name}:norm"))

    source = "def norm(x, epsilon): return x\n"
    one, copy, other = with_norm("a.py", source), with_norm("b.py", source), with_norm("c.py", source + "# edited\n")
    assert average([one, copy]).config == one.config
    hashed = "norm of a file with SHA-256 .{12}"
    with pytest.raises(UserError, match=rf"norm is {hashed} and {hashed}; name models"):
        average([one, other])


def test_models_with_differences_are_not_averaged_and_the_difference_is_named(model, vocabulary, tmp_path):
    other = as_model(*make_model(vocabulary, num_layers=1, activation="relu"), vocabulary)
    with pytest.raises(UserError, match=r"activation is gelu_tanh and relu") as caught:
        average([model, other])
    assert "num_layers is 2 and 1" in str(caught.value)
    fewer = dataclasses.replace(model, params={k: v for k, v in model.params.items() if k != "nsp_head"})
    with pytest.raises(UserError, match=r"parts is pooler, mlm_head, nsp_head and pooler, mlm_head"):
        average([model, fewer])
    pieces = model.tokenizer.pieces
    swapped = vocabulary_file(tmp_path / "v.txt", [*pieces[:-2], pieces[-1], pieces[-2]], False)
    with pytest.raises(UserError, match="sha256 is"):
        average([model, dataclasses.replace(model, tokenizer=swapped)])


def test_pieces_match_between_wordpiece_and_sentencepiece_by_their_text(model):
    documents = [["the capital of france is paris", "the river is the capital of the river"]] * 50
    new = train_sentencepiece(documents, 40, False)
    sources = find_sources(model.tokenizer, new)
    old = model.tokenizer.pieces
    spelling = {piece: [old[i] for i in ids] for piece, ids in zip(new.pieces, sources.of, strict=True)}
    letters = [piece for piece in new.pieces if len(piece) == 1 and piece.isascii()]
    assert len(letters) > 10
    assert [spelling[letter] for letter in letters] == [[f"##{letter}"] for letter in letters]
    assert (spelling["\u2581river"], spelling["is"]) == (["river"], ["##i", "##s"])
    assert sources.of[new.mask_id] == (model.tokenizer.mask_id,)
    back = find_sources(new, model.tokenizer)
    assert back.of[old.index("##e")] == (new.pieces.index("e"),)
    with pytest.raises(UserError, match="cannot be added to a sentencepiece model"):
        extended(new, ["lake"])


def test_a_word_starts_from_old_pieces_after_a_space_and_a_mark_from_others(tmp_path):
    old = train_bpe([["a c++ compiler and a c compiler, a + b and c"]] * 50, 300, None)
    new = vocabulary_file(tmp_path / "new.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "c++", "+c"], True)
    spelt = [old.tokens(ids) for ids in find_sources(old, new).of[5:]]
    assert spelt == [old.tokens(old.encode(text)) for text in (" c++", "+c")]
    assert [pieces[0][0] for pieces in spelt] == ["\u2581", "+"]


def test_a_changed_vocabulary_drops_rows_without_a_piece(vocabulary, tmp_path):
    tokenizer = load_tokenizer(vocabulary)
    padded = as_model(*make_model(vocabulary, vocab_size=tokenizer.size + 5), vocabulary)
    longer = extended(tokenizer, ["lockdown"])
    words = find_sources(tokenizer, longer)
    changed = reloaded(with_vocabulary(padded, longer, words), tmp_path / "m")
    assert changed.config.vocab_size == tokenizer.size + 1
    np.testing.assert_array_equal(words_of(changed)[: tokenizer.size], words_of(padded)[: tokenizer.size])
