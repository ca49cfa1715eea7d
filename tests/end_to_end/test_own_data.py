"""The text source and the mask policy of experiments/extensions, used as a user does, through the command line with files outside
the package: a corpus is built, and a run trains on it, is killed and continued."""

from __future__ import annotations

import json
import pathlib
import random
import shutil
from typing import Any

import numpy as np
import pytest

from bert_jax.data.corpus.store import open_splits
from tests.end_to_end import forked
from tests.end_to_end.conftest import ASKED, command
from tests.end_to_end.forked import Signal
from tests.end_to_end.runs import REPOSITORY, assert_same_weights, learned, write_experiment

EXTENSIONS = REPOSITORY / "experiments" / "extensions"
VOCABULARY = REPOSITORY / "tests" / "data" / "tiny_cased_vocab.txt"
WORDS = "the river is wide and people read in quiet rooms near Paris France London with many small towns"
SHORT = ("--config.steps=20", "--config.evaluation.every=20", "--config.checkpoints.every=4", "--config.log_every=1")


def write_subtitles(path: pathlib.Path, seed: int) -> None:
    """Writes a talk in SubRip: a sentence over two subtitles, with times, numbers and mark-up."""
    rng = random.Random(seed)
    words = WORDS.split()
    blocks = []
    for i in range(24):
        spoken = " ".join(rng.choices(words, k=rng.randint(4, 9)))
        text = f"<i>{spoken.capitalize()}</i>" if i % 2 == 0 else f"{spoken}."
        blocks.append(f"{i + 1}\r\n00:00:{i:02},000 --> 00:00:{i:02},900\r\n{text}\r\n")
    path.write_text("\ufeff" + "\r\n".join(blocks), newline="")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a user's folder with copies of the two files, and talks."""
    directory = tmp_path_factory.mktemp("own_data")
    for name in ("transcripts.py", "entities.py"):
        shutil.copy(EXTENSIONS / name, directory / name)
    (directory / "talks").mkdir()
    for talk in range(40):
        write_subtitles(directory / "talks" / f"{talk:02}.srt", seed=talk)
    return directory


def build(folder: pathlib.Path, output: str, *flags: str, source: str = "transcripts.py:transcripts:talks/*.srt") -> forked.Done:
    first, _, rest = source.partition(":")
    value = f"{folder}/{first}:{rest.replace('talks/', f'{folder}/talks/')}" if first.endswith(".py") else source
    flags = (f"--source={value}", f"--vocab={VOCABULARY}", "--cased", "--eval-fraction=0.2", "--workers=1", *flags)
    (done,) = forked.run(folder, ["corpus", *flags, f"--output={folder / output}"])
    return done


@pytest.fixture(scope="module")
def experiment(folder: pathlib.Path) -> pathlib.Path:
    done = build(folder, "corpus", "--shards=3")
    assert done.status == 0, done.output
    return write_experiment(folder / "experiment.py", folder / "corpus")


def test_a_corpus_holds_the_documents_of_a_user_source_for_any_number_of_shards(folder: pathlib.Path, experiment: pathlib.Path):
    assert build(folder, "whole", "--shards=1").status == 0
    texts = []
    for name in ("corpus", "whole"):
        manifest = json.loads((folder / name / "manifest.json").read_text())
        assert manifest["read"]["documents"] == 40
        assert manifest["own_files"][0][0] == str(folder / "transcripts.py")
        assert len(manifest["own_files"][0][1]) == 64
        corpora = open_splits(folder / name)
        ids = [np.concatenate([corpus.tokens.shard(k) for k in range(len(corpus.tokens.bounds) - 1)]) for corpus in corpora]
        texts.append([corpora[0].tokenizer.decode(part.tolist()) for part in ids])
    assert texts[0] == texts[1]
    assert "-->" not in texts[0][0]
    assert "<" not in texts[0][0]


def test_a_killed_run_with_a_user_mask_policy_resumes_bit_for_bit(folder: pathlib.Path, experiment: pathlib.Path):
    flags = (*SHORT, f"--config.examples.masking={folder}/entities.py:entities")
    whole, killed, plain = (folder / name for name in ("run", "killed", "plain"))

    def run(workdir: pathlib.Path, *flags: str, **how: Any) -> forked.Done:
        return forked.run(folder, command(experiment, workdir, *flags), **how)[0]

    done = run(whole, *flags)
    assert done.status == 0, done.output
    run(killed, *flags, at=Signal(ASKED, argument=10, once_there=(f"{killed}/checkpoints/8",)))
    done = run(killed, *flags)
    assert done.status == 0, done.output
    assert "resuming from step 8" in done.output
    assert_same_weights(killed, whole)
    assert learned(killed) == learned(whole)
    assert run(plain, *SHORT).status == 0
    assert learned(plain) != learned(whole)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("def f(glob): return 3 / 0", "raises ZeroDivisionError; correct the file here:"),
        ("def f(): return []", "the function cannot be called with the argument 'x' (too many positional arguments)"),
        ("def f(glob): yield 7", "document 1 is of type int; yield one string per document"),
        ("def f(glob): return None", "the function returns NoneType; yield one string per document"),
        ("def f(glob): return 'a text'", "the function returns a string; yield one string per document"),
        ("def f(glob): return []", "the corpus is empty: there is no text in"),
        ("def g(glob): return []", "wrong.py has no 'f'; known: g"),
        ("import nothing_of_this_name", "raises ModuleNotFoundError; correct the file here:"),
        (
            "n = 9\ndef f(glob):\n    global n\n    n -= 1\n    return ['The river is wide. People read near Paris.'] * n",
            "the first count gave 8, but reading gave 7 documents; the function must yield the same documents in the same order",
        ),
    ],
)
def test_an_unusable_user_source_is_refused(folder: pathlib.Path, tmp_path: pathlib.Path, body: str, says: str):
    (folder / "wrong.py").write_text(body)
    done = build(folder, f"wrong-{tmp_path.name}", source="wrong.py:f:x")
    assert done.status == 2, done.output
    assert says in done.output


def test_a_corpus_build_does_not_resume_with_a_changed_source(folder: pathlib.Path, experiment: pathlib.Path):
    shutil.copytree(folder / "corpus", folder / "changed")
    before = (folder / "transcripts.py").read_text()
    try:
        (folder / "transcripts.py").write_text(before + "# another\n")
        done = build(folder, "changed", "--shards=3")
    finally:
        (folder / "transcripts.py").write_text(before)
    assert done.status == 2, done.output
    assert "was started with other settings: own_files were 1, are 1; the first difference was [['" in done.output


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("def f(example, rate, rng): return [0]", "returned the position 0, the token '[CLS]' of an example of "),
        ("def f(example, rate, rng): return [999]", "returned the position 999, outside of an example of "),
        ("def f(example, rate, rng): return [1.5]", "returned [1.5], not a sequence of integers"),
        ("def f(example, rate): return []", "is not a function of three arguments (too many positional arguments); write `"),
        ("def f(example, rate, rng): return example.wrds", "raises AttributeError; correct the file here:"),
        ("f = 3", "is not a function of three arguments (3 is not a callable object); write `def f(example, rate, rng)`"),
    ],
)
def test_an_unusable_mask_policy_is_refused_in_one_sentence(
    folder: pathlib.Path, experiment: pathlib.Path, tmp_path: pathlib.Path, body: str, says: str
):
    (tmp_path / "wrong.py").write_text(body)
    flags = (*SHORT, f"--config.examples.masking={tmp_path}/wrong.py:f")
    (done,) = forked.run(folder, command(experiment, tmp_path / "run", *flags))
    assert done.status == 2, done.output
    assert says in done.output
