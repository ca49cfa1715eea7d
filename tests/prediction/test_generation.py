"""`generate` and the other answers of a left-to-right model, through an exported model."""

from __future__ import annotations

import copy
import json
import pathlib

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model, export_model, import_model, without_parts
from bert_jax.interop.surgery import with_positions
from bert_jax.model.config import ModelConfig
from bert_jax.prediction.embedding import Embed
from bert_jax.prediction.generation import Generate
from bert_jax.prediction.packing import Item
from bert_jax.prediction.predictor import Predictor
from bert_jax.prediction.questions import ask_each
from tests.interop.tiny import as_model, make_model
from tests.prediction.reference import engine_on, pretrained_outputs

SETTINGS = {"direction": "left_to_right", "positions": "sinusoidal", "num_layers": 1}
TEXTS = ["the capital of France is", "a", "paris is the river of Paris and", "Apfel is"]


@pytest.fixture(scope="module")
def model(vocabulary: pathlib.Path) -> Model:
    return as_model(*make_model(vocabulary, **SETTINGS), vocabulary)


@pytest.fixture(scope="module")
def predictor(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    path = tmp_path_factory.mktemp("causal") / "model"
    export_model(path, without_parts(model, ["pooler", "nsp_head"]))
    return Predictor(engine_on(path, tokens=128))  # four texts at a time


def probabilities(model: Model, ids: list[int]) -> np.ndarray:
    """Returns the probabilities [n, V] from the whole model."""
    return pretrained_outputs(model, ids)["mlm"]


def test_a_left_to_right_model_survives_export(model: Model, predictor: Predictor):
    back = import_model(predictor.engine.name)
    assert (back.config.direction, back.config.positions) == ("left_to_right", "sinusoidal")
    assert "position_embeddings" not in back.params["embeddings"]
    written = json.loads((pathlib.Path(predictor.engine.name) / "config.json").read_text())
    assert (written["architectures"], written["is_decoder"]) == (["BertLMHeadModel"], True)
    assert (written["bos_token_id"], written["eos_token_id"]) == (model.tokenizer.cls_id, model.tokenizer.sep_id)
    jax.tree.map(np.testing.assert_array_equal, back.params["encoder"], model.params["encoder"])


def test_a_trained_position_table_is_not_read_as_sinusoids(model: Model, tmp_path: pathlib.Path):
    export_model(tmp_path / "m", without_parts(model, ["pooler", "nsp_head"]))
    config = tmp_path / "m" / "config.json"
    config.write_text(config.read_text().replace('"positions": "sinusoidal"', '"positions": "none"'))
    with pytest.raises(UserError, match=r'is not the none table of 40 rows that config.json names; .*remove "positions"'):
        import_model(tmp_path / "m")


def test_more_sinusoidal_positions_follow_the_formula(model: Model):
    longer = with_positions(model, 80)
    assert longer.config.max_position == 80
    jax.tree.map(np.testing.assert_array_equal, longer.params, model.params)


def test_texts_are_continued_equally_alone_and_together(model: Model, predictor: Predictor):
    together, one_by_one = predictor.generate(TEXTS, tokens=6), copy.copy(predictor.engine)
    one_by_one.tokens = 1
    alone = Predictor(one_by_one).generate(TEXTS, tokens=6)
    assert [(answer["text"], answer["tokens"]) for answer in alone] == [(answer["text"], answer["tokens"]) for answer in together]
    assert [answer["text"] for answer in together] == TEXTS
    tokenizer = model.tokenizer
    ids = [tokenizer.cls_id, *tokenizer.encode(TEXTS[0])]
    for token in together[0]["tokens"]:
        ids.append(int(probabilities(model, ids)[-1].argmax()))
        assert tokenizer.tokens(ids[-1:]) == [token]
    assert together[0]["continued"] == tokenizer.decode(ids[1:])


def test_the_log_probability_is_the_sum_over_the_tokens_with_beams_too(model: Model, predictor: Predictor):
    for beams in (1, 3):
        (answer,) = predictor.generate(TEXTS[:1], tokens=6, beams=beams)
        tokenizer = model.tokenizer
        ids = [tokenizer.cls_id, *tokenizer.encode(TEXTS[0])]
        new = [tokenizer.pieces.index(token) for token in answer["tokens"]] + [tokenizer.sep_id] * answer["ended"]
        p = np.log(probabilities(model, [*ids, *new]))
        total = sum(p[len(ids) + i - 1, token] for i, token in enumerate(new))
        assert answer["log_probability"] == pytest.approx(total, abs=1e-3)
        assert answer.get("score") == (None if beams == 1 else pytest.approx(total / len(new), abs=1e-3))


def test_a_draw_is_reproduced_only_by_its_seed(predictor: Predictor):
    drawn = [predictor.generate(TEXTS, tokens=6, temperature=2.0, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_draws_do_not_depend_on_the_other_texts(predictor: Predictor):
    def tokens(*groups: list[str]) -> list[list[str]]:
        command = Generate(tokens=6, temperature=2.0, seed=1)
        answers = (ask_each(predictor.engine, command, [{"text": text} for text in group]) for group in groups)
        return [answer["tokens"] for answered in answers for answer in answered]

    texts = [*TEXTS[:3], *TEXTS]
    assert tokens(texts[:4], texts[4:]) == tokens(texts)
    same = tokens(TEXTS, TEXTS)
    assert same[:4] != same[4:]


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
        (
            lambda p: p.generate(["a"], tokens=5, beams=2, top_k=3),
            "--beams=2 searches for the most probable text, .* leave out --beams",
        ),
        (lambda p: p.generate(["a"], tokens=5, beams=100), "--beams=100 must be at most 70, half the size of the vocabulary"),
        (
            lambda p: p.generate(["the " * 30], tokens=20),
            "is 31 tokens with its .CLS.. With --tokens=20 new tokens, it exceeds",
        ),
        (lambda p: p.embed(["a"], pooling="cls"), "reads from left to right, so its .CLS. sees no text; .*--pooling=mean"),
    ],
)
def test_a_left_to_right_model_refuses_other_questions_with_a_remedy(predictor: Predictor, ask, says: str):
    with pytest.raises(UserError, match=says):
        ask(predictor)


@pytest.mark.parametrize("options", [{"tokens": 1}, {"tokens": 38}, {"tokens": 5, "beams": 70}, {"tokens": 5, "top_k": 2}])
def test_options_at_their_limits_are_accepted(predictor: Predictor, options):
    question = Generate(**options)
    question.check(predictor.engine)
    _, item = question.prepare(predictor.engine, {"text": "the"})
    assert len(item.ids) == 2, "[CLS] and the word"


def test_a_text_and_its_new_tokens_may_fill_the_position_table(predictor: Predictor):
    _, item = Generate(tokens=20).prepare(predictor.engine, {"text": "the " * 19})
    assert len(item.ids) == 20


def test_a_left_to_right_model_embeds_by_the_mean(predictor: Predictor):
    Embed().check(predictor.engine)
    with pytest.raises(UserError, match=r"reads from left to right, so its .CLS. sees no text"):
        Embed(pooling="pooler").check(predictor.engine)


def test_draws_are_among_the_tokens_that_top_k_and_top_p_leave(model: Model, predictor: Predictor):
    def tokens(**options: float) -> list[str]:
        answer = predictor.generate(TEXTS, tokens=6, **options)[0]
        found: list[str] = answer["tokens"]
        return found

    assert tokens(temperature=1e-4) == tokens(temperature=9.0, top_k=2, top_p=1e-6) == tokens()
    tokenizer, drawn = model.tokenizer, tokens(temperature=9.0, top_k=2, top_p=1.0)
    assert drawn != tokens()
    ids = [tokenizer.cls_id, *tokenizer.encode(TEXTS[0])]
    for new in map(tokenizer.pieces.index, drawn):
        assert new in probabilities(model, ids)[-1].argsort()[-2:]
        ids.append(new)


def test_a_text_ends_with_its_end_token(predictor: Predictor):
    engine, head = copy.copy(predictor.engine), predictor.engine.params["mlm_head"]
    end = engine.model.tokenizer.sep_id
    engine.params = engine.params | {"mlm_head": head | {"bias": head["bias"].at[end].set(1e3)}}
    (answer,) = Predictor(engine).generate(["the river"], tokens=6)
    assert (answer["continued"], answer["tokens"], answer["ended"]) == ("the river", [], True)
    assert answer["log_probability"] == pytest.approx(0.0, abs=1e-3)
    (answer,) = predictor.generate(["the river"], tokens=6)
    assert (len(answer["tokens"]), answer["ended"]) == (6, False)


def test_ids_beyond_the_vocabulary_are_refused(predictor: Predictor):
    with pytest.raises(UserError, match="input_ids holds 999"):
        Generate(tokens=6).answer(predictor.engine, [("t", Item([2, 999]))])


def test_an_lstm_refuses_to_generate(vocabulary: pathlib.Path, tmp_path: pathlib.Path):
    params, config = make_model(vocabulary, encoder="bilm", direction="left_to_right")
    export_model(tmp_path / "lstm", without_parts(as_model(params, config, vocabulary), ["pooler"]))
    says = f"^{tmp_path / 'lstm'} is a bilm model, which cannot generate text; name a left-to-right BERT$"
    with pytest.raises(UserError, match=says):
        Predictor(engine_on(tmp_path / "lstm")).generate(["a"])


def test_a_bidirectional_model_refuses_to_generate(directory: pathlib.Path):
    assert ModelConfig().direction == "both"
    with pytest.raises(UserError, match="reads both sides of a token, so it cannot generate text; name a model trained with"):
        Predictor(engine_on(directory)).generate(["a"])
