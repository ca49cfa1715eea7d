"""All files of experiments/extensions in a few runs, used from the command line with copies outside the package. The runs are
stopped or killed and resumed, on one device and on eight. Faulty files are reported."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import pathlib
import random
import shutil
import signal
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.data.corpus.store import open_splits
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import import_model
from bert_jax.model.kernels import on_one_device
from bert_jax.model.kernels.dispatch import resolve
from bert_jax.pretraining.replay import Batches, load_experiment
from tests.documented import python_file
from tests.end_to_end import forked, tiny_study
from tests.end_to_end.conftest import ASKED, command
from tests.end_to_end.forked import Crash, Done, Signal
from tests.end_to_end.runs import REPOSITORY, assert_same_weights, learned, records, results, weights, write_experiment

EXTENSIONS = REPOSITORY / "experiments" / "extensions"
VOCABULARY = REPOSITORY / "tests" / "data" / "tiny_cased_vocab.txt"
WORDS = "the river is wide and people read in quiet rooms near Paris France London with many small towns"
STEPS = 16
EXPERIMENT = '''
"""One phase; a checkpoint every six steps, a line of metrics every step."""

def get_config():
    return {{
        "corpus": {{"directory": {corpus!r}}},
        "model": {{"vocab_size": {vocabulary_size}, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 32,
                  "max_position": 32, "scan_layers": True, "initializer_range": 0.1}},
        "phases": [{{"steps": 16, "length": 32, "batch_size": 8, "max_predictions": 5, "learning_rate": 3e-3}}],
        "evaluation": {{"every": 16, "rows": 8, "batch_size": 8}},
        "checkpoints": {{"every": 6, "keep_at": [6]}},
        "log_every": 1,
    }}
'''
SCORES = ("rtd_accuracy", "rtd_loss", "generator_loss")
BAD = """import dataclasses

from bert_jax.model.encoder import WholeRows
from bert_jax.objectives.objective import Objective


class Unknown(Objective):
    scores = {"my loss": ("mine", "masked")}

    def sums(self, params, batch, seed):
        return {"mine": self.model.encode(params, batch, seed).sum() + nothing}

    def loss(self, sums, counts):
        return sums["mine"] / counts["masked"]


class Electra(Unknown):
    exported = "ElectraForPreTraining"

    def sums(self, params, batch, seed):
        return {"mine": self.model.encode(params, batch, seed).sum()}


class Words(Electra):
    exported = "BertForMaskedLM"


class Unnamed(Electra):
    scores = {"my loss": ("mine", "masket")}


class LastOnly(WholeRows):
    def __call__(self, x, tokens, seed):
        return x


class Half(Objective):
    scores = {"my loss": ("mine", "masked")}


class NoOutputs(Unknown):
    sums = Objective.sums

    def output_sums(self, outputs, batch):
        return {"mine": outputs["mine"].sum()}


class NoSeed(Words):
    def sums(self, params, batch):
        return {}


class Short:
    def scores(self, scores, tokens):
        return scores


class Alone:
    def queries_and_keys(self, query, key, tokens, layer):
        return query


def function():
    pass


def one(x):
    return x.sum(-1)


def two(x, epsilon):
    return None


def first(example, rate, rng):
    return [0]


def unknown(example, rate, rng):
    return example.wrds
"""


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
    """Returns a user's folder with copies of the files, a file of bad objectives, and talks."""
    directory = tmp_path_factory.mktemp("extensions")
    for path in EXTENSIONS.glob("*.py"):
        shutil.copy(path, directory)
    (directory / "bad.py").write_text(BAD)
    (directory / "talks").mkdir()
    for talk in range(40):
        write_subtitles(directory / "talks" / f"{talk:02}.srt", seed=talk)
    return directory


# --------------------------------------------------------------------------------------------------------------- a source of text
def build_command(
    folder: pathlib.Path, output: str, *flags: str, source: str = "transcripts.py:transcripts:talks/*.srt"
) -> list[str]:
    value = f"{folder}/{source.replace('talks/', f'{folder}/talks/')}"
    usual = [f"--source={value}", f"--vocab={VOCABULARY}", "--cased", "--eval-fraction=0.2", "--workers=1"]
    return ["corpus", *usual, *flags, f"--output={folder / output}"]


@pytest.fixture(scope="module")
def experiment(folder: pathlib.Path) -> pathlib.Path:
    """Returns the experiment on a corpus of the talks, built with three shards, of which a killed build wrote the first; "whole"
    is the same with one shard."""
    shards = {"killed": "--shards=3", "corpus": "--shards=3", "whole": "--shards=1"}
    kill = Crash("bert_jax.data.corpus.build:_write_one", call=2, source=folder / "killed", target=folder / "corpus")
    killed, *ends = forked.run(folder, *(build_command(folder, name, flag) for name, flag in shards.items()), at=kill)
    assert killed.status == -signal.SIGKILL, killed.output
    for done in ends:
        assert done.status == 0, done.output
    return write_experiment(folder / "experiment.py", folder / "corpus", EXPERIMENT)


