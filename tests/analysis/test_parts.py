"""The parts that analyses share, tested on a few numbers each."""

from __future__ import annotations

import base64
import dataclasses
import fcntl
import io
import json
import os
import pathlib
import re
import time
import types
import zlib

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from bert_jax.analysis import analyser
from bert_jax.analysis import reading as progress
from bert_jax.analysis.attention import page
from bert_jax.analysis.attention.measure import attention_arrays, read_head
from bert_jax.analysis.bootstrap import CONFIDENCE
from bert_jax.analysis.compare import measure as comparison
from bert_jax.analysis.compare.flags import Comparing
from bert_jax.analysis.controls import permuted_heads, shuffled_words
from bert_jax.analysis.coreference import measure as antecedents
from bert_jax.analysis.coreference.flags import Coreference
from bert_jax.analysis.dependencies import measure as hits
from bert_jax.analysis.dependencies.flags import Dependencies
from bert_jax.analysis.divergence import mixture_entropies, plane, sampled_sources
from bert_jax.analysis.folder import Folder, appearing_together
from bert_jax.analysis.heads import measure as statistics
from bert_jax.analysis.heads.flags import Heads
from bert_jax.analysis.maps import Slots, word_slots
from bert_jax.analysis.named import NamedArray
from bert_jax.analysis.windows import Kind, Window, Word
from bert_jax.errors import UserError
from bert_jax.files import PARTIAL_SUFFIX, PartialFile
from bert_jax.interface.ranges import hints, intervals, range_text
from bert_jax.prediction.fields import Field
from bert_jax.prediction.streams import read_texts
from bert_jax.tasks.readers.conllu import Sentence
from tests.analysis.made_up import attention

# ----------------------------------------------------------------------------------------------------------------------- options

SEED_OF_COUNTS = "at least 0 and at most 2,147,483,647"
OPTIONS = {
    Heads: {
        "reach": (16, "at least 1 and at most 128"),
        "in_words": (True, ""),
        "divergence_words": (10_000, SEED_OF_COUNTS),
        "sampled": (16, "at least 1 and at most 512"),
    },
    Dependencies: {
        "reach": (10, "at least 1 and at most 128"),
        "replicates": (1_000, "at least 100 and at most 100,000"),
        "control": ("", ""),
        "seed": (0, SEED_OF_COUNTS),
    },
    Coreference: {
        "tokens": (1_048_576, "at least 8 and at most 1,048,576"),
        "singletons": (True, ""),
        "control": ("", ""),
        "replicates": (1_000, "at least 100 and at most 100,000"),
        "seed": (0, "at least 0 and at most 4,294,967,295"),
    },
    Comparing: {
        "divergence_words": (10_000, SEED_OF_COUNTS),
        "sampled": (16, "at least 1 and at most 512"),
        "masked": (0.15, "above 0 and at most 1"),
        "seed": (0, SEED_OF_COUNTS),
        "differences": (20, SEED_OF_COUNTS),
    },
}
"""The values documented in the pages and in --help: option -> (its default, its range)."""


@pytest.mark.parametrize("kind", OPTIONS)
def test_options_have_documented_defaults_and_ranges(kind):
    ranges = {name: " ".join(map(range_text, intervals(hint))) for name, hint in hints(kind).items()}
    assert {name: (value, ranges[name]) for name, value in dataclasses.asdict(kind()).items()} == OPTIONS[kind]
    for name, (value, text) in OPTIONS[kind].items():
        if text:
            with pytest.raises(UserError, match=rf"\.{name}=-1.* must be {text}"):
                kind(**{name: type(value)(-1)})


def test_the_memory_of_an_analysis_has_documented_limits():
    windows = (statistics.WINDOWS, antecedents.SECTIONS, analyser.MOST_TOKENS)
    assert windows == (128, 64, 4_096)
    assert (hits.MOST_RELATIONS, comparison.MOST_PRODUCTS) == (255, 2**29)
    assert (page.THUMBNAIL, page.PRECISE, CONFIDENCE) == (64, 2**22, 0.95)


