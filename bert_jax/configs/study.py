"""The frozen dataclasses of a study: arms x seeds of pretraining, and the tasks that every arm is fine-tuned on.

A study file's `get_config(setting)` returns these keys. Groups that change an experiment (`pretrain`, `finetune`, `heads`) hold
nested keys of `PretrainingExperiment` or `FinetuningExperiment`; lists in them replace those that they change.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Annotated, Any

from annotated_types import Interval

from bert_jax.configs.sections import dataclass_from_dict
from bert_jax.errors import UserError, nearest
from bert_jax.files import JsonObject
from bert_jax.interface.ranges import Count, GivenPath, Name, OneOf, PathText, Seed

EQUAL = ("steps", "tokens", "seconds")
AVERAGE = "average"
"""The column with the mean over all tasks."""
RESERVED = ("pretraining", "model", "calibration", AVERAGE)
"""Names of a study's own files and columns, which no task may have."""
Changes = dict[str, Any]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmConfig:
    """An arm: a way to pretrain, or another use of a model that another arm pretrains."""

    name: Name
    """Its name in files and tables: letters, digits, `_`, `-` and `.`."""
    label: str = ""
    """Its name in the figure and the tables; empty: `name`."""
    pretrain: Changes = dataclasses.field(default_factory=dict)
    """The keys of the pretraining experiment in which it differs."""
    shares: str = ""
    """The arm whose pretrained model it fine-tunes; it pretrains none of its own."""
    at: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """The fraction of the steps of `shares` after which the model is taken, from a checkpoint that is kept."""
    continues: str = ""
    """The arm whose trained model its own pretraining begins with."""
    finetune: Changes = dataclasses.field(default_factory=dict)
    """The keys of the fine-tuning experiments in which it differs. They override the task's, which override the
    study's, which override the experiment file; `heads` overrides all."""
    heads: Changes = dataclasses.field(default_factory=dict)
    """Likewise for the tasks with one kind of head: {"sequence": {...}, "token": {...}}."""
    paper: Changes = dataclasses.field(default_factory=dict)
    """The paper's row, printed next to it: {column: number}."""

    @property
    def title(self) -> str:
        """The name in tables."""
        return self.label or self.name


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyTaskConfig:
    """A task that every arm is fine-tuned on."""

    name: Name
    """Its name in files and tables."""
    experiment: GivenPath
    """The experiment file, FILE[:ARG], such as experiments/finetune/glue.py:stsb."""
    data_dir: PathText = ""
    """The directory of its files, within `data` of the study unless it is absolute; empty: the tfds catalogue."""
    finetune: Changes = dataclasses.field(default_factory=dict)
    """The keys of the experiment that the study changes on this task; an arm's override them."""
    metric: str = ""
    """The score, as SPLIT/METRIC; empty: the task's own metric on its first dev split."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetConfig:
    """The amount of pretraining that every arm gets."""

    equal: Annotated[str, OneOf(EQUAL)] = "steps"
    """"steps": every arm takes the steps of its experiment. "tokens": every arm reads `tokens`. "seconds": every arm trains for
    `seconds` on this machine, by a speed that is measured once. The phases of an experiment keep their proportions."""
    tokens: Annotated[float, Interval(ge=0, le=1e18)] = 0.0
    """Places in the rows of all steps, padding included."""
    seconds: Annotated[float, Interval(ge=0, le=1e9)] = 0.0
    """The time of the training steps; compiling, evaluating and saving are not in it."""
    calibration_steps: Count = 120
    """The fewest steps of each phase that measure the speed, over six log lines. Fast arms take more: 30 seconds of them, or a
    sixtieth of the budget where that is less. Each line waits for the steps under way: with 5 steps a line the speed of small
    models came out a tenth too low."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrderConfig:
    """An order that was expected before the study ran."""

    order: Name
    """Arms from the highest score to the lowest: "bert > left_to_right, bilm > static"; arms between commas are not compared."""
    tasks: tuple[Name, ...] = ()
    """The tasks on which it was expected, or "average"; empty: all of them."""

    @property
    def ranks(self) -> list[list[str]]:
        """The names of the arms of every rank, the highest first."""
        return [[name.strip() for name in rank.split(",")] for rank in self.order.split(">")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyExperiment:
    """The configuration of a study."""

    title: Name
    setting: str = ""
    """The argument of the study file, such as "laptop"."""
    corpus: GivenPath = "runs/wikipedia_corpus"
    """The directory of the tokenised corpus of every arm that names no other one."""
    data: GivenPath = "data"
    """The directory with the files of the tasks."""
    pretraining: GivenPath = "experiments/pretrain/laptop.py"
    """The pretraining experiment that the arms change, FILE[:ARG]."""
    pretrain: Changes = dataclasses.field(default_factory=dict)
    """The keys of that experiment in which all arms differ from it."""
    finetune: Changes = dataclasses.field(default_factory=dict)
    """The keys that all fine-tuning runs change; a task's and an arm's override them."""
    arms: tuple[ArmConfig, ...]
    only_arms: tuple[Name, ...] = ()
    """The names of the arms to run, and of those whose models they use; empty: all."""
    only_tasks: tuple[Name, ...] = ()
    """The names of the tasks to run; empty: all."""
    reference: str = ""
    """The arm with which the others are compared; empty: the first."""
    tasks: tuple[StudyTaskConfig, ...]
    seeds: tuple[Seed, ...] = (0, 1, 2)
    """Each seed is a pretraining run of every arm, and the fine-tuning runs from it."""
    restarts: Annotated[int, Interval(ge=1, le=1_000)] = 1
    """Fine-tuning runs from one pretrained model, whose mean counts (the paper's Table 6 has 5)."""
    budget: BudgetConfig = BudgetConfig()
    evaluations: Count = 10
    """Held-out evaluations of a pretraining run, and its checkpoints."""
    expected: tuple[OrderConfig, ...] = ()
    paper: str = ""
    """The source of the arms' rows `paper`, with the model and data that they are of."""
    keep_models: bool = False
    """Keeps the fine-tuned models, which are removed otherwise; pretrained ones stay."""

    @classmethod
    def from_dict(cls, values: JsonObject) -> StudyExperiment:
        """Returns the study of nested plain values. Raises UserError for unknown keys, wrong types and impossible values."""
        study = dataclass_from_dict(cls, values, "config")
        study.validate()
        return study._chosen()

    def to_dict(self) -> JsonObject:
        """Returns the inverse of `from_dict`, with every default written out."""
        return dataclasses.asdict(self)

    def arm(self, name: str) -> ArmConfig:
        """Returns the arm of a name that is known."""
        return next(arm for arm in self.arms if arm.name == name)

    def trainer(self, arm: ArmConfig) -> ArmConfig:
        """Returns the arm that pretrains the model of `arm`: itself, or the one that it shares."""
        return self.arm(arm.shares) if arm.shares else arm

    @property
    def reference_arm(self) -> ArmConfig:
        """The arm with which the others are compared."""
        return self.arm(self.reference) if self.reference else self.arms[0]

    def _chosen(self) -> StudyExperiment:
        """Returns the study with the arms of `only_arms`, those that they depend on, and the tasks of `only_tasks`. Expected
        orders keep the arms that are left; a reference that is not among them gives way to the first."""
        wanted = [*self.only_arms]
        for name in wanted:  # grows as it is read
            arm = self.arm(name)
            wanted += [other for other in (arm.shares, arm.continues) if other and other not in wanted]
        arms = tuple(arm for arm in self.arms if arm.name in wanted or not wanted)
        tasks = tuple(task for task in self.tasks if task.name in self.only_tasks or not self.only_tasks)
        names, columns = {arm.name for arm in arms}, {AVERAGE, *(task.name for task in tasks)}
        expected = []
        for order in self.expected:
            ranks = [kept for rank in order.ranks if (kept := [name for name in rank if name in names])]
            on = tuple(task for task in order.tasks if task in columns)
            if len(ranks) > 1 and (on or not order.tasks):
                expected.append(OrderConfig(order=" > ".join(", ".join(rank) for rank in ranks), tasks=on))
        reference = self.reference if self.reference in names else ""
        return dataclasses.replace(self, arms=arms, tasks=tasks, expected=tuple(expected), reference=reference)

    def validate(self) -> None:
        """Checks the constraints between sections. Raises UserError."""
        for key in ("arms", "tasks", "seeds"):
            if not getattr(self, key):
                raise UserError(f"config.{key} is empty, so there is nothing to train; give at least one")
        _check_names("arm", [arm.name for arm in self.arms])
        _check_names("task", [task.name for task in self.tasks])
        for task in self.tasks:
            if task.name in RESERVED:
                raise UserError(f"a task cannot have the name {task.name!r}, which a study uses itself; name it otherwise")
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"config.seeds={list(self.seeds)} repeats a seed; name each once")
        arms = [arm.name for arm in self.arms]
        for arm in self.arms:
            self._check_arm(arm, arms)
        _known("config.reference", self.reference or arms[0], arms)
        for name in self.only_arms:
            _known("config.only_arms", name, arms)
        for name in self.only_tasks:
            _known("config.only_tasks", name, [task.name for task in self.tasks])
        for i, expected in enumerate(self.expected):
            self._check_order(f"config.expected.{i}", expected)
        amount = {"tokens": self.budget.tokens, "seconds": self.budget.seconds}.get(self.budget.equal)
        if amount == 0:
            raise UserError(
                f"config.budget.equal={self.budget.equal} needs the amount of every arm; set config.budget.{self.budget.equal}"
            )

    def _check_arm(self, arm: ArmConfig, arms: Sequence[str]) -> None:
        """Raises UserError for an arm whose keys contradict each other or name no arm."""
        where = f"the arm {arm.name!r}"
        for key in ("shares", "continues"):
            if other := getattr(arm, key):
                _known(f"{key} of {where}", other, arms)
                if other == arm.name:
                    raise UserError(f"{where} {key} itself; name another arm, or leave {key} out")
                if self.arm(other).shares:
                    raise UserError(f"{where} {key} {other!r}, which pretrains no model of its own; name an arm that does")
        if arm.shares and (arm.pretrain or arm.continues):
            raise UserError(f"{where} shares the model of {arm.shares!r}, so it pretrains none; leave out shares, or the rest")
        if arm.at != 1 and not arm.shares:
            raise UserError(f"{where} has at={arm.at:g}, a step of a model that it shares; name that model's arm in shares")
        seen = [arm.name]
        while (previous := self.arm(seen[-1]).continues) in arms:
            if previous in seen:
                raise UserError(f"the arms {' and '.join(sorted(seen))} continue each other; let one begin from random weights")
            seen.append(previous)
        for column, number in arm.paper.items():
            if type(number) not in (int, float):
                raise UserError(f"{where}: the paper's {column}={number!r} must be a number; leave it out where there is none")

    def _check_order(self, key: str, expected: OrderConfig) -> None:
        """Raises UserError for an expected order that names no arm or task, or one arm twice."""
        named = [name for rank in expected.ranks for name in rank]
        for name in named:
            _known(f"{key}.order", name, [arm.name for arm in self.arms])
        if len(expected.ranks) < 2 or len(set(named)) < len(named):
            raise UserError(f"{key}.order={expected.order!r} must compare arms, each once: 'first > second'; correct it")
        for task in expected.tasks:
            _known(f"{key}.tasks", task, [*(task.name for task in self.tasks), AVERAGE])


def _check_names(kind: str, names: Sequence[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise UserError(f"the {kind} {name!r} gives files their names; use letters, digits, '_', '-' and '.' only")
        if names.count(name) > 1:
            raise UserError(f"the study names the {kind} {name!r} twice; give each {kind} a name of its own")


def _known(key: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise UserError(f"{key}: there is no {name!r}; {nearest(name, known)}")
