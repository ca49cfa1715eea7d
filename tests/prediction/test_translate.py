"""`translate`: the translation of a text does not depend on the other texts, untranslatable texts are rejected, and the scores
equal sacrebleu's scores."""

from __future__ import annotations

import copy
import dataclasses
import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.data.corpus.store import Corpus
from bert_jax.data.tokenizers import vocabulary_training as training
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model
from bert_jax.model.config import ModelConfig, published
from bert_jax.model.tokens import Tokens
from bert_jax.prediction import translating
from bert_jax.prediction.commands import COMMANDS
from bert_jax.prediction.decoding import Continued
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

pytestmark = pytest.mark.usefixtures("one_shape")
TEXTS = ["a dog runs", "two men sit on a bench in the park and look at the children who play there", "snow", "a man in a red hat"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return training.train_bpe(([text] for text in TEXTS * 3), 384, None)


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> Engine:
    small = {
        "vocab_size": tokenizer.size, "hidden_size": 16, "num_layers": 1, "decoder_layers": 1, "num_heads": 2,
        "intermediate_size": 32, "max_position": 64, "initializer_range": 0.5,
    }  # fmt: skip
    config = ModelConfig(**published("transformer_base") | small)
    params = jax.tree.map(np.asarray, drawn_parameters(config))
    with first_devices():
        return Engine(Model(params=params, config=config, tokenizer=tokenizer, source="small"))


def records(texts: list[str]) -> list[dict[str, str]]:
    return [{"text": text} for text in texts]


def test_translations_keep_the_order_and_do_not_depend_on_other_texts(engine: Engine):
    question = Translate(length_penalty=2.0, max_length=15)
    together = ask_each(engine, question, records(TEXTS))
    assert [answer["text"] for answer in together] == TEXTS
    one_by_one = copy.copy(engine)
    one_by_one.tokens = 1
    for one, alone in zip(together, ask_each(one_by_one, question, records(TEXTS)), strict=True):
        assert (one["text"], one["translation"]) == (alone["text"], alone["translation"])
        assert one["score"] == pytest.approx(alone["score"], rel=1e-4)


def test_a_batch_has_as_many_hypotheses_with_more_beams(engine: Engine, monkeypatch):
    counts: list[int] = []

    def translated(params: Any, source: Tokens, knobs: Any, *, room: int, **settings: Any) -> Continued:
        counts.append(len(source.ids) * settings["decoding"].beams)
        nothing = np.zeros(len(source.ids))
        return Continued(np.full((len(nothing), room), engine.model.tokenizer.sep_id), nothing, nothing)

    monkeypatch.setattr(translating, "translated", translated)
    for beams in (1, 4, 64):
        assert len(translating.translate(engine, [[7, 3]] * 64, beams)) == 64
        assert max(counts) == min(4, beams) * engine.tokens // 64
        counts.clear()


def test_a_translation_is_limited_by_its_text_and_the_positions(engine: Engine):
    tokenizer, endless = engine.model.tokenizer, copy.copy(engine)
    bias = engine.params["lm_head"]["final_logits_bias"].at[tokenizer.sep_id].set(-1e3)
    endless.params = engine.params | {"lm_head": engine.params["lm_head"] | {"final_logits_bias": bias}}
    sources = [[*tokenizer.encode(text), tokenizer.sep_id] for text in TEXTS]
    for limit, most in ((3, [3] * 4), (None, [min(len(source) + 50, 63) for source in sources])):
        found = translating.translate(endless, sources, max_length=limit)
        assert [len(best.ids) + 1 for best in found] == most, "with the end token, which is forced"


def test_a_translator_neither_scores_nor_embeds_texts_nor_fills_masks(engine: Engine):
    for question in (Score(), Embed(), FillMask()):
        with pytest.raises(UserError, match=r"^small is an encoder-decoder, and its encoder reads no \[CLS\]; name an encoder"):
            question.check(engine)


def test_a_text_is_translated_without_additional_white_space_as_in_a_corpus(engine: Engine, monkeypatch):
    """A byte-level tokenizer has tokens for spaces; here, each character is a token."""
    monkeypatch.setattr(type(engine.model.tokenizer), "encode", lambda self, text: [*map(ord, text)])
    text, ids = Translate().prepare(engine, {"text": " a\u00a0 b "})
    assert (text, len(ids)) == (" a\u00a0 b ", 4)


def test_too_long_and_empty_texts_are_refused_and_others_translated(engine: Engine):
    found = ask_each(engine, Translate(), records(["the " * 64, *TEXTS, ""]))
    assert isinstance(found[0], UserError)
    assert "tokens with its end token, more than the 64 positions of small; split it into sentences" in str(found[0])
    assert [answer["text"] for answer in found[1:5]] == TEXTS
    assert str(found[5]) == "'' has no tokens; give text"


def test_options_out_of_range_and_other_models_are_refused(engine: Engine, predictor: Predictor, tmp_path: pathlib.Path):
    with pytest.raises(
        UserError,
        match=r"--max-length=64 is more than 63, the number of positions of small after the start "
        r"token; lower it",
    ):
        Translate(max_length=64).check(engine)
    half = engine.model.tokenizer.size // 2
    with pytest.raises(UserError, match=rf"--beams=200 must be at most {half}, half the size of the vocabulary"):
        Translate(beams=200).check(engine)
    with pytest.raises(UserError, match=r"--references=.*gone cannot be read: No such file"):
        Translate(references=str(tmp_path / "gone")).check(engine)
    with pytest.raises(UserError, match="/model is not an encoder-decoder, so it cannot translate; name a model"):
        Translate().check(predictor.engine)


def test_the_predictor_has_translate_and_every_other_command(engine: Engine):
    found = Predictor(engine).translate(TEXTS, length_penalty=2.0)
    assert found == ask_each(engine, Translate(length_penalty=2.0), records(TEXTS))
    assert all(callable(getattr(Predictor, name.replace("-", "_"))) for name in COMMANDS)


def test_the_scores_equal_sacrebleu_with_its_signatures(engine: Engine, tmp_path: pathlib.Path):
    question = Translate()
    translations = [answer["translation"] for answer in ask_each(engine, question, records(TEXTS))]
    path = tmp_path / "references"
    path.write_text("\ufeff" + "".join(f"{line}\n" for line in (*translations, *translations[::-1])))
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
    (best,) = translating.translate(marian, [ids], 1, max_length=12)
    (answer,) = ask_each(marian, Translate(beams=1, max_length=12), records(["The object"]))
    spelt, pieces = answer["translation"], json.loads((tmp_path / "target_vocab.json").read_text())
    own = {i: piece for piece, i in pieces.items()}
    assert spelt.replace(" ", "") == "".join(own[i] for i in best.ids if i != pieces["<unk>"]).replace("\u2581", "")
    assert spelt != tokenizer.decode(best.ids)
    assert best.score == pytest.approx(best.log_probability / ((5 + len(best.ids) + 1) / 6) ** 0.6), "without a search too"


def corpus_of_sides(sides: list[list[int]], tokenizer: Tokenizer) -> Corpus:
    """Returns a corpus of pairs in memory; `sides` are a source, its target, the next source, and so on."""
    tokens, offsets = np.concatenate(sides).astype(np.uint16), np.cumsum([0, *map(len, sides)])
    return corpus_from_arrays(tokens, offsets, np.arange(0, len(sides) + 1, 2), tokenizer.vocabulary)


def test_the_first_held_out_pairs_that_fit_with_their_end_token_are_scored(engine: Engine, tokenizer: Tokenizer, monkeypatch):
    monkeypatch.setattr(translating, "HELD_OUT", 5)
    monkeypatch.setattr(translating, "AT_A_TIME", 1)
    longest, too_long, *short = [[7] * 63, [7] * 64, *(tokenizer.encode(text) for text in TEXTS[:3])]
    fitting = [[*source, tokenizer.sep_id] for source in (short[0], longest, *short[1:])]
    one_by_one = copy.copy(engine)
    one_by_one.tokens = 1
    ids = [list(best.ids) for best in translating.translate(one_by_one, fitting)]
    pairs = [(short[0], ids[0]), (longest, ids[1]), (too_long, [8]), (short[1], ids[2]), (short[2], ids[3]), (short[0], [8])]
    alive = []
    with first_devices():
        scores = held_out_scores(
            engine.model, corpus_of_sides([side for pair in pairs for side in pair], tokenizer), lambda: alive.append(True)
        )
        assert held_out_scores(engine.model, corpus_of_sides([too_long, [8]], tokenizer)) == {}
    assert (scores["pairs"], scores["beams"], scores["length_penalty"]) == (4, 4, "gnmt 0.6")
    assert (scores["chrf"], len(alive)) == (pytest.approx(100.0), 4)


@pytest.mark.parametrize(
    ("sources", "languages", "best"),
    [
        (["tfds:wmt14_translate/de-en"], ("en", "de"), 28.4),
        (["tfds:wmt14_translate/fr-en:train", "parallel:more.tsv"], ("en", "fr"), 41.8),
        (["tfds:wmt14_translate/de-en"], ("de", "en"), None),
        (["tfds:wmt14_translate/de-en"], None, None),
        (["parallel:train.en:train.de"], ("en", "de"), None),
    ],
)
def test_a_translation_run_on_wmt14_shows_the_published_rows_of_its_direction(sources, languages, best, tokenizer, tmp_path):
    (tmp_path / "settings.json").write_text(json.dumps({"sources": sources}))
    corpus = dataclasses.replace(corpus_of_sides([[7], [8]], tokenizer), directory=tmp_path, languages=languages)
    rows = translating.published_translations(corpus)
    assert max((row.scores["bleu"] for row in rows), default=None) == best
    assert all("not comparable with scores on held-out pairs" in row.note for row in rows)
    assert translating.published_translations(dataclasses.replace(corpus, directory=tmp_path / "gone")) == ()
