from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model, export_model, import_model, without_parts
from bert_jax.prediction import forwards
from bert_jax.prediction.embedding import Embed
from bert_jax.prediction.packing import Item
from bert_jax.prediction.predictor import Predictor
from tests.interop.tiny import make_model
from tests.prediction.reference import WITHIN, engine_on, mixed_texts, pretrained_outputs, with_specials

pytestmark = pytest.mark.usefixtures("one_shape")

LAYERS = (0, -1, 1)
TYPES = {  # in the releases before 6, and since
    "old": "sentence_transformers.models.{}",
    "new": "sentence_transformers.sentence_transformer.modules.some.{}",
}


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return mixed_texts(40)


def vector_by_hand(model, text: str, pooling: str, layers: tuple[int, ...] = (-1,), combine: str = "mean") -> np.ndarray:
    """Computes one vector from the hidden states of the unpacked model, in float64."""
    outputs = pretrained_outputs(model, with_specials(model, text)[0])
    if pooling == "pooler":
        return outputs["pooled"]
    chosen = [outputs["hidden"][layer].astype(np.float64) for layer in layers]
    states = np.concatenate(chosen, axis=-1) if combine == "concat" else np.sum(chosen, axis=0)
    states = states / len(chosen) if combine == "mean" else states
    return states[0] if pooling == "cls" else states.mean(axis=0)


@pytest.mark.parametrize(
    ("pooling", "layers", "combine", "normalise"),
    [
        ("mean", (-1,), "mean", False),
        ("pooler", (-1,), "mean", False),
        ("mean", LAYERS, "concat", True),
        ("cls", LAYERS, "sum", True),
        ("mean", LAYERS, "mean", False),
    ],
)
def test_a_vector_equals_the_pooled_hidden_states_of_the_unpacked_model(
    predictor, pretrained, texts, pooling, layers, combine, normalise
):
    vectors = predictor.embed(texts, pooling=pooling, layers=layers, combine=combine, normalise=normalise)
    assert vectors.dtype == np.float32
    for text, vector in list(zip(texts, vectors, strict=True))[::4]:
        wanted = vector_by_hand(pretrained, text, pooling, layers, combine)
        np.testing.assert_allclose(vector, wanted / np.linalg.norm(wanted) if normalise else wanted, atol=WITHIN)


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_a_text_has_the_same_vector_alone_and_among_others(predictor, texts, pooling):
    together = predictor.embed(texts, pooling=pooling)
    for i in (0, 7, 39):
        np.testing.assert_allclose(predictor.embed([texts[i]], pooling=pooling)[0], together[i], atol=WITHIN)


def test_the_mean_of_one_token_is_that_token(predictor, pretrained):
    cls_id, source = pretrained.tokenizer.cls_id, forwards.CombinedLayers((2,), "mean")
    run = predictor.engine.run
    (found,) = run(forwards.text_vectors, [Item([cls_id])], "text", source=source, pooling="mean", normalise=False)
    np.testing.assert_allclose(found, pretrained_outputs(pretrained, [cls_id])["hidden"][-1, 0], atol=WITHIN)


def test_a_static_vector_is_the_mean_of_the_tokens_without_cls_and_sep(vocabulary, tmp_path):
    params, config = make_model(vocabulary, encoder="static", num_layers=0)
    model = Model(params={"embeddings": params["embeddings"]}, config=config, tokenizer=load_tokenizer(vocabulary))
    export_model(tmp_path / "m", model)
    predictor = Predictor(engine_on(tmp_path / "m"))
    table = params["embeddings"]["word_embeddings"]["embedding"]
    for text in ("the river of Paris", "is"):
        ids = model.tokenizer.encode(text)
        np.testing.assert_allclose(predictor.embed([text])[0], table[ids].mean(0), atol=WITHIN)
    (words,) = predictor.embed_words(["the river"])
    np.testing.assert_allclose(words[0]["embedding"], table[model.tokenizer.encode("the")[0]], atol=WITHIN)
    with pytest.raises(UserError, match=r"so its \[CLS\] sees no text; give --pooling=mean"):
        predictor.embed(["the"], pooling="cls")


def test_pooling_defaults_to_the_mean_of_the_last_layer(predictor, pretrained):
    (vector,) = predictor.embed(["the river of Paris"])
    np.testing.assert_allclose(vector, vector_by_hand(pretrained, "the river of Paris", "mean"), atol=WITHIN)