# ------------------------------------------------------------------------------------------------------------------------- words


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
        "sequence_ids": jnp.array([[1, 1, 1, 1, 2, 2, 2, 0, 0], [3, 3, 3, 3, 3, 3, 3, 3, 3], [0] * 9], jnp.int32),
        "position_ids": jnp.array([[0, 1, 2, 3, 0, 1, 2, 0, 0], [*range(9)], [0] * 9], jnp.int32),
        "words": jnp.array([[0, 1, 1, 2, 2, 3, 3, 0, 0], [0, 1, 2, 2, 2, 3, 4, 5, 5], [0] * 9], jnp.int32),
        "kinds": jnp.array([[3, 1, 1, 4, 3, 2, 2, 0, 0], [3, 1, 2, 2, 2, 1, 1, 1, 1], [0] * 9], jnp.int32),
    }
    slots = word_slots(batch)
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
    pieces = word_slots(batch, in_words=False)
    np.testing.assert_array_equal(pieces.members[0, :7, :7], np.eye(7))
    np.testing.assert_array_equal(pieces.sequence[0], batch["sequence_ids"][0])
    assert isinstance(pieces, Slots)


def test_a_named_array_is_an_array_of_any_type():
    values = np.arange(3)
    array = NamedArray(values, {"layer": (1, 2, 3)})
    assert array.__array__(np.float32).dtype == np.float32
    assert np.shares_memory(array.__array__(copy=False), values)
    assert not np.shares_memory(array.__array__(copy=True), values)


# -------------------------------------------------------------------------------------------------------------------- divergence


@pytest.mark.parametrize(("most", "columns"), [(3, [1, 3, 5, 7, 9]), (2, [2, 7]), (16, [*range(10)]), (1, [5])])
def test_sampled_words_are_evenly_spaced_and_columns_without_a_word_are_empty(most, columns):
    rng = np.random.default_rng(0)
    maps, sources = rng.random((2, 3, 4, 10, 10)).astype(np.float32), np.ones((3, 10), np.float32)
    sources[1, 5:8] = 0
    chosen, own = sampled_sources(jnp.asarray(maps), jnp.asarray(sources), most)
    np.testing.assert_array_equal(own, sources[:, columns])
    expected = maps[:, :, :, columns] * sources[None, :, None, columns, None]
    for layer in range(2):
        for head in range(4):
            np.testing.assert_array_equal(chosen[4 * layer + head], expected[layer, :, head].reshape(-1, 10))