def test_a_killed_corpus_build_holds_the_documents_of_a_user_source_as_a_whole_one_with_other_shards(
    folder: pathlib.Path, experiment: pathlib.Path
):
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


SOURCES = {
    "def f(glob): return 3 / 0": "raises ZeroDivisionError; correct the file here:",
    "def f(): return []": "the function cannot be called with the argument 'x' (too many positional arguments)",
    "def f(glob): yield 7": "document 1 has the type int; yield one string per document",
    "def f(glob): return None": "the function returns NoneType; it must yield one string per document",
    "def f(glob): return 'a text'": "the function returns a string; it must yield one string per document",
    "def f(glob): return []": "the corpus is empty: there is no text in",
    "def g(glob): return []": "has no 'f'; known: g",
    "import nothing_of_this_name": "raises ModuleNotFoundError; correct the file here:",
    "n = 9\ndef f(glob):\n    global n\n    n -= 1\n    return ['The river is wide. People read near Paris.'] * n": (
        "the function first yielded 8 documents, but then 7; it must yield the same documents in the same order"
    ),
}


def written(folder: pathlib.Path, bodies: Sequence[str], name: str) -> list[str]:
    """Writes each body to a file of its own. Returns the names of the files."""
    names = [f"{name}_{n}.py" for n in range(len(bodies))]
    for file, body in zip(names, bodies, strict=True):
        (folder / file).write_text(body)
    return names


@pytest.fixture(scope="module")
def sources(folder: pathlib.Path) -> dict[str, Done]:
    """Builds a corpus from each of SOURCES. Returns how it ended."""
    commands = [build_command(folder, f"of-{file}", source=f"{file}:f:x") for file in written(folder, [*SOURCES], "source")]
    return dict(zip(SOURCES, forked.run(folder, *commands), strict=True))


@pytest.mark.parametrize("body", SOURCES)
def test_an_unusable_user_source_is_refused(sources: dict[str, Done], body: str):
    done = sources[body]
    assert done.status == 2, done.output
    assert SOURCES[body] in done.output


def test_a_corpus_build_does_not_resume_with_a_changed_source(folder: pathlib.Path, experiment: pathlib.Path):
    shutil.copytree(folder / "corpus", folder / "changed")
    before = (folder / "transcripts.py").read_text()
    try:
        (folder / "transcripts.py").write_text(before + "# another\n")
        (done,) = forked.run(folder, build_command(folder, "changed", "--shards=3"))
    finally:
        (folder / "transcripts.py").write_text(before)
    assert done.status == 2, done.output
    assert "was started with other settings: the entries of own_files differ; the first difference was [['" in done.output


# --------------------------------------------------------------------------------- objective, optimizer, schedule, log, positions
def own(folder: pathlib.Path) -> dict[str, str]:
    """Returns the keys that name the user's files, and an option of one."""
    return {
        "objective": f"{folder}/replaced_tokens.py:ReplacedTokens",
        "objective_options.weight": "40",
        "optimizer.name": f"{folder}/muon.py:muon",
        "phases.0.schedule": f"{folder}/wsd.py:warmup_stable_decay",
        "log.sinks": f"tensorboard,{folder}/csv_log.py:Csv",
        "model.positions": f"{folder}/alibi.py:Alibi",
        "examples.masking": f"{folder}/entities.py:entities",
    }


SHORT = {"phases.0.steps": "3", "evaluation.every": "3", "checkpoints.keep_at": "[]"}
"""Keys for three steps, an evaluation and a checkpoint after the last."""
ONE_LAYER = {"model.num_layers": "1", "model.scan_layers": "false"}
"""Keys for a smaller program."""


def flags_of(keys: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"--config.{key}={value}" for key, value in keys.items())


def run(experiment: pathlib.Path, name: str, keys: dict[str, str], *then: Sequence[str], **how: Any) -> list[Done]:
    """Trains in the directory `name` next to the experiment, then runs other commands in the same process."""
    return forked.run(experiment.parent, command(experiment, experiment.parent / name, *flags_of(keys)), *then, **how)


def killed_at_8(workdir: str) -> Signal:
    """Returns a SIGKILL at step 8, once the checkpoint of step 6 is there."""
    return Signal(ASKED, argument=8, once_there=(f"{workdir}/checkpoints/6",))