@pytest.mark.parametrize("normalise", [False, True])
def test_a_word_is_the_mean_of_its_pieces_with_its_characters(predictor, pretrained, normalise):
    texts = [f"{text}, Zurich\u3000中! \U0001f600" for text in mixed_texts(40, longest=20)]
    found = predictor.embed_words(texts, layers=(1, 2), combine="sum", normalise=normalise)
    for text, words in list(zip(texts, found, strict=True))[::8]:
        hidden = pretrained_outputs(pretrained, with_specials(pretrained, text)[0])["hidden"][1:].sum(0)[1:-1]
        _, offsets = pretrained.tokenizer.encode_with_offsets(text)
        assert [(w["start"], w["end"]) for w in words] == pretrained.tokenizer.word_spans(text)
        for word in words:
            assert word["word"] == text[word["start"] : word["end"]]
            own = [k for k, (a, b) in enumerate(offsets) if word["start"] <= a < b <= word["end"]]
            wanted = hidden[own].mean(0)
            wanted = wanted / np.linalg.norm(wanted) if normalise else wanted
            np.testing.assert_allclose(word["embedding"], wanted, atol=WITHIN)
    assert any(len(pretrained.tokenizer.encode(word["word"])) > 3 for word in found[0])


def test_word_vectors_do_not_depend_on_the_other_texts(predictor, texts):
    together = predictor.embed_words(texts)
    for i in (0, 39):
        (alone,) = predictor.embed_words([texts[i]])
        assert [w["word"] for w in alone] == [w["word"] for w in together[i]]
        for ours, theirs in zip(alone, together[i], strict=True):
            np.testing.assert_allclose(ours["embedding"], theirs["embedding"], atol=WITHIN)


@pytest.mark.parametrize("normalise", [False, True])
def test_a_word_vector_uses_the_read_pieces_with_characters(predictor, normalise):
    offsets = [(0, 1), (1, 2), (2, 2), (3, 4), (4, 5), (6, 7), (7, 8)]  # ab, nothing, cd, ef
    vectors = np.float32([[1, 0], [3, 0], [50, 0], [0, 5], [0, 7], [9, 9]])  # the last piece was cut off
    words = Embed(words=True)._words(predictor.engine, "ab cd ef gh", offsets, vectors, normalise)
    found = [(word["word"], word["start"], word["end"], word["embedding"].tolist()) for word in words]
    assert found == [("ab", 0, 2, [1, 0] if normalise else [2, 0]), ("cd", 3, 5, [0, 1] if normalise else [0, 6])]


def test_a_truncated_text_loses_the_words_at_the_cut(predictor):
    text = f"{'the ' * 36}Zurich the"
    words = predictor.embed_words([text], truncate=True)[0]
    assert [w["word"] for w in words] == ["the"] * 36
    assert predictor.embed([text], truncate=True).shape == (1, 16)


Made = Callable[..., Predictor]


@pytest.fixture
def made_for(directory: pathlib.Path, tmp_path: pathlib.Path) -> Made:
    """Returns the predictor of a model in a directory of sentence-transformers with these modules and settings."""

    def make(
        *modules: str,
        pooling: dict[str, Any] | None = None,
        limits: dict[str, Any] | None = None,
        general: dict[str, Any] | None = None,
        release: str = "old",
        longest: int | None = None,
    ) -> Predictor:
        path = tmp_path / "made"
        shutil.copytree(directory, path)
        kinds = ("Transformer", *modules)
        names = ["", *(f"{i}_{kind}" for i, kind in enumerate(modules, 1))]
        described = [
            {"idx": i, "name": str(i), "path": name, "type": TYPES[release].format(kind)}
            for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
        ]
        (path / "modules.json").write_text(json.dumps(described))
        if pooling is not None:
            (path / "1_Pooling").mkdir()
            (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        if limits is not None:
            (path / "sentence_bert_config.json").write_text(json.dumps(limits))
        if general is not None:
            (path / "config_sentence_transformers.json").write_text(json.dumps(general))
        if longest is not None:
            settings = json.loads((path / "tokenizer_config.json").read_text())
            (path / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": longest}))
        return Predictor(engine_on(path))

    return make


def older(**modes: bool) -> dict[str, Any]:
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    return {"word_embedding_dimension": 16} | {f"pooling_mode_{name}": modes.get(name, False) for name in names}


@pytest.mark.parametrize(
    ("pooling", "release", "means"),
    [
        (older(mean_tokens=True), "old", "mean"),
        (older(cls_token=True), "old", "cls"),
        ({"embedding_dimension": 16, "pooling_mode": "mean", "include_prompt": True}, "new", "mean"),
        ({"embedding_dimension": 16, "pooling_mode": "cls", "include_prompt": True}, "new", "cls"),
    ],
)
def test_the_pooling_is_read_from_a_sentence_transformers_directory(made_for, pretrained, pooling, release, means):
    found = made_for("Pooling", "Normalize", pooling=pooling, release=release).embed(["the river of Paris"])[0]
    wanted = vector_by_hand(pretrained, "the river of Paris", means)
    np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted), atol=WITHIN)


