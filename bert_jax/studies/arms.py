"""Builds the experiments of a study's arms. An experiment is the base experiment with the changes of the arm. Several arms may
share a run."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.configs.study import ArmConfig, StudyExperiment, StudyTaskConfig
from bert_jax.data.corpus.store import open_splits
from bert_jax.data.corpus.verification import local_corpus
from bert_jax.data.tokenizers.tokenizer import VocabularyInfo
from bert_jax.errors import UserError, missing_path, nearest
from bert_jax.files import JsonObject
from bert_jax.finetuning.data import check_tags, examples_fingerprint
from bert_jax.finetuning.program import check_objective, learning_rate
from bert_jax.finetuning.start import weights_fingerprint
from bert_jax.interface import python_files
from bert_jax.interface.words import counted
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.bert_with_head import initial_label_parameters
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.kernels.dispatch import require_possible
from bert_jax.pretraining.inferred_settings import infer_settings
from bert_jax.pretraining.splits import check_corpus, fingerprint, open_phase_corpora
from bert_jax.pretraining.start import load_teacher
from bert_jax.storage.paths import is_url
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.task import Task, load_task, task_head_class
from bert_jax.training.schedules import piecewise
from bert_jax.training.warm_start import same_vocabulary

ANY_MODEL = "any"
"""The value of `init_from` when a fine-tuning experiment is checked before its model exists."""


def merged(*trees: Mapping[str, Any]) -> JsonObject:
    """Merges trees of nested groups. Later values replace earlier values, and a list is replaced as a whole. To change single
    items of a list, pass a group whose keys are the indices of the items.

    >>> merged({"model": {"num_layers": 2, "hidden_size": 64}}, {"model": {"num_layers": 4}})
    {'model': {'num_layers': 4, 'hidden_size': 64}}
    >>> merged({"phases": [{"steps": 7}, {"steps": 2}]}, {"phases": {"1": {"length": 64}}})
    {'phases': [{'steps': 7}, {'steps': 2, 'length': 64}]}
    """
    result: JsonObject = {}
    for tree in trees:
        for key, value in tree.items():
            result[key] = _changed(result.get(key), value, key)
    return result


def _changed(there: Any, value: Any, key: str) -> Any:
    """Returns `there` with the changes in `value`. Raises UserError if `value` changes an item of a list that does not
    exist."""
    if isinstance(value, Mapping) and isinstance(there, Mapping):
        return merged(there, value)
    if isinstance(value, Mapping) and isinstance(there, list):
        if unknown := [number for number in value if number not in map(str, range(len(there)))]:
            raise UserError(f"{key}.{unknown[0]}: the experiment has {len(there)} {key}, numbered from 0; name one of them")
        return [_changed(item, value[str(i)], key) if str(i) in value else item for i, item in enumerate(there)]
    return copy.deepcopy(value)


@functools.cache
def _file(given: str) -> JsonObject:
    """Returns the values of an experiment file. All arms start from the same file, so the values are cached and must not be
    modified."""
    return python_files.load(given, "--config: the experiment")


def pretraining_values(study: StudyExperiment, arm: ArmConfig) -> JsonObject:
    """Returns the values of an arm's pretraining experiment. The steps are those of the experiment file, not the planned
    steps."""
    own = {"corpus": {"directory": study.corpus}}
    return merged(_file(study.pretraining), own, study.pretrain, arm.pretrain)


def finetuning_values(study: StudyExperiment, arm: ArmConfig, task: StudyTaskConfig, seed: int) -> JsonObject:
    """Returns the values of an arm's fine-tuning experiment on a task, without `init_from`. The seeds are those of the study,
    even if the experiment has a sweep over seeds."""
    given = _file(task.experiment)
    values = merged(given, study.finetune, task.finetune, arm.finetune)
    kind = task_head_class(task_config(values)).kind
    values = merged(values, arm.heads.get(kind, {}))
    if task.data_dir:
        values = merged(values, {"task": {"data_dir": data_directory(study, task)}})
    seeds = [seed * study.restarts + i for i in range(study.restarts)]
    sweep = values.get("sweep")
    has_sweep = len(seeds) > 1 or bool(isinstance(sweep, Mapping) and sweep.get("seeds"))
    return merged(values, {"seed": seeds[0]}, {"sweep": {"seeds": seeds if len(seeds) > 1 else []}} if has_sweep else {})


def contradictions(arm: Mapping[str, Any], task: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Returns {dotted key: (the arm's value, the task's value)} for each key that the arm and the task set to different
    values."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in arm.keys() & task.keys():
        ours, its = arm[key], task[key]
        if isinstance(ours, Mapping) and isinstance(its, Mapping):
            found |= contradictions(ours, its, f"{prefix}{key}.")
        elif ours != its:
            found[f"{prefix}{key}"] = (ours, its)
    return dict(sorted(found.items()))


def task_config(values: JsonObject) -> TaskConfig:
    """Returns the task settings in the values of a fine-tuning experiment."""
    return FinetuningExperiment.from_dict({**values, "init_from": ANY_MODEL}).task


def data_directory(study: StudyExperiment, task: StudyTaskConfig) -> str:
    """Returns the directory with the files of a task."""
    given = task.data_dir
    return given if pathlib.Path(given).is_absolute() or is_url(given) else f"{study.data}/{given}"


def families(study: StudyExperiment) -> list[list[ArmConfig]]:
    """Returns groups of arms. The arms of a group depend on each other's models, so one process trains the whole group. The
    arms that pretrain come first."""

    def root(name: str) -> str:
        arm = study.arm(name)
        above = arm.shares or arm.continues
        return root(above) if above else name

    roots = {arm.name: root(arm.name) for arm in study.arms}
    ordered = sorted(study.arms, key=lambda arm: (bool(arm.shares), len(list(_chain(study, arm)))))
    return [[arm for arm in ordered if roots[arm.name] == name] for name in dict.fromkeys(roots.values())]


def _chain(study: StudyExperiment, arm: ArmConfig) -> Iterator[ArmConfig]:
    """Yields the arms whose pretraining led to the model of `arm`, in reverse order of training."""
    here: ArmConfig | None = study.trainer(arm)
    while here is not None:
        yield here
        here = study.arm(here.continues) if here.continues else None


def chain(study: StudyExperiment, arm: ArmConfig) -> list[ArmConfig]:
    """Returns the arms whose pretraining led to the model of `arm`, in the order in which they trained."""
    return list(_chain(study, arm))[::-1]


@dataclasses.dataclass(frozen=True)
class Checked:
    """A study, after all its experiments have been built and checked."""

    study: StudyExperiment
    pretraining: Mapping[str, PretrainingExperiment]
    """Name of an arm that pretrains -> its pretraining experiment, with the steps of the experiment file."""
    tasks: Mapping[str, Task]
    teachers: Mapping[str, ModelConfig]
    """Name of an arm that is pretrained with a teacher -> the configuration of the teacher."""
    inputs: Mapping[str, Mapping[str, str]]
    """Name of an arm that pretrains -> the hashes of its corpora and of the models that it reads, by name."""
    examples: Mapping[str, str]
    """Name of a task -> the hash of its examples."""


def check(study: StudyExperiment, say: Any = lambda text: None) -> Checked:
    """Builds every experiment of the study, and reads every corpus and task.

    This happens before anything is trained. If a run of the study would fail because of its settings or data, raises UserError
    now, with the arm or the task in the message."""
    pretraining: dict[str, PretrainingExperiment] = {}
    teachers: dict[str, ModelConfig] = {}
    words: dict[str, VocabularyInfo] = {}
    inputs: dict[str, dict[str, str]] = {}
    for arm in itertools.chain.from_iterable(families(study)):
        if not arm.shares:
            with _named(f"the arm {arm.name!r}"):
                pretraining[arm.name], vocabulary, inputs[arm.name] = _checked_pretraining(study, arm)
                words[arm.name] = vocabulary
                if teacher := load_teacher(pretraining[arm.name], vocabulary):
                    teachers[arm.name] = teacher.config
                if arm.continues and not same_vocabulary(vocabulary, words[arm.continues]):
                    raise UserError(
                        f"its corpus has a different vocabulary than {arm.continues!r}, which it continues; build it with the "
                        "same vocabulary: --vocab=CORPUS/tokenizer"
                    )
    tasks: dict[str, Task] = {}
    for task in study.tasks:
        with _named(f"the task {task.name!r}"):
            tasks[task.name] = load_task(task_config(finetuning_values(study, _plain(study), task, 0)), say)
            _check_metric(task, tasks[task.name])
    for arm, task in itertools.product(study.arms, study.tasks):
        for key, (ours, its) in contradictions(arm.finetune, merged(study.finetune, task.finetune)).items():
            say(f"the arm {arm.name!r} fine-tunes on {task.name!r} with its own {key}={ours}, not the task's {its}")
        with _named(f"the arm {arm.name!r} cannot do the task {task.name!r}"):
            model = pretraining[study.trainer(arm).name]
            values = finetuning_values(study, arm, task, study.seeds[0])
            check_tags(check_finetuning(values, model, tasks[task.name].head), tasks[task.name])
    examples = {name: examples_fingerprint(task) for name, task in tasks.items()}
    return Checked(study, pretraining, tasks, teachers, inputs, examples)


def _plain(study: StudyExperiment) -> ArmConfig:
    """Returns an arm that does not change the settings of any task."""
    return dataclasses.replace(study.arms[0], finetune={}, heads={})


def _checked_pretraining(
    study: StudyExperiment, arm: ArmConfig
) -> tuple[PretrainingExperiment, VocabularyInfo, dict[str, str]]:
    """Returns (the pretraining experiment of an arm, the vocabulary of its corpus, the hashes of what it reads)."""
    values = pretraining_values(study, arm)
    directory = values["corpus"]["directory"]
    if not is_url(directory) and not pathlib.Path(directory).is_dir():
        place = missing_path(directory)
        raise UserError(f"there is no corpus {place}; make it with `python -m bert_jax.corpus`, or name it in config.corpus")
    train, split = open_splits(local_corpus(directory))
    settled, _ = infer_settings(values, (), vocabulary_size=train.vocabulary.size)
    experiment = PretrainingExperiment.from_dict(settled)
    if values.get("init_from") and arm.continues:
        raise UserError(
            f"init_from={values['init_from']} and continues={arm.continues} both set the model to start from; give only one"
        )
    check_corpus(experiment, train, split)
    require_possible(experiment.model)
    experiment.trained_objective.abstract_parameters()
    piecewise(experiment.schedules())  # raises UserError for an unusable schedule
    inputs = {"corpus": fingerprint(train, split, *open_phase_corpora(experiment, train).values())}
    models = {"init_from": experiment.init_from, "teacher": experiment.teacher}
    inputs |= {name: weights_fingerprint(model) for name, model in models.items() if model}
    return experiment, train.vocabulary, inputs


def _check_metric(task: StudyTaskConfig, loaded: Task) -> None:
    """Raises UserError if the task does not have the score `metric` of the study. Either the split does not exist, or the
    baseline has no score with this name."""
    splits = [split for split in loaded.splits if split.startswith("dev")]
    split, slash, metric = task.metric.partition("/")
    if task.metric and (not slash or not metric or split not in splits):
        raise UserError(f"metric={task.metric!r} is not SPLIT/METRIC with a split of {', '.join(splits)}; correct it")
    names = loaded.baseline(split).scores if task.metric else ()
    if names and metric not in names:
        raise UserError(f"metric={task.metric!r}: {task.experiment} has no {metric!r}; {nearest(metric, names)}")


def check_finetuning(values: JsonObject, model: PretrainingExperiment, own: TaskHead) -> FinetuningExperiment:
    """Builds and returns the fine-tuning experiment `values` for the model of a pretraining experiment and the task's `own`
    head.

    Raises UserError if this model cannot do the task.
    """
    experiment = FinetuningExperiment.from_dict(with_new_parts({**values, "init_from": ANY_MODEL}, model, own))
    sweep = experiment.sweep
    for name, listed in (("batch_sizes", sweep.batch_sizes), ("learning_rates", sweep.learning_rates), ("epochs", sweep.epochs)):
        if len(listed) > 1:
            raise UserError(
                f"config.sweep.{name}={list(listed)} has several settings, but a study scores the mean over all runs; set "
                f"sweep.{name}=[{listed[0]}], or another single value, in the `finetune` of the arm, of the task or of the study"
            )
    _check_pooling(model.model, experiment.head_config(own))
    if experiment.task.length > model.model.max_position:
        raise UserError(
            f"config.task.length={experiment.task.length} is longer than the model's position table of "
            f"{counted(model.model.max_position, 'row')}; shorten it, or raise config.model.max_position"
        )
    config = experiment.model_config(model.model, "cpu")
    require_possible(config)
    learning_rate(experiment.training.schedule)  # raises UserError for an unusable schedule
    _abstract_parameters(config, experiment.head_config(own))
    check_objective(experiment, config, experiment.head_config(own))
    return experiment


def _check_pooling(model: ModelConfig, head: TaskHead) -> None:
    """Raises UserError if the head reads the [CLS] token and this token does not represent the text."""
    if not head.reads_pooler:
        return
    other = "" if "pooling" in head.settings else f"leave the task out: it has a {head.kind} head"
    if model.direction == "left_to_right":
        remedy = other or "set head.pooling=last_token"
        raise UserError(f"its [CLS] sees no text, since it reads from left to right; {remedy}")
    if not model.kind.pools:
        remedy = other or "set head.pooling=concat or head.lstm"
        raise UserError(f"the [CLS] of a {model.encoder} does not represent the text; {remedy}")


@functools.cache
def _abstract_parameters(config: ModelConfig, head: TaskHead) -> Any:
    """Returns the parameter shapes of a model with a head. Raises UserError if the head does not support the model."""
    return jax.eval_shape(lambda: initial_label_parameters(config, head, jax.random.key(0)))


def with_new_parts(values: JsonObject, model: PretrainingExperiment, own: TaskHead) -> JsonObject:
    """Returns `values`. If the head reads a pooler that pretraining does not train, the returned values add a pooler with
    random weights (`init_new`). If `classifier_pooling` is not "pooler", the pooler is initialised from layers of the MLM head,
    so it counts as trained if the MLM head has these layers."""
    experiment = FinetuningExperiment.from_dict({**values, "init_from": ANY_MODEL})
    head, config = experiment.head_config(own), experiment.model_config(model.model, "cpu")
    own_pooler = config.classifier_pooling == "pooler"
    has_one = model.next_sentence if own_pooler else config.mlm_head == "bert"
    if head.has_pooler(config) and not has_one and not values.get("init_random") and not values.get("init_new"):
        return {**values, "init_new": "pooler"}
    return values


@contextlib.contextmanager
def _named(subject: str) -> Iterator[None]:
    """If the context raises a UserError, or an error in a user's file, puts `subject` at the start of the message."""
    try:
        with python_files.file_errors_explained():
            yield
    except UserError as error:
        raise UserError(f"{subject}: {error}") from None