@pytest.fixture(scope="module")
def whole(experiment: pathlib.Path) -> dict[int, pathlib.Path]:
    """Returns the workdirs of the uninterrupted runs with all files but an encoder's, by the number of devices; those of the
    killed and resumed runs are next to them."""
    folder, workdirs = experiment.parent, {}
    line = ["pretrain", f"--config={experiment}", *flags_of(own(folder))]
    for devices in (1, 8):
        workdirs[devices] = folder / f"whole-{devices}"
        again, once = ([*line, f"--workdir={workdirs[devices]}{suffix}"] for suffix in ("-killed", ""))
        (dead,) = forked.run(folder, again, at=killed_at_8(f"{workdirs[devices]}-killed"), devices=devices)
        assert dead.status == -signal.SIGKILL, dead.output
        resumed, done = forked.run(folder, again, once, devices=devices)
        assert (resumed.status, done.status) == (0, 0), (resumed.output, done.output)
        assert "resuming from step 6" in resumed.output
        assert f"held out after step {STEPS}: RTD accuracy" in done.output
        assert "(one answer for all " in done.output
    return workdirs


def assert_resumed_bit_for_bit(resumed: pathlib.Path, whole: pathlib.Path) -> None:
    assert_same_weights(resumed, whole)
    assert learned(resumed) == learned(whole)


@pytest.mark.parametrize("devices", [1, 8])
def test_a_killed_run_with_all_files_of_a_user_resumes_bit_for_bit(whole: dict[int, pathlib.Path], devices: int):
    killed = whole[devices].with_name(f"whole-{devices}-killed")
    assert_resumed_bit_for_bit(killed, whole[devices])
    assert_logged(killed)


def assert_logged(workdir: pathlib.Path) -> None:
    """Checks that the user's log sink has written every number of `metrics.jsonl` once."""
    logged = [
        (record["step"], name, value) for record in records(workdir) for name, value in record.items() if name != "step"
    ]
    assert table(workdir) == logged


def table(workdir: pathlib.Path) -> list[tuple[int, str, float]]:
    """Returns what the user's log sink has written."""
    with (workdir / "log.csv").open() as file:
        return [(int(row["step"]), row["name"], float(row["value"])) for row in csv.DictReader(file)]


def test_the_objective_trains_and_is_recorded(folder: pathlib.Path, whole: dict[int, pathlib.Path]):
    for workdir in whole.values():
        trained = [record for record in records(workdir) if "train/loss" in record]
        assert len(trained) == STEPS
        weighted = [record["train/generator_loss"] + 40 * record["train/rtd_loss"] for record in trained]
        assert weighted == pytest.approx([record["train/loss"] for record in trained], rel=1e-5)
        for name in SCORES:
            early, late = (np.mean([record[f"train/{name}"] for record in part]) for part in (trained[:3], trained[-3:]))
            assert late > early if name == "rtd_accuracy" else late < early, name
        found = results(workdir)
        assert found["eval"].keys() == {*SCORES, "loss", "rtd_accuracy_baseline"}
        assert found["files"]["objective"]["path"] == str(folder / "replaced_tokens.py")
        assert found["files"]["objective"]["source"] == (folder / "replaced_tokens.py").read_text()
        assert "config.objective replaced_tokens.py (" in (workdir / "model" / "README.md").read_text()
        assert not {name for name in weights(workdir) if "generator" in name or "discriminator" in name or "cls." in name}


def test_eight_devices_train_as_one_device(whole: dict[int, pathlib.Path]):
    """Later, a difference in rounding may change a word that the generator draws."""
    one, eight = ([record["train/loss"] for record in records(whole[n]) if "train/loss" in record][:6] for n in (1, 8))
    assert one == pytest.approx(eight, rel=1e-3)


def test_the_schedule_sets_the_rate(whole: dict[int, pathlib.Path]):
    of_steps = [record for record in records(whole[1]) if "train/learning_rate" in record]
    rates = {record["step"]: record["train/learning_rate"] for record in of_steps}
    assert (rates[1], rates[4]) == (0, pytest.approx(3e-3))
    assert rates[STEPS] == pytest.approx(3e-3 * (1 - ((STEPS - 1 - 0.8 * STEPS) / (0.2 * STEPS)) ** 0.5), rel=1e-4)


def test_the_rows_have_the_masks_of_the_policy(whole: dict[int, pathlib.Path]):
    experiment, corpus = load_experiment(whole[1], [], ())
    without = dataclasses.replace(experiment, examples=dataclasses.replace(experiment.examples, masking="tokens"))
    ours, theirs = (Batches(one, corpus).at(3) for one in (experiment, without))
    np.testing.assert_array_equal(ours["cls_positions"], theirs["cls_positions"])
    assert not np.array_equal(ours["masked_positions"], theirs["masked_positions"])