def test_a_text_is_stripped_as_in_sentence_transformers(made_for, predictor, monkeypatch):
    """A byte-level tokenizer has tokens for spaces; here, each character is a token."""
    stripping = made_for("Pooling", pooling=older(mean_tokens=True))
    monkeypatch.setattr(type(predictor.engine.model.tokenizer), "encode", lambda self, text: [*map(ord, text)])
    for asked, question, spaces in ((stripping, Embed(), 0), (stripping, Embed(words=True), 2), (predictor, Embed(), 2)):
        text, item, _ = question.prepare(asked.engine, {"text": " a "})
        assert (text, len(item.ids)) == (" a ", 3 + spaces)


def test_the_pooling_is_read_from_an_old_sentence_transformers_directory(directory, pretrained, tmp_path, monkeypatch):
    folder = tmp_path / "old" / "0_BERT"
    shutil.copytree(directory, folder)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
    (tmp_path / "old" / "config.json").write_text('{"__version__": "0.2.0"}')
    modules = [{"path": "0_BERT", "type": "sentence_transformers.models.BERT"}]
    modules += [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (tmp_path / "old" / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "old" / "1_Pooling").mkdir()
    (tmp_path / "old" / "1_Pooling" / "config.json").write_text(json.dumps(older(cls_token=True)))
    wanted = vector_by_hand(pretrained, "the river of the capital", "cls")
    monkeypatch.chdir(folder)
    for place in (tmp_path / "old", folder, pathlib.Path("../0_BERT/."), pathlib.Path()):
        found = Predictor(engine_on(place)).embed(["the river of the capital Paris"])[0]
        np.testing.assert_allclose(found, wanted, atol=WITHIN)
    assert not any("neither read nor copied" in note for note in import_model(tmp_path / "old").notes)
    (tmp_path / "old" / "modules.json").write_text("[]")
    means = vector_by_hand(pretrained, "the river", "mean")
    np.testing.assert_allclose(Predictor(engine_on(folder)).embed(["the river"])[0], means, atol=WITHIN)


def test_options_take_precedence_over_the_directory(made_for, pretrained):
    made = made_for("Pooling", "Normalize", pooling=older(mean_tokens=True), limits={"max_seq_length": 7})
    (found,) = made.embed(["the river of Paris"], pooling="cls", normalise=False)
    np.testing.assert_allclose(found, vector_by_hand(pretrained, "the river of Paris", "cls"), atol=WITHIN)
    with pytest.raises(UserError, match=r"is 10 tokens .* more than the 7 of the model directory's max_seq_length"):
        made.embed(["the " * 8], truncate=False)


@pytest.mark.parametrize("settings", [{"limits": {"max_seq_length": 7}}, {"limits": {}, "longest": 7}], ids=["old", "new"])
def test_texts_are_truncated_at_the_limit_of_the_directory(made_for, predictor, settings):
    made = made_for("Pooling", pooling=older(mean_tokens=True), **settings)
    found = made.embed(["the river of the capital Paris is Apfel", "the of Paris is France", "the"])
    wanted = predictor.embed(["the river of the capital", "the of Paris is France", "the"])
    np.testing.assert_allclose(found, wanted, atol=WITHIN)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"limits": {"max_seq_length": 2}}, "sentence_bert_config.json: max_seq_length=2 must be"),
        ({"limits": {}, "longest": 2}, "tokenizer_config.json: model_max_length=2 must be"),
    ],
    ids=["old", "new"],
)
def test_a_limit_without_room_for_text_is_refused_where_it_is_stated(made_for, settings, named):
    with pytest.raises(UserError, match=named):
        made_for("Pooling", pooling=older(mean_tokens=True), **settings).embed(["the"])


def test_a_limit_may_leave_room_for_one_token(made_for, predictor):
    made = made_for("Pooling", pooling=older(mean_tokens=True), limits={"max_seq_length": 3})
    np.testing.assert_allclose(made.embed(["the river"]), predictor.embed(["the"]), atol=WITHIN)


@pytest.mark.parametrize("settings", [{}, {"limits": {"max_seq_length": None}}, {"limits": {"max_seq_length": 999}}])
def test_texts_are_truncated_at_the_position_table_by_default(made_for, predictor, settings):
    made = made_for("Pooling", pooling=older(mean_tokens=True), **settings)
    np.testing.assert_allclose(made.embed(["the " * 99]), predictor.embed(["the " * 38]), atol=WITHIN)


