"""The frozen dataclasses of a study. A study pretrains the models of all arms with every seed, and fine-tunes every arm on all
tasks.

A study file's `get_config(setting)` returns these keys. Groups that change an experiment (`pretrain`, `finetune`, `heads`) hold
nested keys of `PretrainingExperiment` or `FinetuningExperiment`. A list replaces the whole earlier list.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from typing import Annotated, Any

from annotated_types import Interval

from bert_jax.configs.experiment_files import dataclass_from_dict
from bert_jax.errors import UserError, nearest
from bert_jax.files import JsonObject
from bert_jax.interface.ranges import Count, GivenPath, Name, OneOf, PathText, Seed

EQUAL = ("steps", "tokens", "seconds")
AVERAGE = "average"
"""The column with the mean over all tasks."""
RESERVED = ("pretraining", "model", "calibration", AVERAGE)
"""Names that tasks may not have, since a study uses these names for its own files and columns."""
Changes = dict[str, Any]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmConfig:
    """An arm of a study. An arm pretrains a model in its own way, or uses a model that a different arm pretrains."""

    name: Name
    """The name in files and tables: letters, digits, `_`, `-` and `.`."""
    label: str = ""
    """The name in figures and tables. Default: `name`."""
    pretrain: Changes = dataclasses.field(default_factory=dict)
    """The keys of the pretraining experiment that the arm changes."""
    shares: str = ""
    """The arm whose pretrained model this arm fine-tunes, instead of pretraining its own."""
    at: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """If `at` is less than 1, the model is a kept checkpoint of the arm `shares`, saved after this fraction of the arm's
    steps."""
    continues: str = ""
    """The arm whose trained model this arm continues to pretrain."""
    finetune: Changes = dataclasses.field(default_factory=dict)
    """The keys of the fine-tuning experiments that the arm changes. Precedence, highest first: `heads`, the arm, the task, the
    study, the experiment file."""
    heads: Changes = dataclasses.field(default_factory=dict)
    """Like `finetune`, but only for tasks with a certain kind of head: {"sequence": {...}, "token": {...}}."""
    paper: Changes = dataclasses.field(default_factory=dict)
    """The paper's scores for this arm, printed next to ours: {column: number}."""

    @property
    def title(self) -> str:
        """The name in tables."""
        return self.label or self.name


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyTaskConfig:
    """A task that every arm is fine-tuned on."""

    name: Name
    """The name in files and tables."""
    experiment: GivenPath
    """The experiment file, FILE[:ARG], e.g. experiments/finetune/glue.py:stsb."""
    data_dir: PathText = ""
    """The directory of the task's files. A relative path is relative to the study's `data`. Empty: the tfds catalogue."""
    finetune: Changes = dataclasses.field(default_factory=dict)
    """The keys of the experiment that the study changes for this task. An arm's keys override them."""
    metric: str = ""
    """The score, as SPLIT/METRIC. Default: the task's main metric on its first dev split."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetConfig:
    """The amount of pretraining that every arm gets."""

    equal: Annotated[str, OneOf(EQUAL)] = "steps"
    """"steps": every arm runs the steps of its experiment. "tokens": every arm reads `tokens` tokens. "seconds": every arm
    trains for `seconds` on this machine. The number of steps is computed from the arm's speed, which is measured once. The
    phases of an experiment keep their proportions."""
    tokens: Annotated[float, Interval(ge=0, le=1e18)] = 0.0
    """The number of tokens in the rows of all steps, including padding."""
    seconds: Annotated[float, Interval(ge=0, le=1e9)] = 0.0
    """The time of the training steps, excluding compilation, evaluation and saving."""
    calibration_steps: Count = 120
    """The minimum number of steps per phase for measuring the speed. These steps are logged in six log lines. Fast arms take as
    many steps per phase as fit in 30 seconds, or in a sixtieth of the budget if that is less. Each log line waits for pending
    steps. With 5 steps per line, the measured speed of small models was a tenth too low."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrderConfig:
    """An order that was expected before the study ran."""

    order: Name
    """Arms from the highest to the lowest score: "bert > left_to_right, bilm > static". Arms separated by commas are not
    compared with each other."""
    tasks: tuple[Name, ...] = ()
    """The tasks for which the order was expected. "average" is the mean over all tasks. Empty: all tasks and their mean."""

    @property
    def ranks(self) -> list[list[str]]:
        """The names of the arms of each rank, highest first."""
        return [[name.strip() for name in rank.split(",")] for rank in self.order.split(">")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyExperiment:
    """The configuration of a study."""

    title: Name
    setting: str = ""
    """The argument of the study file, e.g. "laptop"."""
    corpus: GivenPath = "runs/wikipedia_corpus"
    """The directory of the tokenised corpus, unless an arm names another."""
    data: GivenPath = "data"
    """The directory with the files of the tasks."""
    pretraining: GivenPath = "experiments/pretrain/laptop.py"
    """The pretraining experiment from which all arms start, FILE[:ARG]."""
    pretrain: Changes = dataclasses.field(default_factory=dict)
    """The keys of the pretraining experiment that are changed in all arms."""
    finetune: Changes = dataclasses.field(default_factory=dict)
    """The keys that all fine-tuning runs change. Keys of a task and of an arm override them."""
    arms: tuple[ArmConfig, ...]
    only_arms: tuple[Name, ...] = ()
    """The names of the arms to run. Arms whose models these arms use are run too. Empty: all arms."""
    only_tasks: tuple[Name, ...] = ()
    """The names of the tasks to run. Empty: all tasks."""
    reference: str = ""
    """The arm with which all other arms are compared. Default: the first."""
    tasks: tuple[StudyTaskConfig, ...]
    seeds: tuple[Seed, ...] = (0, 1, 2)
    """The seeds. With each seed, every model is pretrained once, and every arm is fine-tuned on every task."""
    restarts: Annotated[int, Interval(ge=1, le=1_000)] = 1
    """The number of fine-tuning runs per pretrained model, which are averaged (5 in the paper's Table 6)."""
    budget: BudgetConfig = BudgetConfig()
    evaluations: Count = 10
    """The number of held-out evaluations and checkpoints per pretraining run."""
    expected: tuple[OrderConfig, ...] = ()
    paper: str = ""
    """The source of the arms' `paper` scores, with the model and data of the paper."""
    keep_models: bool = False
    """Whether to keep the fine-tuned models. If not, they are removed. Pretrained models are always kept."""

    @classmethod
    def from_dict(cls, values: JsonObject) -> StudyExperiment:
        """Builds the study from nested plain values. Raises UserError for unknown keys, wrong types and invalid values."""
        study = dataclass_from_dict(cls, values, "config")
        study.validate()
        return study._chosen()

    def to_dict(self) -> JsonObject:
        """Returns the inverse of `from_dict`, with every default written out."""
        return dataclasses.asdict(self)

    def arm(self, name: str) -> ArmConfig:
        """Returns the arm with a known name."""
        return next(arm for arm in self.arms if arm.name == name)

    def trainer(self, arm: ArmConfig) -> ArmConfig:
        """Returns the arm that pretrains the model of `arm`. This is the arm named in `shares`, or `arm` itself."""
        return self.arm(arm.shares) if arm.shares else arm

    @property
    def reference_arm(self) -> ArmConfig:
        """The arm with which all other arms are compared."""
        return self.arm(self.reference) if self.reference else self.arms[0]

    def _chosen(self) -> StudyExperiment:
        """Returns the study with only the arms in `only_arms`, the arms that they depend on, and the tasks in `only_tasks`.
        Expected orders keep only the remaining arms. If the reference arm was removed, the first arm replaces it."""
        wanted = [*self.only_arms]
        for name in wanted:  # the loop appends to this list
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
                raise UserError(
                    f"a task cannot have the name {task.name!r}, which is reserved for the study itself; choose another name"
                )
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"config.seeds={list(self.seeds)} repeats a seed; name each seed once")
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
                f"config.budget.equal={self.budget.equal} needs a limit of {self.budget.equal} per arm; "
                f"set config.budget.{self.budget.equal}"
            )

    def check_given(self, given: Collection[str]) -> None:
        """Raises UserError if one of the keys `given` on the command line limits the budget in another unit than `equal`."""
        for unit in ("tokens", "seconds"):
            if f"budget.{unit}" in given and getattr(self.budget, unit) and self.budget.equal != unit:
                raise UserError(
                    f"config.budget.{unit} has no effect, because config.budget.equal is {self.budget.equal}; set "
                    f"config.budget.equal={unit}, or leave it out"
                )

    def _check_arm(self, arm: ArmConfig, arms: Sequence[str]) -> None:
        """Raises UserError if the keys of an arm contradict each other or name an unknown arm."""
        where = f"the arm {arm.name!r}"
        for key in ("shares", "continues"):
            if other := getattr(arm, key):
                _known(f"{key} of {where}", other, arms)
                if other == arm.name:
                    raise UserError(f"{where} {key} itself; name a different arm, or leave {key} out")
                if self.arm(other).shares:
                    raise UserError(f"{where} {key} {other!r}, which does not pretrain a model; name an arm that pretrains one")
        if arm.shares and (arm.pretrain or arm.continues):
            raise UserError(
                f"{where} shares the model of {arm.shares!r}, so it cannot pretrain a model; leave out shares, or leave out "
                "pretrain and continues"
            )
        if arm.at != 1 and not arm.shares:
            raise UserError(f"{where} has at={arm.at:g}, which needs a shared model; name the arm of this model in shares")
        seen = [arm.name]
        while (previous := self.arm(seen[-1]).continues) in arms:
            if previous in seen:
                raise UserError(f"the arms {' and '.join(sorted(seen))} continue each other; let one start from random weights")
            seen.append(previous)
        for column, number in arm.paper.items():
            if type(number) not in (int, float):
                raise UserError(
                    f"{where}: the paper's {column}={number!r} must be a number; if the paper has no number, leave it out"
                )

    def _check_order(self, key: str, expected: OrderConfig) -> None:
        """Raises UserError if an expected order names an unknown arm or task, names an arm twice, or has fewer than two
        ranks."""
        named = [name for rank in expected.ranks for name in rank]
        for name in named:
            _known(f"{key}.order", name, [arm.name for arm in self.arms])
        if len(expected.ranks) < 2 or len(set(named)) < len(named):
            raise UserError(f"{key}.order={expected.order!r} must name each arm once, as in 'first > second'; correct it")
        for task in expected.tasks:
            _known(f"{key}.tasks", task, [*(task.name for task in self.tasks), AVERAGE])


def _check_names(kind: str, names: Sequence[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise UserError(f"file names are made from the {kind} {name!r}; use only letters, digits, '_', '-' and '.'")
        if names.count(name) > 1:
            raise UserError(f"the study names the {kind} {name!r} twice; give each {kind} a different name")


def _known(key: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise UserError(f"{key}: there is no {name!r}; {nearest(name, known)}")
