"""The parts of a study, with their files and records. A part is the pretraining of an arm with one seed, an earlier state of
such a pretraining, or the fine-tuning of its model on one task.

The files of a part are in DIR/ARM/seed-N. They are the experiment (`NAME.py`, which `pretrain` or `finetune` also accepts), the
workdir (`NAME/`), the output (`NAME.log`), and the record (`NAME.json`). The record is written last, so a part is done when it
has a record."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import pprint
from collections.abc import Mapping, Sequence

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.configs.study import ArmConfig, StudyExperiment
from bert_jax.errors import UserError
from bert_jax.files import JsonObject, read_json, read_record, remove_tree, write_json, write_text
from bert_jax.finetuning.best_weights import BEST
from bert_jax.finetuning.sweep import RUNS
from bert_jax.interface.named import file_record
from bert_jax.model.config import ModelConfig
from bert_jax.runtime.workdir import METRICS, MODEL, RESULTS, flatten, own_files, read_metrics
from bert_jax.storage.paths import AnyPath
from bert_jax.studies.arms import families, finetuning_values, merged, pretraining_values, with_new_parts
from bert_jax.studies.budget import exported_steps, run_values
from bert_jax.tasks.task import Task

PRETRAINING, STATE = "pretraining", "model"
CHECKPOINTS = "checkpoints"
MAY_MOVE = (("corpus", "directory"), ("task", "data_dir"), ("init_from",))
"""The keys of a part's experiment whose values are paths. The paths may change when a study is resumed, but what they hold must
stay the same (`Planned.inputs`)."""
_INPUTS = {
    "corpus": "corpus (other tokens at config.corpus or corpus.directory)",
    "init_from": "model at init_from",
    "arm": "arm whose model it starts from (`shares` or `continues`)",
    "teacher": "model at teacher",
    "examples": "set of examples (other data at the task's files)",
}
"""The names of a part's inputs in messages."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a study. `name` is "pretraining", "model" (an earlier state from the run of another arm), or the name of a
    task."""

    arm: str
    seed: int
    name: str

    def __str__(self) -> str:
        return f"{self.arm}, seed {self.seed}, {self.name}"

    def directory(self, root: AnyPath) -> AnyPath:
        """Returns the directory with the files of all parts that have this arm and seed."""
        return root / self.arm / f"seed-{self.seed}"

    def workdir(self, root: AnyPath) -> AnyPath:
        """Returns the workdir of the part's run. For an earlier state, returns the directory of the model."""
        return self.directory(root) / self.name

    def record(self, root: AnyPath) -> AnyPath:
        """Returns the path of the part's record, which marks the part as done and has its numbers."""
        return self.directory(root) / f"{self.name}.json"

    def experiment(self, root: pathlib.Path) -> pathlib.Path:
        """Returns the path of the part's experiment file."""
        return pathlib.Path(self.directory(root)) / f"{self.name}.py"

    def log(self, root: pathlib.Path) -> pathlib.Path:
        """Returns the path of the file with the part's output."""
        return pathlib.Path(self.directory(root)) / f"{self.name}.log"


def family_parts(study: StudyExperiment, family: Sequence[ArmConfig], seed: int) -> list[Part]:
    """Returns the parts of a family of arms for one seed, in the order in which they run."""
    trained = [Part(arm.name, seed, PRETRAINING) for arm in family if not arm.shares]
    states = [Part(arm.name, seed, STATE) for arm in family if arm.at < 1]
    return [*trained, *states, *(Part(arm.name, seed, task.name) for arm in family for task in study.tasks)]


def part_groups(study: StudyExperiment) -> list[list[Part]]:
    """Returns groups of parts. One process runs the parts of a group in order. The groups are sorted by seed and then by
    family, so that the first results have one seed of every arm."""
    return [family_parts(study, family, seed) for seed in study.seeds for family in families(study)]