@pytest.mark.parametrize(
    ("modules", "settings", "unknown"),
    [
        (("Pooling", "Dense"), {"pooling": older(mean_tokens=True)}, "Dense"),
        (("Pooling",), {"pooling": older(max_tokens=True)}, "pooling_mode_max_tokens"),
        (("Pooling",), {"pooling": older(mean_tokens=True, cls_token=True)}, "cls, mean"),
        (("Pooling",), {"pooling": older()}, "no pooling_mode"),
        (("Pooling",), {"pooling": {"pooling_mode": "lasttoken"}}, "lasttoken"),
        ((), {}, "no Pooling"),
        (("Pooling",), {"pooling": older(mean_tokens=True), "general": {"default_prompt_name": "query"}}, "the prompt 'query'"),
        (("Pooling",), {"pooling": older(mean_tokens=True), "limits": {"do_lower_case": True}}, "do_lower_case"),
    ],
)
def test_an_unknown_module_is_refused_unless_a_pooling_is_given(made_for, pretrained, modules, settings, unknown):
    made = made_for(*modules, **settings)
    with pytest.raises(UserError, match=rf"has a pooling that is not implemented here \({unknown}\); choose one with --pooling"):
        made.embed(["the"])
    np.testing.assert_allclose(made.embed(["the"], pooling="cls")[0], vector_by_hand(pretrained, "the", "cls"), atol=WITHIN)
    Embed(words=True).check(made.engine)  # no pooling is needed


@pytest.mark.parametrize(
    ("pooling", "modules", "message"),
    [
        (None, None, "1_Pooling/config.json cannot be read as JSON"),
        ({}, "{", "modules.json cannot be read as JSON"),
        ({}, '{"a": 1}', "modules.json, or a file that it names, is not in the format of sentence-transformers"),
        ({}, '[{"path": ""}]', "modules.json, or a file that it names, is not in the format of sentence-transformers"),
        ({}, '[{"path": "1\\u0000", "type": "Pooling"}]', "is not in the format of sentence-transformers"),
        ({}, '[{"path": "\\ud83d", "type": "Pooling"}]', "is not in the format of sentence-transformers"),
    ],
)
def test_a_damaged_sentence_transformers_directory_is_refused_in_one_sentence(made_for, tmp_path, pooling, modules, message):
    made = made_for("Pooling", pooling=pooling)
    if modules:
        (tmp_path / "made" / "modules.json").write_text(modules)
    with pytest.raises(UserError, match=message):
        made.embed(["the"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "sum"}, "--pooling=sum is unknown: .*; known: mean, cls, pooler"),
        ({"combine": "concatenate"}, "--combine=concatenate is unknown: did you mean 'concat'"),
        ({"layers": (3,)}, r"--layers=3 is outside \[-3, 2\]: the model has 2 layers \(0: embeddings\)"),
        ({"layers": (1, -4)}, r"--layers=-4 is outside"),
        ({"layers": ()}, "--layers names no layer"),
    ],
)
def test_impossible_options_are_refused_with_the_available_ones(predictor, options, message):
    with pytest.raises(UserError, match=message):
        predictor.embed(["the"], **options)


POOLER, WORDS = "--pooling=pooler reads the last layer only", "--words gives every word a vector, so --pooling has no effect"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layers": (-3,)}, ""),
        ({"layers": (2, 0)}, ""),
        ({"pooling": "pooler"}, ""),
        ({"pooling": "pooler", "layers": (2,)}, POOLER),
        ({"pooling": "pooler", "layers": (0,), "words": True}, WORDS),
        ({"pooling": "mean", "layers": (0,)}, ""),
        ({"pooling": "mean", "words": True}, WORDS),
        ({"words": True, "layers": (0,)}, ""),
    ],
)
def test_options_without_effect_are_refused(predictor, options, says):
    with pytest.raises(UserError, match=says) if says else contextlib.nullcontext():
        Embed(**options).check(predictor.engine)


def test_a_model_without_a_pooler_refuses_only_pooler_vectors(pretrained, predictor, tmp_path):
    export_model(tmp_path / "m", without_parts(pretrained, ["pooler", "nsp_head", "mlm_head"]))
    bare = Predictor(engine_on(tmp_path / "m"))
    with pytest.raises(UserError, match="has no pooler, so it cannot pool with it"):
        bare.embed(["the"], pooling="pooler")
    np.testing.assert_allclose(bare.embed(["the river"]), predictor.embed(["the river"]), atol=WITHIN)


def test_text_output_shows_the_first_numbers_and_the_text(predictor):
    (vector,) = predictor.embed(["the river"])
    shown = Embed().as_text({"text": "the river", "embedding": vector})
    assert shown == f"[{' '.join(f'{x:.3f}' for x in vector[:4])} ... 16 numbers]  'the river'"
    (words,) = predictor.embed_words(["the river"])
    lines = Embed(words=True).as_text({"text": "the river", "words": words}).splitlines()
    assert [line.split()[0] for line in lines] == ["the", "the", "river"]