@pytest.mark.parametrize("heads", [1, 4, 5])
def test_mixtures_are_computed_for_every_two_heads_once(heads):
    maps = np.random.default_rng(1).dirichlet(np.ones(3), (heads, 2)).astype(np.float32)
    found = mixture_entropies(jnp.asarray(maps))
    assert found.shape == (heads // 2 + 1, heads)
    for k in range(len(found)):
        for i in range(heads):
            mixed = scipy.stats.entropy((maps[i] + maps[(i + k) % heads]) / 2, axis=-1).sum()
            assert float(found[k, i]) == pytest.approx(mixed, abs=1e-5)


def test_coordinates_have_two_dimensions_and_their_largest_number_is_positive():
    for seed in range(8):
        points = np.random.default_rng(seed).normal(size=(5, 2))
        squares = ((points[:, None] - points) ** 2).sum(-1)
        placed = plane(squares)
        assert placed.shape == (5, 2)
        assert (placed[np.abs(placed).argmax(0), [0, 1]] > 0).all()
        np.testing.assert_allclose(((placed[:, None] - placed) ** 2).sum(-1), squares, atol=1e-9)
    np.testing.assert_array_equal(plane(np.zeros((1, 1))), [[0, 0]])


# ---------------------------------------------------------------------------------------------------------------------- controls


def test_controls_keep_the_root_and_sentences_without_heads():
    one = Sentence("", 0, *[tuple("abc")] * 5, (-1, 0, 0), tuple("rst"), tuple("abc"))
    for seed in range(6):
        assert sorted(shuffled_words(one, np.random.default_rng(seed)).heads)[0] == -1
        assert permuted_heads(one, np.random.default_rng(seed)).heads == (-1, 0, 0)
    bare = dataclasses.replace(one, heads=())
    assert shuffled_words(bare, np.random.default_rng(0)).heads == ()


# ---------------------------------------------------------------------------------------------------------------------- progress


class _Lines:
    line = 0

    def count(self) -> int:
        return 9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    """A clock that advances by the seconds added to it."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_progress_and_its_end_are_shown_after_two_seconds(clock, capsys):
    file = _Lines()
    with progress.line_progress(file) as say, progress.progress_through(["a"] * 5) as (texts, tell):
        for file.line, _ in zip((3, 6, 9), texts, strict=False):
            say("words")
            tell("words")
            clock[0] += 1.0
    lines = ["read 9/9 lines, words", "read 3/5 texts, words, ETA 2s"]
    assert capsys.readouterr().err.splitlines() == lines
    with progress.line_progress(file) as say, progress.progress_through(iter("abc")) as (texts, tell):
        for file.line, _ in zip((3, 6, 9), texts, strict=False):
            clock[0] += 1.0
            say("words")
            tell("words")
    assert capsys.readouterr().err.splitlines() == [
        "read 6/9 lines, words, ETA 1s", "read 2 texts, words", "read 3 texts, words", "read 9/9 lines, words",
    ]  # fmt: skip


def test_the_summary_of_texts_ends_their_progress(clock, capsys):
    engine = types.SimpleNamespace(config=types.SimpleNamespace(max_position=40))
    reading = progress.Reading(engine, read_texts(["a", "b"], None, (Field("text"),)))
    for _ in reading.each(lambda text: iter([text, text])):
        clock[0] += 2.0
        reading.show("words")
    clock[0] += 0.5
    reading.show("3 words")
    assert reading.summary(3, 4) == "2 texts, 3 words; texts longer than 40 tokens were cut: 4 windows"
    assert capsys.readouterr().err.splitlines()[-1] == "read 2/2 lines, 3 words"


def test_a_note_about_a_treebank_is_shown_once(tmp_path, capsys):
    (tmp_path / "x.conllu").write_text("")
    treebank = progress.Treebank(tmp_path / "x.conllu")
    for problem in ("one", "two", "one"):
        treebank._note(problem)
    assert [line.rpartition(" ")[2] for line in capsys.readouterr().err.splitlines()] == ["one", "two"]


def test_a_stage_shows_its_progress_to_the_last_unit(clock, capsys):
    say = progress.stage_progress("training", "steps")
    for done in (1, 2, 3, 4):
        say(done, 4)
        clock[0] += 1.5
    assert capsys.readouterr().err.splitlines() == ["training 3/4 steps, ETA 2s", "training 4/4 steps"]


# ------------------------------------------------------------------------------------------------------------------------- files


def test_an_output_that_cannot_be_a_directory_is_refused_before_measuring(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("a")
    for output, says in (
        ("file", "--output=file is a file; name a directory"),
        ("file/out", "--output=file/out cannot be written: .*file is a file; choose another --output"),
        ("x" * 300, "cannot be written: File name too long; choose another --output"),
    ):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UserError, match=says):
            Folder(output)
    asked = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((pathlib.Path(path), mode)))
    with pytest.raises(UserError, match=rf"no permission to make files in {tmp_path}; choose another --output"):
        Folder(tmp_path / "new" / "out")
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]


def test_outputs_never_replace_inputs(tmp_path):
    (tmp_path / "texts.tsv").write_text("old")
    with pytest.raises(UserError, match=r"texts\.tsv"):
        Folder(tmp_path, ("a.tsv", "texts.tsv"), (tmp_path / "texts.tsv").stat())
    folder = Folder(tmp_path, ("a.tsv", "texts.tsv"))
    folder.table("texts.tsv", ("a", "b"), [(1, 0.5), ("x\ty\nz", np.float32("nan")), (np.float64(1) / 3, None)])
    assert (tmp_path / "texts.tsv").read_text() == "a\tb\n1\t0.5\nx y z\t\n0.333333\tNone\n"
    folder.arrays("new.npz", a=np.arange(2))
    with np.load(io.BytesIO((tmp_path / "new.npz").read_bytes())) as arrays:
        assert {name: arrays[name].tolist() for name in arrays} == {"a": [0, 1]}
    assert folder.written == [tmp_path / "texts.tsv", tmp_path / "new.npz"]
    deep = Folder(tmp_path / "b" / "c")
    for content in (b"1", b"2"):
        assert pathlib.Path(deep.write("d", content)) == tmp_path / "b" / "c" / "d"
    assert (tmp_path / "b" / "c" / "d").read_bytes() == b"2"


def test_the_files_of_a_command_appear_together_at_its_end_or_not_at_all(tmp_path):
    out = tmp_path / "new" / "out"
    with appearing_together():
        Folder(out)
    assert not (tmp_path / "new").exists()
    for content, seen in ((b"old", set()), (b"new", {"a", "b"})):
        with appearing_together():
            folder = Folder(out)
            for name in ("a", "b"):
                Folder(out).write(name, b"first")
                folder.write(name, content)
            assert {path.name for path in out.glob("[!.]*")} == seen
        assert {path.name: path.read_bytes() for path in out.iterdir()} == {"a": content, "b": content}
    with pytest.raises(KeyboardInterrupt), appearing_together():  # noqa: PT012
        Folder(out).write("a", b"half")
        raise KeyboardInterrupt
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {"a": b"new", "b": b"new"}


def test_every_file_is_on_the_disk_before_the_first_gets_its_name(tmp_path, monkeypatch):
    events: list[str] = []
    for name in ("flush_to_disk", "complete"):
        own = getattr(PartialFile, name)
        monkeypatch.setattr(PartialFile, name, lambda file, name=name, own=own: events.append(name) or own(file))
    with appearing_together():
        for name in ("a", "b"):
            Folder(tmp_path).write(name, b"new")
            (part,) = tmp_path.glob(f".{name}.*")
            assert part.read_bytes() == b"new", "a full disk is noticed here"
    assert events == ["flush_to_disk"] * 2 + ["complete"] * 2


def test_two_commands_do_not_write_to_a_directory_at_once(tmp_path):
    others = tmp_path / f".analysis.1{PARTIAL_SUFFIX}"
    with others.open("w") as file, appearing_together():
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=rf"--output={tmp_path} is being written by another process \(in {others}\); wait"):
            Folder(tmp_path)
    with appearing_together():
        Folder(tmp_path).write("a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


# --------------------------------------------------------------------------------------------------------------------- attention


def test_a_missing_head_is_refused_with_a_hint_if_there_are_few_heads():
    assert read_head("1-1", 2, 3) == (1, 1)
    assert read_head("2-3", 2, 3) == (2, 3)
    for name in ("0-3", "3-1", "2-4", "1-0"):
        with pytest.raises(
            UserError, match=f"--head={name} does not exist: the model has layers 1 to 2, each with heads 1 to 3; did you mean"
        ):
            read_head(name, 2, 3)
    with pytest.raises(UserError, match="heads 1 to 20; did you mean '20-20'"):
        read_head("20-202", 20, 20)
    with pytest.raises(UserError, match=r"heads 1 to 401$"):
        read_head("1-402", 1, 401)
    with pytest.raises(UserError, match=r"heads 1 to 3$"):
        read_head("99-88", 2, 3)
    for name in ("2", "810", "8-10-1", "-1-2"):
        with pytest.raises(UserError, match=f"--head={name} is not the name of a head: LAYER-HEAD, such as 1-1$"):
            read_head(name, 1, 1)
    with pytest.raises(UserError, match=r"such as 1-2$"):
        read_head("2", 1, 3)


def test_a_page_describes_each_piece_and_has_thumbnails_of_all_heads(monkeypatch):
    found = attention()
    for precise, bits in ((found.pieces.values.size, 16), (found.pieces.values.size - 1, 8)):
        monkeypatch.setattr(page, "PRECISE", precise)
        text = page.attention_page([found], "1-2")
        data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
        assert data["bits"] == bits
    side = {
        "tokens": list(found.rows.tokens), "words": list(found.rows.words), "wordOf": [0, 1, 2, 2, 3, 4],
        "segments": [0, 0, 0, 0, 0, 1], "specials": [True, False, False, False, True, True],
    }  # fmt: skip
    part = {"name": "", "layers": 2, "heads": 3, "thumbnail": [6, 6], "rows": side, "columns": side}
    assert data == {"parts": [part], "bits": 8, "head": "1-2"}
    assert re.findall(r'id="weights-([^"]*)"', text) == ["1-1", "1-2", "1-3", "2-1", "2-2", "2-3"]
    assert "<title>Attention of runs/m</title>" in text
    small = b"".join(page.thumbnail(head).tobytes() for layer in found.pieces.values for head in layer)
    assert base64.b64encode(zlib.compress(small)).decode() in text
    assert "é" in page.attention_page([dataclasses.replace(found, rows=dataclasses.replace(found.rows, tokens=("é",) * 6))])


def test_attention_arrays_are_complete():
    found = attention()
    arrays = attention_arrays([found])
    np.testing.assert_array_equal(arrays["words"], found.words.values)
    np.testing.assert_array_equal(arrays["pieces"], found.pieces.values)
    assert arrays["tokens"].tolist() == ["[CLS]", "the", "$1", "$1#", "[SEP]", "[SEP]"]
    assert arrays["word_texts"].tolist() == list(found.rows.words)
    assert (arrays["word_of_token"].tolist(), arrays["word_of_token"].dtype) == ([0, 1, 2, 2, 3, 4], np.int32)
    assert (arrays["segments"].tolist(), arrays["segments"].dtype) == ([0, 0, 0, 0, 1], np.int32)
    assert arrays["kinds"].tolist() == ["CLS", "WORD", "WORD", "SEP", "SEP"]