@dataclasses.dataclass(frozen=True)
class Planned:
    """A study, with its models and tasks and with the planned steps of every arm that pretrains."""

    study: StudyExperiment
    steps: Mapping[str, Sequence[int]]
    pretraining: Mapping[str, PretrainingExperiment]
    tasks: Mapping[str, Task]
    root: AnyPath
    """The workdir of the study, possibly remote."""
    teachers: Mapping[str, ModelConfig] = dataclasses.field(default_factory=dict)
    """Name of an arm that is pretrained with a teacher -> the configuration of the teacher."""
    everything: StudyExperiment | None = None
    """The study with all arms, if `only_arms` leaves out some of them. A pretraining keeps the states for all arms."""
    inputs: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    """Name of an arm that pretrains -> the hashes of its corpora and of the models that it reads, by name."""
    examples: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Name of a task -> the hash of its examples."""
    changed_files: bool = False
    """Whether parts may differ in the content of a user's file."""

    def values(self, part: Part) -> JsonObject:
        """Returns the values of the part's experiment. For an earlier state, returns the workdir and the step of the state."""
        study, arm = self.study, self.study.arm(part.arm)
        trainer = study.trainer(arm)
        trained = Part(trainer.name, part.seed, PRETRAINING).workdir(self.root)
        if part.name == PRETRAINING:
            kept_for = self.everything or study
            values = run_values(kept_for, arm, pretraining_values(study, arm), self.steps[arm.name], part.seed)
            if arm.continues:
                start = Part(arm.continues, part.seed, PRETRAINING).workdir(self.root)
                values = merged(values, {"init_from": str(start)})
            return values
        if part.name == STATE:
            return {"init_from": str(trained), "step": exported_steps(study, trainer, self.steps[trainer.name])[arm.name]}
        task = next(task for task in study.tasks if task.name == part.name)
        values = finetuning_values(study, arm, task, part.seed)
        values = with_new_parts(values, self.pretraining[trainer.name], self.tasks[task.name].head)
        model = Part(arm.name, part.seed, STATE).workdir(self.root) if arm.at < 1 else trained
        return merged(values, {"init_from": str(model)})

    def command(self, part: Part, local: pathlib.Path) -> list[str]:
        """Returns the command that runs the part, with its flags. Writes the part's experiment file to `local`, a directory of
        this process."""
        values, workdir = self.values(part), part.workdir(self.root)
        if part.name == STATE:
            return ["convert", f"--from={values['init_from']}", f"--step={values['step']}", f"--to={workdir}"]
        command = "pretrain" if part.name == PRETRAINING else "finetune"
        write_experiment(part.experiment(local), values, f"{part} of the study {self.study.title}")
        return [command, f"--config={part.experiment(local)}", f"--workdir={workdir}"]

    def is_done(self, part: Part) -> bool:
        """Returns whether the part has a record. Raises UserError if the record was made with a different configuration or with
        different data, or if an earlier state was not kept by the finished run of its model."""
        record = self.record(part)
        if record is None:
            if part.name == STATE:
                self._require_state(part)
            return False
        if record.get("part") != digest(self.values(part)):
            raise UserError(
                f"{part.record(self.root)} was made with another configuration of this part; name another --workdir for this "
                f"study, or remove {part.directory(self.root)} to run these parts again"
            )
        stored, inputs = record.get("inputs", {}), self._inputs(part)
        if changed := [name for name in _INPUTS if stored.get(name) != inputs.get(name)]:
            raise UserError(
                f"{part.record(self.root)} was made with another {_INPUTS[changed[0]]}, or does not say with which; restore "
                f"the old one, name another --workdir for this study, or remove {part.directory(self.root)} to run these parts "
                "again"
            )
        if (changed := differing(stored, self._files(part))) and not self.changed_files:
            raise UserError(
                f"{part.record(self.root)} was made with another content of the file that {changed[0]} names; restore the file, "
                f"name another --workdir for this study, remove {part.directory(self.root)} to run these parts again, or mix "
                "both contents in one table: --changed-files"
            )
        return True

    def _inputs(self, part: Part) -> Mapping[str, str]:
        """Returns the hashes of the data and the models that the part reads. A model of the study itself has the name of its
        arm, unless it is the part's own arm."""
        arm = self.study.arm(part.arm)
        trained = arm.continues if part.name == PRETRAINING else arm.shares
        read = {"arm": trained} if trained else {}
        if part.name == PRETRAINING:
            return {**read, **self.inputs.get(part.arm, {})}
        return {**read, **({"examples": self.examples[part.name]} if part.name in self.examples else {})}

    def _files(self, part: Part) -> Mapping[str, str]:
        """Returns the keys of the part that name a user's file, without log sinks -> the hash of the file."""
        named = ((f"config.{key}", value) for key, value in flatten(self.values(part)) if not key.startswith("log."))
        return {key: record["sha256"] for key, value in named if (record := file_record(str(value), key))}

    def _require_state(self, state: Part) -> None:
        """Raises UserError if the run with an earlier state is finished and has not kept the state."""
        trainer, step = Part(self.study.arm(state.arm).shares, state.seed, PRETRAINING), self.values(state)["step"]
        if self.record(trainer) is not None and not (trainer.workdir(self.root) / CHECKPOINTS / str(step)).is_dir():
            raise UserError(
                f"the arm {state.arm!r} uses the state of step {step:,} of {trainer.workdir(self.root)}, which was not kept "
                "(the arm was added after this run); name another --workdir for this study, or remove "
                f"{trainer.directory(self.root)} to run these parts again"
            )

    def record(self, part: Part) -> JsonObject | None:
        """Returns the numbers of a part, or None if the part is not done."""
        return read_record(part.record(self.root))

    def finish(self, part: Part) -> None:
        """Writes the record of a part that has ended successfully. Raises UserError if the part used another content of a
        user's file than this study, since the file was edited in between."""
        values, files = self.values(part), self._files(part)
        used = {f"config.{key}": file["sha256"] for key, file in (own_files(part.workdir(self.root)) if files else {}).items()}
        if (changed := differing(used, files)) and not self.changed_files:
            raise UserError(
                f"the file that {changed[0]} names was edited while the study ran, and {part} was trained with the new content; "
                f"restore the file and remove {part.workdir(self.root)}, or start the study in another --workdir"
            )
        numbers = {"step": values["step"]} if part.name == STATE else read_numbers(part.workdir(self.root))
        inputs = {**self._inputs(part), **files, **{key: used[key] for key in changed}}
        read = {"inputs": inputs} if inputs else {}
        write_json(part.record(self.root), {"part": digest(values), **read, **numbers})

    def clean_up(self, part: Part) -> None:
        """Removes the files of a finished part that no later part needs. They are the checkpoints, the best weights of a
        fine-tuning and, if the study does not keep fine-tuned models, the fine-tuned model. The checkpoints of a pretraining
        are kept until its earlier states are exported."""
        workdir = part.workdir(self.root)
        if part.name == PRETRAINING:
            arms = (self.everything or self.study).arms
            states = [Part(arm.name, part.seed, STATE) for arm in arms if arm.shares == part.arm and arm.at < 1]
            if all(self.record(state) for state in states):
                remove_tree(workdir / CHECKPOINTS)
        elif part.name == STATE:
            self.clean_up(Part(self.study.arm(part.arm).shares, part.seed, PRETRAINING))
        else:
            runs = list((workdir / RUNS).iterdir()) if (workdir / RUNS).is_dir() else []
            for directory in (workdir / CHECKPOINTS, *(run / BEST for run in (workdir, *runs))):
                remove_tree(directory)
            if not self.study.keep_models:
                remove_tree(workdir / MODEL)


