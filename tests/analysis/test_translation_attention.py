"""The attention of an encoder-decoder through the command, compared with a Marian written here in numpy."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.analyse import main
from bert_jax.analysis.analyser import Analyser
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import export_model
from bert_jax.interop.weights import read_weights
from bert_jax.predict import main as predict
from bert_jax.prediction.translating import translate
from tests.analysis.browser import Page, find_browser
from tests.data.tokenizers.test_marian_tokenizer import write_marian
from tests.interop.tiny import make_translator

SOURCE, TARGET = "the cab of Paris", "Apfel is xyz"
SOURCE_PIECES = ("the", "c", "##a", "##b", "of", "Paris", "[SEP]")
TARGET_PIECES = ("Apfel", "is", "x", "##y", "##z")
SOURCE_WORDS, TARGET_WORDS = ("the", "cab", "of", "Paris", "[SEP]"), ("Apfel", "is", "xyz", "[SEP]")


pytestmark = pytest.mark.usefixtures("figures")


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides all but the first device, until the test's other replacements are undone too."""
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])


def translator(vocabulary: pathlib.Path, directory: pathlib.Path, **fields: Any) -> pathlib.Path:
    """Exports a translator whose attention scores are at most 10. A rounded share is wrong by up to the score x 5e-7."""
    model = make_translator(vocabulary, **fields)
    flat = {path: 0.3 * x if {"query", "key"} & {*path} else x for path, x in flatten_dict(model.params).items()}
    export_model(directory, dataclasses.replace(model, params=unflatten_dict(flat)))
    return directory


