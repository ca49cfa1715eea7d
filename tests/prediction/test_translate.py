"""`translate`: the translation of a text does not depend on the other texts, untranslatable texts are rejected, and the scores
equal sacrebleu's scores."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import types

import jax
import numpy as np
import pytest

from bert_jax.data.tokenizers import vocabulary_training as training
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model
from bert_jax.model.config import ModelConfig, published
from bert_jax.prediction import translating
from bert_jax.prediction.commands import COMMANDS
from bert_jax.prediction.embedding import Embed
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.language import FillMask, Score
from bert_jax.prediction.predictor import Predictor
from bert_jax.prediction.questions import ask_each
from bert_jax.prediction.translating import Translate, held_out_scores, translation_scores
from tests.data.corpora import corpus_from_arrays
from tests.data.tokenizers.test_marian_tokenizer import write_marian
from tests.prediction.reference import first_devices
from tests.random_rows import drawn_parameters

TEXTS = ["a dog runs", "two men sit on a bench in the park and look at the children who play there", "snow", "a man in a red hat"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return training.train_bpe(([text] for text in TEXTS * 3), 384, None)


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> Engine:
    small = {
        "vocab_size": tokenizer.size, "hidden_size": 16, "num_layers": 1, "decoder_layers": 2, "num_heads": 2,
        "intermediate_size": 32, "max_position": 40, "initializer_range": 0.5,
    }  # fmt: skip
    config = ModelConfig(**published("transformer_base") | small)
    params = jax.tree.map(np.asarray, drawn_parameters(config))
    with first_devices():
        return Engine(Model(params=params, config=config, tokenizer=tokenizer, source="small"))


def records(texts: list[str]) -> list[dict[str, str]]:
    return [{"text": text} for text in texts]


def test_translations_keep_the_order_and_do_not_depend_on_other_texts(engine: Engine, monkeypatch):
    question = Translate(beams=3, penalty="transformers", length_penalty=2.0, max_length=15)
    together = ask_each(engine, question, records(TEXTS))
    assert [answer["text"] for answer in together] == TEXTS
    monkeypatch.setattr(engine, "tokens", 1)  # one text per batch
    for one, alone in zip(together, ask_each(engine, question, records(TEXTS)), strict=True):
        assert (one["text"], one["translation"]) == (alone["text"], alone["translation"])
        assert one["score"] == pytest.approx(alone["score"], rel=1e-4)


@pytest.mark.usefixtures("one_shape")
def test_a_translation_is_limited_by_its_text_and_the_positions(engine: Engine, monkeypatch):
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids, target: str(len(ids)))
    for limit, further, most in ((3, 50, 3), (None, 50, 39), (None, 2, 39)):
        monkeypatch.setattr(translating, "BEYOND", further)
        for answer in ask_each(engine, Translate(beams=2, max_length=limit), records(TEXTS)):
            own = len(engine.model.tokenizer.encode(answer["text"])) + 1 + further
            assert int(answer["translation"]) <= min(most, own)


def test_a_translator_neither_scores_nor_embeds_texts_nor_fills_masks(engine: Engine):
    for question in (Score(), Embed(), FillMask()):
        with pytest.raises(UserError, match=r"^small is an encoder-decoder, and its encoder reads no \[CLS\]; name an encoder"):
            question.check(engine)


@pytest.mark.usefixtures("one_shape")
def test_too_long_and_empty_texts_are_refused_and_others_translated(engine: Engine):
    found = ask_each(engine, Translate(beams=2), records(["the " * 40, *TEXTS, ""]))
    assert isinstance(found[0], UserError)
    assert "tokens with its end token, more than the 40 positions of small; split it into sentences" in str(found[0])
    assert [answer["text"] for answer in found[1:5]] == TEXTS
    assert str(found[5]) == "'' has no tokens; give text"


def test_options_out_of_range_and_other_models_are_refused(engine: Engine, tmp_path: pathlib.Path):
    with pytest.raises(
        UserError,
        match=r"--max-length=40 is more than 39, the number of positions of small after the start "
        r"token; lower it",
    ):
        Translate(max_length=40).check(engine)
    with pytest.raises(UserError, match=r"--beams=200 must be at most \d+, half the size of the vocabulary"):
        Translate(beams=200).check(engine)
    with pytest.raises(UserError, match=r"--references=.*gone cannot be read: No such file"):
        Translate(references=str(tmp_path / "gone")).check(engine)

    class Other:
        name, config = "bert", ModelConfig()

    with pytest.raises(UserError, match="bert is not an encoder-decoder, so it cannot translate; name a model"):
        Translate().check(Other())  # type: ignore[arg-type]


@pytest.mark.usefixtures("one_shape")
def test_the_predictor_has_translate_and_every_other_command(engine: Engine):
    found = Predictor(engine).translate(TEXTS, beams=2)
    assert found == ask_each(engine, Translate(beams=2), records(TEXTS))
    assert all(callable(getattr(Predictor, name.replace("-", "_"))) for name in COMMANDS)


@pytest.mark.usefixtures("one_shape")
def test_the_scores_equal_sacrebleu_with_its_signatures(engine: Engine, tmp_path: pathlib.Path):
    question = Translate(beams=2)
    translations = [answer["translation"] for answer in ask_each(engine, question, records(TEXTS))]
    path = tmp_path / "references"
    path.write_text("".join(f"{line}\n" for line in (*translations, *translations[::-1])))
    asked = dataclasses.replace(question, references=str(path))
    asked.check(engine)
    ask_each(engine, asked, records(TEXTS))
    ask_each(engine, asked, records(TEXTS[::-1]))
    bleu, chrf = asked.summary(True)
    assert bleu.endswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0")
    assert chrf.startswith("chrF 100.00   nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0")
    path.write_text("one\n")
    short = dataclasses.replace(question, references=str(path))
    ask_each(engine, short, records(TEXTS))
    with pytest.raises(
        UserError,
        match=r"--references=.* has 1 line, but 4 texts were translated, so there is no score; give "
        r"one",
    ):
        short.summary(True)
    assert question.summary(True) == []


def test_bleu_equals_a_score_by_hand():
    """There are two sentences, one of which differs in a word: precisions 8/9, 5/7, 3/5, 1/3 of 1- to 4-grams, no brevity
    penalty."""
    found = translation_scores(["the cat sat on the mat", "a dog ran"], ["the cat sat on a mat", "a dog ran"])
    assert found["bleu"] == pytest.approx(100 * (8 / 9 * 5 / 7 * 3 / 5 * 1 / 3) ** 0.25)


def test_a_translation_is_decoded_with_the_target_vocabulary(tmp_path: pathlib.Path):
    tokenizer = load_tokenizer(write_marian(tmp_path, separate=True))
    words = len(json.loads((tmp_path / "target_vocab.json").read_text()))
    sizes = {"vocab_size": tokenizer.size, "decoder_vocab_size": words, "num_layers": 1, "decoder_layers": 1, "hidden_size": 16}
    config = ModelConfig(**published("transformer_base") | sizes | {"intermediate_size": 32, "initializer_range": 0.5})
    params = jax.tree.map(np.asarray, drawn_parameters(config))
    with first_devices():
        marian = Engine(Model(params=params, config=config, tokenizer=tokenizer, source="marian"))
    ids = [*tokenizer.encode("The object"), tokenizer.sep_id]
    (best,) = translating.translate(marian, [ids], max_length=12)
    (answer,) = ask_each(marian, Translate(max_length=12), records(["The object"]))
    spelt, pieces = answer["translation"], json.loads((tmp_path / "target_vocab.json").read_text())
    own = {i: piece for piece, i in pieces.items()}
    assert spelt.replace(" ", "") == "".join(own[i] for i in best.ids if i != pieces["<unk>"]).replace("\u2581", "")
    assert spelt != tokenizer.decode(best.ids)


@pytest.mark.usefixtures("one_shape")
def test_the_first_held_out_pairs_of_a_corpus_are_translated(engine: Engine, tokenizer: Tokenizer, monkeypatch):
    monkeypatch.setattr(translating, "HELD_OUT", 2)
    sides = [tokenizer.encode(text) for text in (*TEXTS, TEXTS[1], TEXTS[0])]
    offsets = np.cumsum([0, *map(len, sides)])
    corpus = corpus_from_arrays(np.concatenate(sides).astype(np.uint16), offsets, np.array([0, 2, 4, 6]), tokenizer.vocabulary)
    alive = []
    with first_devices():
        scores = held_out_scores(engine.model, corpus, lambda: alive.append(True))
    assert (scores["pairs"], scores["beams"], scores["length_penalty"]) == (2, 4, "gnmt 0.6")
    assert alive
    wanted = [answer["translation"] for answer in ask_each(engine, Translate(), records([TEXTS[0], TEXTS[2]]))]
    assert scores["chrf"] == translation_scores(wanted, [TEXTS[1], TEXTS[3]])["chrf"]


def test_sources_that_do_not_fit_with_their_end_token_are_left_out(engine: Engine, tokenizer: Tokenizer, monkeypatch):
    asked: list[list[int]] = []

    def noted(engine: Engine, sources: list[list[int]]) -> list[translating.Translation]:
        asked.append([len(source) for source in sources])
        return [translating.Translation((), 0.0, 0.0)] * len(sources)

    monkeypatch.setattr(translating, "translate", noted)
    monkeypatch.setattr(translating, "AT_A_TIME", 2)
    lengths = np.array([39, 1, 40, 1, 5, 1, 7, 1])  # each source has a target of one token
    tokens, offsets = np.full(lengths.sum(), 7, np.uint16), np.cumsum([0, *lengths])
    corpus = corpus_from_arrays(tokens, offsets, np.arange(0, 9, 2), tokenizer.vocabulary)
    longest = corpus_from_arrays(tokens[40:81], offsets[2:5] - 40, np.array([0, 2]), tokenizer.vocabulary)
    with first_devices():
        assert held_out_scores(engine.model, corpus)["pairs"] == 3
        assert held_out_scores(engine.model, longest) == {}
    assert asked == [[40, 6], [8]]


@pytest.mark.parametrize(
    ("sources", "languages", "best"),
    [
        (["tfds:wmt14_translate/de-en"], ("en", "de"), 28.4),
        (["tfds:wmt14_translate/fr-en:train", "parallel:more.tsv"], ("en", "fr"), 41.8),
        (["tfds:wmt14_translate/de-en"], ("de", "en"), None),
        (["parallel:train.en:train.de"], ("en", "de"), None),
    ],
)
def test_a_translation_run_on_wmt14_shows_the_published_rows_of_its_direction(sources, languages, best, tmp_path):
    (tmp_path / "settings.json").write_text(json.dumps({"sources": sources}))
    rows = translating.published_translations(types.SimpleNamespace(directory=tmp_path, languages=languages))
    assert max((row.scores["bleu"] for row in rows), default=None) == best
    assert all("not comparable with scores on held-out pairs" in row.note for row in rows)
    assert translating.published_translations(types.SimpleNamespace(directory=tmp_path / "gone", languages=languages)) == ()
