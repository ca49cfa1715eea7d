"""`generate` and what else a left-to-right model answers, through an exported model."""

from __future__ import annotations

import json
import pathlib

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model, export_model, import_model, without_parts
from bert_jax.interop.surgery import with_positions
from bert_jax.model.config import ModelConfig
from bert_jax.prediction.generation import Generate
from bert_jax.prediction.predictor import Predictor
from bert_jax.prediction.questions import ask_each
from tests.interop.tiny import as_model, make_model
from tests.prediction.reference import engine_on, pretrained_outputs

SETTINGS = {"direction": "left_to_right", "positions": "sinusoidal"}
TEXTS = ["the capital of France is", "a", "paris is the river of Paris and", "Apfel is"]


@pytest.fixture(scope="module")
def model(vocabulary: pathlib.Path) -> Model:
    return as_model(*make_model(vocabulary, **SETTINGS), vocabulary)


@pytest.fixture(scope="module")
def predictor(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    path = tmp_path_factory.mktemp("causal") / "model"
    export_model(path, without_parts(model, ["pooler", "nsp_head"]))
    return Predictor(engine_on(path, tokens=400))


def probabilities(model: Model, ids: list[int]) -> np.ndarray:
    """[n, V], by the whole model."""
    return pretrained_outputs(model, ids)["mlm"]


def test_a_left_to_right_model_comes_back_from_its_export_as_it_was(model: Model, predictor: Predictor):
    back = import_model(predictor.engine.name)
    assert (back.config.direction, back.config.positions) == ("left_to_right", "sinusoidal")
    assert "position_embeddings" not in back.params["embeddings"]
    written = json.loads((pathlib.Path(predictor.engine.name) / "config.json").read_text())
    assert (written["architectures"], written["is_decoder"]) == (["BertLMHeadModel"], True)
    assert (written["bos_token_id"], written["eos_token_id"]) == (model.tokenizer.cls_id, model.tokenizer.sep_id)
    jax.tree.map(np.testing.assert_array_equal, back.params["encoder"], model.params["encoder"])


def test_a_trained_table_is_not_taken_for_the_sinusoids(model: Model, tmp_path: pathlib.Path):
    export_model(tmp_path / "m", without_parts(model, ["pooler", "nsp_head"]))
    config = tmp_path / "m" / "config.json"
    config.write_text(config.read_text().replace('"positions": "sinusoidal"', '"positions": "none"'))
    with pytest.raises(UserError, match=r'is not the none table of 40 rows that config.json names; .*remove "positions"'):
        import_model(tmp_path / "m")


def test_more_positions_are_more_rows_of_the_formula(model: Model):
    longer = with_positions(model, 80)
    assert longer.config.max_position == 80
    jax.tree.map(np.testing.assert_array_equal, longer.params, model.params)


def test_texts_are_continued_as_the_whole_model_says_alone_and_together(model: Model, predictor: Predictor):
    together = predictor.generate(TEXTS, tokens=6)
    for text, answer in zip(TEXTS, together, strict=True):
        assert answer["tokens"] == predictor.generate([text], tokens=6)[0]["tokens"]
    tokenizer = model.tokenizer
    ids = [tokenizer.cls_id, *tokenizer.encode(TEXTS[0])]
    for token in together[0]["tokens"]:
        ids.append(int(probabilities(model, ids)[-1].argmax()))
        assert tokenizer.tokens(ids[-1:]) == [token]
    assert together[0]["continued"] == tokenizer.decode(ids[1:])


def test_a_draw_is_repeated_by_its_seed_alone(predictor: Predictor):
    drawn = [predictor.generate(TEXTS, tokens=6, temperature=2.0, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_draws_of_a_text_do_not_depend_on_the_texts_that_arrive_with_it(predictor: Predictor):
    def tokens(*groups: list[str]) -> list[list[str]]:
        verb = Generate(tokens=6, temperature=2.0, seed=1)
        answers = (ask_each(predictor.engine, verb, [{"text": text} for text in group]) for group in groups)
        return [answer["tokens"] for answered in answers for answer in answered]

    assert tokens(TEXTS[:1], TEXTS[1:]) == tokens(TEXTS)
    first, second = tokens(["a"], ["a"])
    assert first != second


def test_the_score_of_a_text_is_the_log_likelihood_of_its_tokens(model: Model, predictor: Predictor):
    (answer,) = predictor.score([TEXTS[0]])
    tokenizer = model.tokenizer
    ids = [tokenizer.cls_id, *tokenizer.encode(TEXTS[0]), tokenizer.sep_id]
    p = np.log(probabilities(model, ids))
    wanted = [p[i - 1, ids[i]] for i in range(1, len(ids) - 1)]
    np.testing.assert_allclose([token["log_probability"] for token in answer["tokens"]], wanted, atol=1e-4)
    assert answer["log_likelihood"] == pytest.approx(sum(wanted), abs=1e-3)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda p: p.fill_mask(["the [MASK]"]), "reads from left to right, so it cannot fill a .MASK.; name a model"),
        (lambda p: p.generate(["a"], tokens=39), "--tokens=39 must be between 1 and 38, so that .* convert --max-position=N"),
        (lambda p: p.generate(["a"], tokens=5, beams=2, top_k=3), "--beams=2 searches the most probable text, .* leave out the"),
        (lambda p: p.generate(["a"], tokens=5, beams=100), "--beams=100 must be at most half of the vocabulary's"),
        (lambda p: p.generate(["the " * 30], tokens=20), "is 31 tokens with its .CLS., and with --tokens=20 new ones more than"),
        (lambda p: p.embed(["a"], pooling="cls"), "reads from left to right, so its .CLS. sees no text; .*--pooling=mean"),
    ],
)
def test_what_a_left_to_right_model_cannot_do_is_refused_with_the_remedy(predictor: Predictor, ask, says: str):
    with pytest.raises(UserError, match=says):
        ask(predictor)


def test_an_lstm_does_not_generate(vocabulary: pathlib.Path, tmp_path: pathlib.Path):
    params, config = make_model(vocabulary, encoder="bilm", direction="left_to_right")
    export_model(tmp_path / "lstm", without_parts(as_model(params, config, vocabulary), ["pooler"]))
    says = f"^{tmp_path / 'lstm'} is an LSTM, which cannot generate text here; name a left-to-right BERT$"
    with pytest.raises(UserError, match=says):
        Predictor(engine_on(tmp_path / "lstm")).generate(["a"])


def test_a_model_that_reads_both_sides_does_not_generate(directory: pathlib.Path):
    assert ModelConfig().direction == "both"
    with pytest.raises(UserError, match="reads both sides of a token, so it cannot generate text; name a model trained with"):
        Predictor(engine_on(directory)).generate(["a"])