@pytest.fixture(scope="module")
def translating(vocabulary: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return translator(vocabulary, tmp_path_factory.mktemp("translator") / "model")


# --------------------------------------------------------------------------------------------------------------- Marian in numpy
def norm(x: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def attended(x: np.ndarray, of: np.ndarray, weights: dict[str, np.ndarray], name: str, *, causal: bool = False) -> Any:
    """Returns (output, weights [head, from, to]) of an attention with 4 heads."""
    query, key, value = (
        linear(side, weights, f"{name}.{part}_proj").reshape(len(side), 4, -1).swapaxes(0, 1)
        for side, part in ((x, "q"), (of, "k"), (of, "v"))
    )
    scores = query @ key.swapaxes(1, 2) / np.sqrt(key.shape[-1])
    if causal:
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return linear((shares @ value).swapaxes(0, 1).reshape(len(x), -1), weights, f"{name}.out_proj"), shares


def marian(directory: pathlib.Path, source: list[int], target: list[int]) -> dict[str, np.ndarray]:
    """Returns the attention [layer, head, from, to] of each part, in float64."""
    weights = {name: x.astype(np.float64) for name, x in read_weights(directory / "model.safetensors").items()}
    table = weights["model.shared.weight"]
    width = table.shape[1]
    angles = np.arange(24)[:, None] / 10_000 ** (2 * np.arange(width // 2) / width)
    positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    found: dict[str, list[np.ndarray]] = {"encoder": [], "decoder": [], "cross": []}

    def read(ids: list[int]) -> np.ndarray:
        return table[ids] * np.sqrt(width) + positions[: len(ids)]

    def fed(x: np.ndarray, name: str) -> np.ndarray:
        wide = np.maximum(linear(x, weights, f"{name}.fc1"), 0)
        return norm(x + linear(wide, weights, f"{name}.fc2"), weights, f"{name}.final_layer_norm")

    x = read(source)
    for n in range(2):
        name = f"model.encoder.layers.{n}"
        output, shares = attended(x, x, weights, f"{name}.self_attn")
        found["encoder"].append(shares)
        x = fed(norm(x + output, weights, f"{name}.self_attn_layer_norm"), name)
    y = read(target)
    for n in range(3):
        name = f"model.decoder.layers.{n}"
        output, shares = attended(y, y, weights, f"{name}.self_attn", causal=True)
        found["decoder"].append(shares)
        y = norm(y + output, weights, f"{name}.self_attn_layer_norm")
        output, shares = attended(y, x, weights, f"{name}.encoder_attn")
        found["cross"].append(shares)
        y = fed(norm(y + output, weights, f"{name}.encoder_attn_layer_norm"), name)
    return {name: np.array(parts) for name, parts in found.items()}


def ids_of(directory: pathlib.Path, pieces: tuple[str, ...]) -> list[int]:
    words = (directory / "vocab.txt").read_text(encoding="utf-8").split("\n")
    return [words.index(piece) for piece in pieces]


@pytest.fixture(scope="module")
def expected(translating: pathlib.Path) -> dict[str, np.ndarray]:
    return marian(translating, ids_of(translating, SOURCE_PIECES), ids_of(translating, ("[PAD]", *TARGET_PIECES)))


def between_words(weights: np.ndarray, rows: list[int], columns: list[int]) -> np.ndarray:
    """Sums over the pieces of attended words, and averages over the pieces of attending words. `rows` and `columns` have the
    index of each piece's word."""
    summed = np.stack([weights[..., np.array(columns) == n].sum(-1) for n in range(max(columns) + 1)], axis=-1)
    return np.stack([summed[..., np.array(rows) == n, :].mean(-2) for n in range(max(rows) + 1)], axis=-2)


def looked(directory: pathlib.Path, out: pathlib.Path, *flags: str) -> dict[str, Any]:
    """Runs the command and returns its JSON."""
    formats = [] if any(flag.startswith("--format") for flag in flags) else ["--format=json"]
    assert main(["attention", f"--model={directory}", f"--output={out}", *formats, *flags]) == 0
    found: dict[str, Any] = json.loads((out / "attention.json").read_text(encoding="utf-8"))
    return found


def matrices(part: dict[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    return np.array([*part["heads"].values()]).reshape(shape)


# ------------------------------------------------------------------------------------------------------------------------ numbers
def test_attention_between_pieces_equals_marian_in_numpy(translating, expected, tmp_path):
    found = looked(translating, tmp_path, "--pieces", SOURCE, TARGET)
    assert (found["unit"], found["source"], found["target"], found["translated"]) == ("pieces", SOURCE, TARGET, False)
    assert [*found["attention"]] == ["encoder", "decoder", "cross"]
    labels = {
        "encoder": (SOURCE_PIECES, SOURCE_PIECES), "decoder": (("[PAD]", *TARGET_PIECES),) * 2,
        "cross": ((*TARGET_PIECES, "[SEP]"), SOURCE_PIECES),
    }  # fmt: skip
    for name, part in found["attention"].items():
        assert (tuple(part["rows"]), tuple(part["columns"])) == labels[name]
        assert [*part["heads"]][:5] == ["1-1", "1-2", "1-3", "1-4", "2-1"]
        weights = matrices(part, expected[name].shape)
        assert all(round(x, 7) == x for x in weights.ravel().tolist())
        np.testing.assert_allclose(weights, expected[name], atol=1e-5, err_msg=name)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5, err_msg=name)  # nothing is left for padding
    assert not np.triu(matrices(found["attention"]["decoder"], expected["decoder"].shape), 1).any()


def test_attention_between_words_sums_attended_pieces_and_averages_attending_ones(translating, expected, tmp_path):
    found = looked(translating, tmp_path, SOURCE, TARGET)["attention"]
    source, read, predicted = [0, 1, 1, 1, 2, 3, 4], [0, 1, 2, 3, 3, 3], [0, 1, 2, 2, 2, 3]
    assert tuple(found["encoder"]["rows"]) == tuple(found["cross"]["columns"]) == SOURCE_WORDS
    assert tuple(found["decoder"]["rows"]) == ("[PAD]", *TARGET_WORDS[:3])
    assert tuple(found["cross"]["rows"]) == TARGET_WORDS
    sides = {"encoder": (source, source), "decoder": (read, read), "cross": (predicted, source)}
    for name, numbers in sides.items():
        wanted = between_words(expected[name], *numbers)
        np.testing.assert_allclose(matrices(found[name], wanted.shape), wanted, atol=1e-5, err_msg=name)
    with np.load(tmp_path / "attention.npz") as arrays:
        np.testing.assert_allclose(arrays["cross_words"], between_words(expected["cross"], predicted, source), atol=1e-5)
        np.testing.assert_allclose(arrays["decoder_pieces"], expected["decoder"], atol=1e-5)
        assert arrays["cross_rows_tokens"].tolist() == [*TARGET_PIECES, "[SEP]"]
        assert arrays["cross_columns_kinds"].tolist() == ["WORD"] * 4 + ["SEP"]
        assert (arrays["cross_rows_segments"].tolist(), arrays["cross_columns_segments"].tolist()) == ([1] * 4, [0] * 5)


def test_each_target_word_is_aligned_to_the_source_word_with_most_attention(translating, expected, tmp_path, capsys):
    means = between_words(expected["cross"], [0, 1, 2, 2, 2, 3], [0, 1, 1, 1, 2, 3, 4]).mean(1)[:, :3]
    chosen = means[..., :4].argmax(-1)  # the end tokens are not aligned
    sharpest = int(means[..., :4].max(-1).mean(-1).argmax()) + 1
    for layer in (1, 2, 3, None):
        flags = [] if layer is None else [f"--alignment-layer={layer}"]
        found = looked(translating, tmp_path, *flags, SOURCE, TARGET)["alignment"]
        number = layer or sharpest
        assert found["layer"] == number
        assert [word["target"] for word in found["words"]] == [*TARGET_WORDS[:3]]
        assert [word["source_word"] for word in found["words"]] == chosen[number - 1].tolist()
        assert [word["source"] for word in found["words"]] == [SOURCE_WORDS[j] for j in chosen[number - 1]]
        largest = means[number - 1, :, :4].max(-1)
        np.testing.assert_allclose([word["weight"] for word in found["words"]], largest, atol=1e-5)
        assert all(round(word["weight"], 7) == word["weight"] for word in found["words"])
        said = capsys.readouterr().out
        assert f"layer {number} of 3" in said
        for target, j, weight in zip(TARGET_WORDS, chosen[number - 1], largest, strict=False):
            assert re.search(rf"^  {target} +{SOURCE_WORDS[j]} +{weight:.2f} ", said, re.MULTILINE), said
    rows = [line.split("\t") for line in (tmp_path / "alignment.tsv").read_text().splitlines()]
    assert rows[0] == ["layer", "target_word", "target", "source_word", "source", "weight"]
    assert [int(row[3]) for row in rows[1:]] == chosen.ravel().tolist()
    header, *lines = [line.split("\t") for line in (tmp_path / "alignment_weights.tsv").read_text().splitlines()]
    assert header == ["target", *SOURCE_WORDS]
    assert [line[0] for line in lines] == [*TARGET_WORDS]
    np.testing.assert_allclose([[float(x) for x in line[1:]] for line in lines[:3]], means[sharpest - 1], atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------- the command
def test_the_target_defaults_to_the_translation_by_beam_search(translating, tmp_path, capsys):
    predict(["translate", f"--model={translating}", SOURCE])
    translation = capsys.readouterr().out.rstrip("\n")
    found = looked(translating, tmp_path, SOURCE)
    assert (found["target"], found["translated"]) == (translation, True)
    assert f"target, translated by beam search: {translation}\n" in capsys.readouterr().out
    pieces = looked(translating, tmp_path, "--pieces", "--part=cross,decoder", SOURCE)["attention"]
    engine = Analyser.load(translating).engine
    (best,) = translate(engine, [ids_of(translating, SOURCE_PIECES)])
    assert pieces["cross"]["rows"] == [*engine.model.tokenizer.tokens(best.ids), "[SEP]"]
    assert pieces["decoder"]["columns"] == ["[PAD]", *pieces["cross"]["rows"][:-1]]


def test_parts_and_heads_can_be_selected(translating, tmp_path, capsys):
    out = tmp_path / "out"
    found = looked(translating, out, "--part=cross,encoder", "--head=2-3", "--format=json,html,png", SOURCE, TARGET)
    assert [*found["attention"]] == ["cross", "encoder"]
    assert [[*part["heads"]] for part in found["attention"].values()] == [["2-3"], ["2-3"]]
    figures = {"alignment", *(f"{part}_{name}" for part in ("cross", "encoder") for name in ("overview", "head_2-3"))}
    assert {path.stem for path in out.glob("*.png")} == figures
    assert re.findall(r'id="thumbnails-(\w*)"', (out / "attention.html").read_text()) == ["cross", "encoder"]
    with np.load(out / "attention.npz") as arrays:
        assert {name.split("_")[0] for name in arrays.files} == {"cross", "encoder"}
    other = looked(translating, tmp_path / "other", "--part=decoder", SOURCE, TARGET)
    assert "alignment" not in other
    assert "alignment" not in capsys.readouterr().out.split("written to")[-1]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ["--head=4-1"],
            r"--head=4-1 does not exist: the encoder has layers 1 to 2, each with heads 1 to 4; did you mean "
            r"'2-1'\?$",
        ),
        (["--part=cross", "--head=4-1"], r"--head=4-1 does not exist: the decoder has layers 1 to 3, each with heads"),
        (["--head=3-1"], r"the encoder has layers 1 to 2, .*; or choose --part=decoder,cross$"),
    ],
)
def test_a_missing_head_is_refused_with_the_heads_of_its_part(translating, tmp_path, flags, says):
    with pytest.raises(UserError, match=says):
        main(["attention", f"--model={translating}", f"--output={tmp_path / 'out'}", *flags, SOURCE, TARGET])
    assert not (tmp_path / "out").exists()


def test_a_head_of_only_the_decoder_is_drawn_without_the_encoder(translating, tmp_path):
    found = looked(translating, tmp_path, "--part=decoder,cross", "--head=3-1", SOURCE, TARGET)
    assert [[*part["heads"]] for part in found["attention"].values()] == [["3-1"], ["3-1"]]


def test_python_returns_the_attention_of_the_command(translating, expected):
    found = Analyser.load(translating).translation_attention(SOURCE, TARGET)
    np.testing.assert_allclose(found.cross.pieces.sel(layer=3, head=2).values, expected["cross"][2, 1], atol=1e-5)
    assert found.alignment(2).layer == 2
    with pytest.raises(UserError, match="is an encoder-decoder, and its encoder reads no"):
        Analyser.load(translating).attention(SOURCE)


def test_a_target_fills_the_positions_with_its_start_token_and_not_more(translating):
    analyser = Analyser.load(translating)
    found = analyser.translation_attention(SOURCE, "the " * 23)
    assert found.decoder.words.shape == (3, 4, 24, 24)
    with pytest.raises(UserError, match=r"is 25 tokens with its start token, more than the 24 positions of .*; shorten it"):
        analyser.translation_attention(SOURCE, "the " * 24)


def test_a_model_that_cannot_translate_has_no_attention_of_a_translation(translating, analyser):
    with pytest.raises(UserError, match="is not an encoder-decoder, so it cannot translate"):
        analyser.translation_attention(SOURCE, TARGET)
    bare = Analyser.load(translating)
    bare.engine.model = dataclasses.replace(bare.engine.model, untrained=frozenset({"lm_head"}))
    with pytest.raises(UserError, match=r"the lm_head of .* was never trained, so it cannot translate"):
        bare.translation_attention(SOURCE, TARGET)


@pytest.mark.usefixtures("two_devices")
def test_an_encoder_writes_json_and_has_no_parts(directory, tmp_path, analyser):
    found = looked(directory, tmp_path, "--head=2-1", "the cab", "of Paris")
    weights = analyser.attention("the cab", "of Paris").words.sel(layer=2, head=1).values
    np.testing.assert_allclose(found["attention"]["encoder"]["heads"]["2-1"], weights, atol=1e-6)
    assert (found["text"], found["text_b"]) == ("the cab", "of Paris")
    for flag in ("--part=cross", "--alignment-layer=1"):
        with pytest.raises(UserError, match=rf"{flag} is for encoder-decoders, and .* has no decoder; leave it out"):
            looked(directory, tmp_path, flag, "the cab")


def test_words_of_a_target_vocabulary_come_from_target_spm(tmp_path):
    """With two SentencePiece models, the target's words and its translation come from target.spm."""
    vocabulary = tmp_path / "vocabulary"
    vocabulary.mkdir()
    write_marian(vocabulary, separate=True)
    tokenizer = load_tokenizer(vocabulary)
    assert tokenizer.target_tokenizer.size < tokenizer.size
    model = translator(vocabulary, tmp_path / "model", decoder_vocab_size=tokenizer.size, num_layers=1, decoder_layers=1)
    found = looked(model, tmp_path / "out", "--part=cross", "The object is a list.", "A Python object.")
    part = found["attention"]["cross"]
    assert "".join(part["columns"]) == "Theobjectisalist.</s>"
    assert "".join(part["rows"]) == "APythonobject.</s>"
    said = looked(model, tmp_path / "out", "--part=cross", "The object is a list.")["target"]
    (best,) = translate(Analyser.load(model).engine, [[*tokenizer.encode("The object is a list."), tokenizer.sep_id]])
    assert said == tokenizer.target_tokenizer.decode(best.ids) != ""


def test_a_browser_shows_the_clicked_part_and_cross_attention(translating, expected, tmp_path):
    browser = find_browser()
    if browser is None:
        pytest.skip("needs Chromium, which is not installed")
    assert main(["attention", f"--model={translating}", f"--output={tmp_path}", "--head=2-3", SOURCE, TARGET]) == 0
    words = between_words(expected["cross"][2, 0], [0, 1, 2, 2, 2, 3], [0, 1, 1, 1, 2, 3, 4])
    with Page(browser, tmp_path / "attention.html", tmp_path / "profile") as page:
        page.wait("document.body.dataset.shown", "cross 2-3 words 4 5")
        page.click("head-3-1")
        page.wait("document.body.dataset.shown", "cross 3-1 words 4 5")
        left, top, *_ = page.box("map")
        size = page.run("cell()")
        page.mouse(left + 1 + 84 + 3.5 * size, top + 1 + 84 + 1.5 * size)
        page.wait("document.getElementById('tip').style.display", "block")
        label, _, number = page.run("document.getElementById('tip').textContent").rpartition(": ")
        assert label == "is \u2192 Paris"
        assert float(number) == pytest.approx(words[1, 3], abs=2e-4)
        left, top, *_ = page.box("lines")
        page.mouse(left + 30, top + 5 + 2.5 * 18, click=True)
        listed = page.run("[...document.querySelectorAll('#to li')].map(line => line.innerText.split('\\n'))")
        assert {name: pytest.approx(float(x), abs=2e-4) for name, x in listed} == dict(zip(SOURCE_WORDS, words[2], strict=True))
        assert page.run("document.querySelectorAll('#from li').length") == 0
        page.click("hide-special")
        page.wait("document.body.dataset.shown", "cross 3-1 words 3 4")
        page.click("part-encoder")
        page.wait("document.body.dataset.shown", "encoder 1-1 words 4 4")
        page.click("part-decoder")
        page.wait("document.body.dataset.shown", "decoder 1-1 words 3 3")