def write_experiment(path: pathlib.Path, values: JsonObject, title: str) -> None:
    """Writes an experiment file with these values, unless the file already has this content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'"""{title}."""\n\n\ndef get_config():\n    return {pprint.pformat(values, width=120, sort_dicts=False)}\n'
    if not (path.is_file() and path.read_text(encoding="utf-8") == text):
        write_text(path, text)


def differing(stored: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Returns the names in `found` with another value, or none, in `stored`."""
    return [name for name, value in found.items() if stored.get(name) != value]


def digest(values: JsonObject) -> str:
    """Returns a SHA-256 of the values in a part's experiment. The paths are left out (`MAY_MOVE`), and so are the steps of the
    states that are kept for other arms."""
    kept = merged(values)
    if "keep_at" in kept.get("checkpoints", {}):
        kept = merged(kept, {"checkpoints": {"keep_at": []}})
    for *groups, name in MAY_MOVE:
        node = kept
        for group in groups:
            node = node.get(group, {})
        node.pop(name, None)
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def read_numbers(workdir: AnyPath) -> JsonObject:
    """Reads the numbers that the table needs from the results.json and metrics.jsonl of a finished run.

    The numbers under "measured" depend on the time and the machine. All other numbers are the same each time the part runs."""
    results = read_json(workdir / RESULTS)
    seconds = results.get("ledger", {}).get("seconds", {})
    measured = {"seconds": seconds, "devices": results.get("devices", ""), "jax": results.get("jax", "")}
    if "eval" in results:
        curve = [
            {name.removeprefix("eval/"): value for name, value in record.items() if name.startswith("eval/")}
            | {"step": record["step"]}
            for record in read_metrics(workdir / METRICS)
            if any(name.startswith("eval/") for name in record)
        ]
        kept = {name: results[name] for name in ("steps", "parameters", "eval", "skipped_steps")}
        return {**kept, "curve": curve, "measured": measured}
    runs = results.get("runs", [results])
    return {
        "scores": [run["scores"] for run in runs if "failed" not in run],
        "baseline": next((run["baseline"] for run in runs if "baseline" in run), {}),
        "metric": next((f"{next(iter(run['scores']))}/{run['metric']}" for run in runs if "metric" in run), ""),
        "degenerate": sum(bool(run.get("degenerate")) for run in runs),
        "failed": sum("failed" in run for run in runs),
        "measured": measured,
    }