def test_the_model_loads_only_with_this_package_and_the_same_file(folder: pathlib.Path, whole: dict[int, pathlib.Path]):
    exported = whole[1] / "model"
    model = import_model(exported)
    assert model.config.positions == f"{folder}/alibi.py:Alibi"
    assert "position_embeddings" not in model.params["embeddings"]
    fields = json.loads((exported / "config.json").read_text())
    assert fields["model_type"] == "bert_jax"
    assert fields["bert_jax"]["files"]["objective"]["source"] == (folder / "replaced_tokens.py").read_text()
    assert "model.positions" not in fields["bert_jax"]["files"], "positions_file has it"
    assert all(name.startswith("bert_jax.") for name in weights(whole[1]))
    reason = (
        f"since model.positions={folder}/alibi.py:Alibi changes the scores, which the fused attention kernels keep on the chip"
    )
    assert resolve(model.config, jax.local_devices()[0], 1, on_one_device).target.no_attention == reason
    changed = shutil.copytree(exported, whole[1] / "changed")
    fields["bert_jax"]["positions_file"]["sha256"] = "0" * 64
    (changed / "config.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match=r"alibi\.py:Alibi computes the positions of this model, but the file is missing"):
        import_model(changed)


def test_transformers_refuses_a_model_with_user_positions(whole: dict[int, pathlib.Path]):
    transformers = pytest.importorskip("transformers")
    with pytest.raises((ValueError, KeyError), match="bert_jax"):
        transformers.AutoModel.from_pretrained(whole[1] / "model")


def test_a_step_is_converted_but_a_changed_file_neither_replayed_nor_resumed(
    experiment: pathlib.Path, whole: dict[int, pathlib.Path]
):
    (converted,) = forked.run(whole[1].parent, ["convert", f"--from={whole[1]}", "--step=6", f"--to={whole[1].parent}/six"])
    assert converted.status == 0, converted.output
    fields = json.loads((experiment.parent / "six" / "config.json").read_text())
    assert (fields["architectures"], fields["model_type"]) == (["BertModel"], "bert_jax")

    file = experiment.parent / "replaced_tokens.py"
    text = file.read_text()
    try:
        file.write_text(text + "\n")
        replay = ["pretrain", f"--workdir={whole[1]}", f"--replay={STEPS - 1}"]
        resumed, replayed = run(experiment, whole[1].name, own(experiment.parent), replay)
    finally:
        file.write_text(text)
    assert replayed.status == 2
    assert f"a different {file}: the file that config.objective names has changed" in replayed.output
    assert resumed.status == 2
    assert "or resume with the new file: --changed-files" in resumed.output
    assert json.loads((whole[1] / "config.json").read_text())["files"]["objective"]["source"] == text


# ------------------------------------------------------------------------------------------------- subclasses of BERT's objective
WORDS_ONLY = """from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.word_prediction import word_scores


class WordsOnly(MlmNsp):
    scores = word_scores("MLM", "mlm")

    def sums(self, params, batch, seed):
        return {name: x for name, x in super().sums(params, batch, seed).items() if name.startswith("mlm_")}


class Counted(WordsOnly):
    scores = {"my loss": ("mlm_loss", "mlm_targets")}
"""
BASELINES = {"unigram_loss", "unigram_accuracy"}


@pytest.fixture(scope="module")
def subclasses(experiment: pathlib.Path) -> pathlib.Path:
    """Trains the mixture of experts of the page with two objectives whose losses are equal: WordsOnly on one device, Counted on
    two in two microbatches. Returns the user's folder."""
    folder = experiment.parent
    (folder / "words_only.py").write_text(WORDS_ONLY)
    (folder / "moe.py").write_text(python_file("bert_jax/model/README.md", "class Experts"))
    still = {"model.hidden_dropout": "0", "model.attention_dropout": "0", "model.encoder": f"{folder}/moe.py:Moe"} | ONE_LAYER
    for name, devices, microbatches in (("WordsOnly", 1, 1), ("Counted", 2, 2)):
        keys = {"objective": f"{folder}/words_only.py:{name}", "phases.0.accumulation": str(microbatches)} | SHORT | still
        (done,) = run(experiment, name, keys, devices=devices)
        assert done.status == 0, done.output
    return folder


def test_the_results_have_the_scores_of_a_subclass_and_their_baselines_only(subclasses: pathlib.Path):
    wanted = {"WordsOnly": {"mlm_loss", "mlm_accuracy", "perplexity", "loss", *BASELINES}, "Counted": {"my_loss", "loss"}}
    assert {name: results(subclasses / name)["eval"].keys() for name in wanted} == wanted


def test_the_mixture_of_experts_of_the_page_trains_on_two_devices_with_two_microbatches_as_on_one(subclasses: pathlib.Path):
    one, two = (
        [record["train/loss"] for record in records(subclasses / name) if "train/loss" in record]
        for name in ("WordsOnly", "Counted")
    )
    assert len(one) == 3
    assert one == pytest.approx(two, rel=1e-4)


# --------------------------------------------------------------------------------------------------------------------- an encoder
@dataclasses.dataclass(frozen=True)
class Trained:
    """A command line that trains the user's encoder, and how it and a replay ended."""

    line: Sequence[str]
    done: Done
    replayed: Done


@pytest.fixture(scope="module")
def fourier(experiment: pathlib.Path) -> Trained:
    """Trains an encoder on the order of sentences, on one device and on eight. The runs are in the user's folder, with flags
    that name the encoder's file relative to it. Next to each workdir is that of a run that was killed and resumed."""
    folder = experiment.parent
    (folder / "mine").mkdir()
    shutil.copy(folder / "fourier.py", folder / "mine")
    rng, words = random.Random(0), WORDS.split()
    told = [[" ".join(rng.choices(words, k=rng.randint(4, 9))) for _ in range(12)] for _ in range(20)]
    (folder / "told.txt").write_text("\n\n".join("\n".join(document) for document in told))
    keys = {
        **{"model.encoder": "mine/fourier.py:Fourier", "objective": f"{folder}/sentence_order.py:SentenceOrder"},
        **{"examples.pairs": "successive", "corpus.directory": f"{folder}/told"},
        **{"phases.0.steps": "4", "evaluation.every": "4", "checkpoints.every": "2", "checkpoints.keep_at": "[]"},
    }
    build = ["corpus", "--source=text:told.txt", f"--vocab={VOCABULARY}", "--cased", "--eval-fraction=0.2", "--output=told"]
    replay = ["pretrain", f"--workdir={folder}/fourier", "--replay=3"]
    around = forked.Surroundings(directory=folder)
    (built,) = forked.run(folder, build, around=around)
    assert built.status == 0, built.output
    for devices, name, then in ((1, "fourier-1", []), (8, "fourier", [replay])):
        lines = [command(experiment, folder / f"{name}{end}", *flags_of(keys)) for end in ("-killed", "-resumed", "")]
        kill = Crash(ASKED, argument=3, once_there=("checkpoints/2",), source=folder / f"{name}-killed")
        kill = dataclasses.replace(kill, target=folder / f"{name}-resumed")
        killed, *ends = forked.run(folder, *lines, *then, at=kill, devices=devices, around=around)
        assert killed.status == -signal.SIGKILL, killed.output
        for done in ends:
            assert done.status == 0, done.output
        assert "resuming from step 2" in ends[0].output
    return Trained(lines[-1], *ends[1:])


def test_sentence_order_is_trained_with_a_user_encoder_scored_resumed_and_replayed(folder: pathlib.Path, fourier: Trained):
    scores = {"mlm_loss", "mlm_accuracy", "perplexity", "loss", "sop_loss", "sop_accuracy", "sop_accuracy_baseline", *BASELINES}
    assert results(folder / "fourier")["eval"].keys() == scores
    for name in ("fourier-1", "fourier"):
        assert_resumed_bit_for_bit(folder / f"{name}-resumed", folder / name)
    assert "WARNING" not in fourier.done.output
    assert "the largest MLM loss first" in fourier.replayed.output
    assert "SOP loss" in fourier.replayed.output
    assert "(second text as read, before SentenceOrder: follows)" in fourier.replayed.output


def test_a_user_encoder_is_trained_and_queried(folder: pathlib.Path, fourier: Trained):
    whole = folder / "fourier"
    assert "model: Fourier of 2 layers, 16 wide" in fourier.done.output
    assert import_model(whole).config.encoder == f"{folder}/mine/fourier.py:Fourier"
    assert any(name.startswith("bert_jax.bert.encoder.feed_forward_1.") for name in weights(whole))
    texts = {"long": "the river is wide\n", "short": "Paris\n"}
    for name, text in (texts | {"both": "".join(texts.values())}).items():  # "both" puts the two texts in one row
        (folder / f"{name}.txt").write_text(text)
    model = f"--model={whole}"
    ask = [["predict", "embed", model, f"--input={folder}/{name}.txt", "--json"] for name in ("both", *texts)]
    refused = {
        ("analyse", "attention", model, f"--output={folder}/looks", "Paris"): "has no attention to show; name a Transformer",
        ("convert", f"--from={whole}", f"--to={folder}/shorter", "--layers=1"): "no layers to keep or remove",
        ("convert", f"--from={whole}", f"--to={folder}/tf1", "--format=tf1"): "the format tf1 supports only BERT",
        ("convert", f"--from={whole}", f"--to={folder}/st", "--pooling=mean"): "but no class of transformers can load ",
    }
    counted = ["analyse", "vocabulary", model, f"--output={folder}/counted"]
    both, first, second, sizes, *others = forked.run(folder, *ask, counted, *refused)
    assert sizes.status == 0, sizes.output
    assert "parameters of encoder " in sizes.output
    lines = [line for done in (both, first, second) for line in done.output.splitlines() if line.startswith("{")]
    vectors = [json.loads(line)["embedding"] for line in lines]
    assert len(vectors) == 4
    np.testing.assert_allclose(vectors[:2], vectors[2:], atol=1e-5)
    for done, says in zip(others, refused.values(), strict=True):
        assert done.status == 2, done.output
        assert says in done.output


def test_a_pretraining_run_names_the_file_that_a_command_in_another_directory_does_not_find(
    folder: pathlib.Path, fourier: Trained
):
    there = f"{folder}/mine/fourier.py"
    (lost,) = forked.run(folder, fourier.line, around=forked.Surroundings(directory=folder / "talks"))
    assert lost.status == 2
    assert f"fourier uses {there}; give --config.model.encoder={there}:Fourier, or" in lost.output
    assert f"run the command in {folder}" in lost.output


@pytest.mark.usefixtures("fourier")
def test_a_model_with_a_user_encoder_is_fine_tuned_with_all_files_killed_and_resumed_and_answers(
    folder: pathlib.Path, toys: pathlib.Path
):
    """The commands run in another directory than the training. If the encoder's file is missing, their errors name it."""
    mine = own(folder)
    line = [
        *("finetune", "--config=experiments/finetune/own_text.py", f"--config.init_from={folder}/fourier"),
        *(f"--config.task.own.{split}={toys}/{split}.csv" for split in ("train", "dev")),
        *("--config.task.length=16", "--config.training.batch_size=16", "--config.training.epochs=2"),
        *("--config.checkpoints.every=6", "--config.log_every=1"),
        f"--config.training.schedule={mine['phases.0.schedule']}",
        *(f"--config.{key}={mine[key]}" for key in ("optimizer.name", "log.sinks")),
        *(f"--config.objective={folder}/r_drop.py:RDrop", "--config.objective_options.alpha=4"),
    ]
    tuned = folder / "tuned"
    asked = ["predict", "classify", f"--model={tuned}", "--json", "it was fine"]
    again, once = ([*line, f"--workdir={workdir}"] for workdir in (folder / "tuned-killed", tuned))
    (dead,) = forked.run(folder, again, at=killed_at_8(f"{folder}/tuned-killed"))
    assert dead.status == -signal.SIGKILL, dead.output
    resumed, *ends = forked.run(folder, again, once, asked)
    for done in (resumed, *ends):
        assert done.status == 0, done.output
    assert "resuming from step 6" in resumed.output
    assert_resumed_bit_for_bit(folder / "tuned-killed", tuned)
    assert_logged(folder / "tuned-killed")
    trained = [record for record in records(tuned) if "train/learning_rate" in record]
    rates = [record["train/learning_rate"] for record in trained]
    assert 0 < rates[-1] < max(rates)
    assert all(record["train/loss"] > 2 * record["train/divergence"] > 0 for record in trained)
    assert "  divergence " in ends[0].output
    fields = json.loads((tuned / "model" / "config.json").read_text())
    for files in (results(tuned)["files"], fields["bert_jax"]["files"]):
        assert files["objective"]["source"] == (folder / "r_drop.py").read_text()

    (folder / "mine").rename(folder / "moved")
    try:
        (refused,) = forked.run(folder, asked)
    finally:
        (folder / "moved").rename(folder / "mine")
    assert refused.status == 2
    digest = hashlib.sha256((folder / "fourier.py").read_bytes()).hexdigest()[:12]
    assert "mine/fourier.py:Fourier computes the encoder of this model, but the file is missing" in refused.output
    assert f"(sha256 {digest}...); restore {folder}/mine/fourier.py" in refused.output


@pytest.mark.usefixtures("fourier")
def test_a_user_encoder_learns_from_one_and_without_attention_not_from_its_maps(experiment: pathlib.Path):
    folder = experiment.parent
    keys = {"model.encoder": f"{folder}/fourier.py:Fourier", "teacher": f"{folder}/fourier", **SHORT, **ONE_LAYER}
    watching = command(experiment, folder / "watching", *flags_of(keys | {"distillation.attention_weight": "1"}))
    done, refused = run(experiment, "pupil", keys, watching)
    assert done.status == 0, done.output
    last = [record for record in records(folder / "pupil") if "train/loss" in record][-1]
    assert last["train/soft_loss"] > 0
    assert refused.status == 2, refused.output
    assert "Fourier has no attention; use a Transformer, or set config.distillation.attention_weight=0" in refused.output


# ------------------------------------------------------------------------------------------------------------------ kinds of rows
@pytest.fixture(scope="module")
def denoised(experiment: pathlib.Path) -> dict[int, Sequence[Done]]:
    """Trains the example with its own rows, on one device and on eight. Next to each workdir is that of a run that was killed and
    resumed. Returns how the uninterrupted runs and, on one device, a replay ended."""
    folder, ends = experiment.parent, dict[int, Sequence[Done]]()
    keys = {
        **{"objective": f"{folder}/denoising.py:Denoising", "phases.0.packed_examples": "3"},
        **{"model.encoder": "encoder_decoder", "model.decoder_layers": "1", "model.type_vocab_size": "0"},
        **{"phases.0.steps": "4", "evaluation.every": "4", "checkpoints.every": "2", "checkpoints.keep_at": "[]"},
    }
    for devices in (1, 8):
        workdir = folder / f"denoised-{devices}"
        lines = [command(experiment, f"{workdir}{end}", *flags_of(keys | ONE_LAYER)) for end in ("-killed", "-resumed", "")]
        kill = Crash(ASKED, argument=3, once_there=("checkpoints/2",), source=pathlib.Path(f"{workdir}-killed"))
        kill = dataclasses.replace(kill, target=pathlib.Path(f"{workdir}-resumed"))
        then = [["pretrain", f"--workdir={workdir}", "--replay=3"]] if devices == 1 else []
        killed, resumed, *ends[devices] = forked.run(folder, *lines, *then, at=kill, devices=devices)
        assert killed.status == -signal.SIGKILL, killed.output
        for done in (resumed, *ends[devices]):
            assert done.status == 0, done.output
        assert "resuming from step 2" in resumed.output
    return ends


def test_rows_of_a_user_train_the_same_on_any_devices_resume_bit_for_bit_and_are_replayed(
    folder: pathlib.Path, denoised: dict[int, Sequence[Done]]
):
    for devices, (done, *replayed) in denoised.items():
        whole = folder / f"denoised-{devices}"
        assert_resumed_bit_for_bit(whole.with_name(f"{whole.name}-resumed"), whole)
        assert "held out after step 4: translation accuracy" in done.output
        found = results(whole)
        assert "translations" not in found
        assert found["files"].keys() == {"objective", "examples.targets"}
        assert json.loads((whole / "config.json").read_text())["examples"]["targets"] == f"{folder}/denoising.py:Denoised"
        assert all("[MASK]" in other.output for other in replayed)
    one, eight = ([x["train/loss"] for x in records(folder / f"denoised-{n}") if "train/loss" in x] for n in (1, 8))
    assert one == pytest.approx(eight, rel=1e-4)


# ---------------------------------------------------------------------------------------------------------------- what is refused
REFUSED = {
    "objective=electra": "config.objective='electra': known: bert, bilm, next_token, skip_gram, translation;",
    "objective=MINE/replaced_tokens.py:Replaced": "has no 'Replaced'; did you mean 'ReplacedTokens'?",
    "objective=MINE/bad.py:function": "is <function function",
    "objective=MINE/bad.py:Half": "bad.py:Half has no loss and no sums; see the class Objective",
    "objective=MINE/bad.py:NoOutputs": "bad.py:NoOutputs has no outputs; see the class Objective",
    "objective=MINE/bad.py:Electra": "exported='ElectraForPreTraining' needs the parameters discriminator, which the",
    "objective=MINE/bad.py:Words": "exported='BertForMaskedLM' needs the parameters mlm_head, which the objective",
    "objective=MINE/bad.py:Unnamed": "which neither sums nor counts returns; did you mean 'masked'?",
    "objective=MINE/replaced_tokens.py:ReplacedTokens --config.objective_options.wight=3": (
        "there is no 'wight' in config.objective_options; did you mean 'weight'?"
    ),
    "objective=MINE/bad.py:Unknown": "/bad.py raises NameError; correct the file here:",
    "optimizer.name=muon": "config.optimizer.name='muon' is not one of bert_adam, adamw, lamb, stable_adamw",
    "phases.0.schedule=cosinus": "config.phases.0.schedule='cosinus' is not one of nothing, original, linear",
    "optimizer.name=MINE/muon.py:mun": "muon.py has no 'mun'; did you mean 'muon'?",
    "phases.0.schedule=MINE/wsd.py": "does not name an object in the file; write config.phases.0.schedule=",
    "log.sinks=wandb": "config.log.sinks names wandb, whose package is not installed; `pip install wandb`",
    "model.positions=MINE/alibi.py:Alabi": "/alibi.py has no 'Alabi'; did you mean 'Alibi'?",
    "model.encoder=MINE/fourier.py:Norm": "fourier.py:Norm is <class 'bert_jax.model.layers.Norm'>, not an encoder; make it a",
    "model.encoder=MINE/bad.py:LastOnly": "bad.py:LastOnly returns arrays of the shapes ",
    "model.activation=MINE/bad.py:two": "bad.py:two must be a function of (x), but it cannot be called with them (missing a req",
    "model.norm=MINE/bad.py:one": "bad.py:one must be a function of (x, epsilon), but it cannot be called with them (too many",
    "model.activation=MINE/bad.py:one": "bad.py:one returns an array of shape (1,) for an array of shape (1, 32); it must keep",
    "model.norm=MINE/bad.py:two": "bad.py:two returns None for an array of shape (1, 1, 16); it must keep the shape",
    "optimizer.name=MINE/bad.py:one": "bad.py:one must be a function of (config, parameters), but it cannot be called with them",
    "phases.0.schedule=MINE/bad.py:one": "bad.py:one must be a function of (step, steps), but it cannot be called with them",
    "phases.0.schedule=MINE/bad.py:two": "bad.py:two must return a number for a step, but returns None",
    "phases.0.end_fraction=0.5": "end_fraction=0.5 of config.phases.0 does not apply to config.optimizer.schedule=original, whi",
    "examples.masking=MINE/bad.py:two": "bad.py:two is not a function of three arguments (too many positional arguments); write",
    "examples.masking=MINE/bad.py:first": "bad.py:first returned the position 0 (the token '[CLS]') for an example with ",
    "examples.masking=MINE/bad.py:unknown": "/bad.py raises AttributeError; correct the file here:",
    "model.positions=MINE/bad.py:Short": "bad.py:Short must be a function of (self, scores, tokens, layer), but it cannot be",
    "model.positions=MINE/bad.py:Alone": "Alone must return a pair, the queries and the keys",
    "objective=MINE/bad.py:NoSeed": "bad.py:NoSeed: sums must be a function of (params, batch, seed), but it cannot be called",
    "objective=MINE/sentence_order.py:SentenceOrder --config.teacher=runs/laptop": (
        "SentenceOrder overrides sums, so its predictions are not known; define outputs and output_sums instead, or learn only"
    ),
    "examples.pairs=successive": "has no random second texts, so next sentence prediction would learn nothing; set original or",
    "model.encoder=transformers": "config.model.encoder='transformers' is not one of transformer,",
}
"""Flags, where MINE is the user's folder -> a part of the error. The run does not begin."""


@pytest.fixture(scope="module")
def refused(experiment: pathlib.Path) -> dict[str, tuple[Done, pathlib.Path]]:
    """Returns how a run with each of REFUSED ended, and its workdir."""
    folder = experiment.parent
    flags = {name: f"--config.{name.replace('MINE', str(folder))}".split() for name in REFUSED}
    workdirs = [folder / f"refused-{n}" for n in range(len(flags))]
    ends = forked.run(folder, *(command(experiment, at, *given) for at, given in zip(workdirs, flags.values(), strict=True)))
    return dict(zip(flags, zip(ends, workdirs, strict=True), strict=True))


@pytest.mark.parametrize("flags", REFUSED)
def test_an_unusable_file_is_refused_in_one_sentence(refused: dict[str, tuple[Done, pathlib.Path]], flags: str):
    done, workdir = refused[flags]
    assert done.status == 2, done.output
    assert REFUSED[flags] in done.output
    assert "Traceback" not in done.output
    assert "starting from" not in done.output, "the weights were initialised, for which a program is compiled"
    assert not workdir.exists()


def test_an_error_in_the_user_file_shows_its_line(refused: dict[str, tuple[Done, pathlib.Path]]):
    assert "seed).sum() + nothing" in refused["objective=MINE/bad.py:Unknown"][0].output


BROKEN = {
    "model.encoder": (
        "from bert_jax.model.encoder import WholeRows\nclass F(WholeRows):\n    def __call__(self, x, tokens, seed):\n"
        "        return x + nothing"
    ),
    "model.positions": "class F:\n    def scores(self, scores, tokens, layer):\n        return scores + nothing",
    "model.norm": "def F(x, epsilon): return x + nothing",
    "model.activation": "def F(x): return x + nothing",
}
"""Keys of the model -> the user's file, which raises a NameError when the model is traced."""


def test_an_error_in_a_function_of_the_model_names_its_key_and_shows_its_line(experiment: pathlib.Path):
    folder = experiment.parent
    files = dict(zip(BROKEN, written(folder, [*BROKEN.values()], "broken"), strict=True))
    flags = {key: f"--config.{key}={folder}/{file}:F" for key, file in files.items()}
    runs = [command(experiment, folder / f"broken-{key}", flag) for key, flag in flags.items()]
    for (key, file), done in zip(files.items(), forked.run(folder, *runs), strict=True):
        assert done.status == 2, done.output
        assert f"error: config.{key}={folder}/{file} raises NameError; correct the file here:" in done.output
        assert "+ nothing" in done.output


def test_a_study_names_the_arm_whose_file_has_an_error(experiment: pathlib.Path, toys: pathlib.Path):
    folder = experiment.parent
    (broken,) = written(folder, [BROKEN["model.encoder"]], "arm")
    arms = [{"name": "bert"}, {"name": "own", "pretrain": {"model": {"encoder": f"{folder}/{broken}:F"}}}]
    file = tiny_study.write(folder / "study.py", tiny_study.values(experiment, toys) | {"arms": arms, "expected": []})
    (done,) = forked.run(folder, ["study", f"--config={file}", f"--workdir={folder}/study"])
    assert done.status == 2, done.output
    assert f"error: the arm 'own': config.model.encoder={folder}/{broken} raises NameError; correct the file" in done.output
    assert not (folder / "study" / "bert").exists()
