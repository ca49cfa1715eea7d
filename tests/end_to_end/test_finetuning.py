"""From the official files of every kind of task to scores, files of predictions, and a model that answers."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Sequence

import numpy as np
import pytest

from bert_jax.tasks.published import published
from bert_jax.training import curves as plots
from tests.end_to_end import forked
from tests.end_to_end.forked import Done
from tests.end_to_end.kinds import KINDS, agreement, file, table
from tests.end_to_end.runs import REPOSITORY, records, results, texts_in
from tests.end_to_end.toy_tasks import ROWS, WRITERS
from tests.training.test_metrics import events

BATCH, EPOCHS = 16, 2
FLAGS = (
    "--config.task.length=32",
    f"--config.training.batch_size={BATCH}",
    f"--config.training.epochs={EPOCHS}",
    "--config.model.hidden_dropout=0.0",
    "--config.model.attention_dropout=0.0",
    "--config.model.scan_layers=true",
    "--config.log_every=10",
)
EACH = pytest.mark.parametrize("name", KINDS)


@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of a task: how both commands ended, and where its files and its workdir `run` are."""

    directory: pathlib.Path
    finetune: Done
    predict: Done


@pytest.fixture(scope="module")
def trained(toys: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """Trains and queries every kind of task in one process."""
    base = tmp_path_factory.mktemp("kinds")
    directories = {name: base / re.sub(r"\W+", "-", name) for name in KINDS}
    commands: list[Sequence[str]] = []
    for name, kind in KINDS.items():
        directory = directories[name]
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(ROWS, "train", kind.steps // EPOCHS * BATCH)  # few epochs, and so few evaluations and saves
            WRITERS[name](directory)
        experiment = REPOSITORY / "experiments" / "finetune" / kind.experiment
        places = (f"--config={experiment}", f"--workdir={directory}/run", f"--config.init_from={toys}/model")
        learning = f"--config.training.learning_rate={kind.rate}"
        commands.append(("finetune", *places, *FLAGS, learning, *kind.flags(directory), "--format=png,pdf"))
        asked = directory / "asked.jsonl"
        asked.write_text("".join(json.dumps(record) + "\n" for record in kind.asked(directory)))
        commands.append(("predict", *kind.predict, f"--model={directory}/run", f"--input={asked}", "--json"))
    done = iter(forked.run(base, *commands))
    return {name: Trained(directory, next(done), next(done)) for name, directory in directories.items()}


@EACH
def test_a_task_is_learned_well_above_the_majority_baseline(trained: dict[str, Trained], name: str):
    run, metric, dev = trained[name], KINDS[name].metric, KINDS[name].dev
    assert run.finetune.status == 0, run.finetune.output
    found = results(run.directory / "run")
    assert (found["task"], found["metric"], found["degenerate"]) == (name.partition(",")[0], metric, False)
    assert found["scores"][dev][metric] >= KINDS[name].beats > 1.2 * found["baseline"][dev][metric]


@EACH
def test_scores_of_the_prediction_files_equal_the_results(trained: dict[str, Trained], name: str):
    run, kind = trained[name], KINDS[name]
    assert {path.name for path in (run.directory / "run" / "predictions").iterdir()} == set(kind.files)
    said = results(run.directory / "run")["scores"][kind.dev][kind.metric]
    assert kind.score(run.directory) == pytest.approx(said, abs=1e-5)


@EACH
def test_a_run_writes_curves_and_metrics(trained: dict[str, Trained], name: str):
    workdir, metric, split = trained[name].directory / "run", KINDS[name].metric, KINDS[name].dev
    assert (workdir / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (workdir / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert list((workdir / "tensorboard").glob("events.out.tfevents.*"))
    found = results(workdir)
    assert len(found["published"]) == len(published(found["task"]))
    assert found["published"] or found["task"] not in ("glue/sst2", "glue/mnli")
    each = found["steps_per_epoch"]
    dev = {record["step"]: record[f"{split}/{metric}"] for record in records(workdir) if f"{split}/{metric}" in record}
    assert list(dev) == [each * epoch for epoch in range(1, EPOCHS + 1)]
    assert found["scores"][split][metric] == dev[found["best_step"]] == pytest.approx(max(dev.values()), rel=1e-6)
    losses = [record["train/loss"] for record in records(workdir) if "train/loss" in record]
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])


def test_a_run_compiles_at_most_two_training_programs_and_one_evaluation(trained: dict[str, Trained]):
    """Compiling takes longer than training on a few thousand examples. In this process, runs of equal shapes share programs."""
    compiling = re.compile(r"(?m)(?:^|  )compiling the (training step|evaluation)")
    said = {name: compiling.findall(run.finetune.output) for name, run in trained.items()}
    steps = {name: programs.count("training step") for name, programs in said.items()}
    assert max(steps.values()) <= 2, steps
    assert sum(map(bool, steps.values())) > len(steps) / 2, steps
    assert max(programs.count("evaluation") for programs in said.values()) == 1, said


@EACH
def test_dev_is_evaluated_every_epoch_and_test_once(trained: dict[str, Trained], name: str):
    run, kind = trained[name], KINDS[name]
    splits = re.findall(r"evaluating the weights of step [\d,]+ on (\S+):", run.finetune.output)
    assert len(splits) == len(set(splits))
    assert not [split for split in splits if split.startswith("dev")], "the evaluation that won is not repeated"
    sizes = re.search(r"^task: .*$", run.finetune.output, re.MULTILINE)[0]
    assert ("test" in splits) == (" test" in sizes)
    assert run.finetune.output.count(f"{kind.dev} after step ") == EPOCHS
    assert run.finetune.output.count("compiling the training step for") <= 2


@EACH
def test_a_score_has_one_name_in_the_log_the_metrics_tensorboard_and_the_results(trained: dict[str, Trained], name: str):
    run, dev = trained[name], KINDS[name].dev
    metrics = {name for record in records(run.directory / "run") for name in record} - {"step", "time"}
    assert {tag for _, tag, _ in events(run.directory / "run")} == metrics
    scores = results(run.directory / "run")["scores"][dev]
    assert {name for name in metrics if name.startswith(f"{dev}/")} == {f"{dev}/{score}" for score in scores}
    shown = re.search(rf"{dev} after step [\d,]+: (.*)", run.finetune.output)[1]
    assert set(re.findall(r"(\w+) -?[\d.]+(?:e-?\d+)?(?: \(baseline [^)]*\))?", shown)) <= scores.keys()
    step = re.search(r"step +[\d,]+/[\d,]+  (.*)", run.finetune.output)[1]
    assert re.findall(r" (\w+)/s", step)[:2] == ["examples", "tokens"]
    assert {f"train/{word}" for word in re.findall(r"([a-z]+) [\d.]+(?: %)?(?=  )", step)} <= metrics
    assert {f"train/{word}_per_second" for word in ("examples", "tokens", "flops")} <= metrics
    assert not [name for name in metrics if "rows" in name]
    assert {"train/loss", f"{dev}/{results(run.directory / 'run')['metric']}", "train/learning_rate"} <= metrics


def test_the_figure_has_the_loss_the_score_of_the_metrics_and_the_rate(trained: dict[str, Trained], tmp_path: pathlib.Path):
    name = min(trained)
    metric = f"{KINDS[name].dev}/{results(trained[name].directory / 'run')['metric']}"
    lines = trained[name].directory / "run" / "metrics.jsonl"
    plots.draw_task_curves(lines, tmp_path / "curves.svg", title="t", metric=metric, baselines={}, formats=("svg",))
    panels = ["training loss", metric.replace("/", " "), "learning rate"]
    assert [text for text in texts_in(tmp_path / "curves.svg") if text in panels] == panels


@EACH
def test_predict_gives_the_answers_of_the_prediction_files(trained: dict[str, Trained], name: str):
    run, kind = trained[name], KINDS[name]
    assert run.predict.status == 0, run.predict.output
    replies = [json.loads(line) for line in run.predict.output.splitlines() if line.startswith("{")]
    assert [kind.answer(reply) for reply in replies] == list(kind.told(run.directory))


@pytest.mark.parametrize(
    ("name", "of_pairs"),
    [("own/sequence, values of pairs", True), ("glue/mnli", True), ("glue/sst2", False), ("conll2003", None)],
)
def test_a_model_records_whether_it_was_trained_on_pairs(trained: dict[str, Trained], name: str, of_pairs: bool | None):
    fields = json.loads((trained[name].directory / "run" / "model" / "config.json").read_text())
    assert fields["bert_jax"].get("of_pairs") is of_pairs


def test_both_dev_sets_of_mnli_are_scored_and_predicted(trained: dict[str, Trained]):
    directory = trained["glue/mnli"].directory
    said = results(directory / "run")["scores"]["dev_mismatched"]["accuracy"]
    assert agreement(directory, "dev_mismatched") == pytest.approx(said, abs=1e-5)
    assert said >= KINDS["glue/mnli"].beats


def test_an_unlabelled_test_set_becomes_a_leaderboard_file(trained: dict[str, Trained]):
    rows = table(file(trained["glue/sst2"].directory, "SST-2.tsv"))
    assert [row["index"] for row in rows] == [str(i) for i in range(ROWS["test"])]
    assert {row["prediction"] for row in rows} == {"0", "1"}
