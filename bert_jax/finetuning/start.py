"""Loads the model that fine-tuning starts from, adds the task's head, and loads the teacher of a distillation."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Collection

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import PyTree

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interface.named import by_content
from bert_jax.interop.huggingface import (
    Model,
    NewParts,
    import_model,
    part_names,
    read_model_config,
    with_classifier_layers,
    with_new_parts,
    without_parts,
)
from bert_jax.interop.huggingface_config import config_from_json
from bert_jax.interop.locate import find_model_directory
from bert_jax.interop.weights import weights_file
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads import INPUTS
from bert_jax.model.heads.bert_with_head import initial_label_parameters
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.pretraining import with_fixed_tables
from bert_jax.training.warm_start import load_start, trained_parts

log = logging.getLogger(__name__)


def with_pooling(
    experiment: FinetuningExperiment, own: TaskHead, given: Collection[str]
) -> tuple[FinetuningExperiment, str]:
    """Sets head.pooling=last_token if a sequence head would read the [CLS] of a left-to-right model. Returns the experiment and
    a note for the log, which is "" if nothing has changed.

    `own` is the task's head, and `given` has the keys that are set on the command line. The [CLS] of a left-to-right model sees
    no other token. UserError is therefore raised if these keys request [CLS], or if the task's head can only read [CLS]."""
    head = experiment.head_config(own)
    if not head.reads_pooler:
        return experiment, ""
    directory = find_model_directory(experiment.init_from)
    config = config_from_json(read_model_config(directory), str(directory))
    asked = experiment.head.pooling if experiment.head.pooling != "pooler" else config.classifier_pooling
    if config.direction == "both" or asked in ("mean", "late"):  # these poolings read every token of the text
        return experiment, ""
    unseen = f"{experiment.init_from} reads from left to right, so its [CLS] sees no text"
    if "pooling" not in head.settings:
        raise UserError(f"a {head.kind} head reads [CLS], but {unseen}; name a model trained with config.model.direction=both")
    if "head.pooling" in given:
        raise UserError(f"config.head.pooling={head.pooling} reads [CLS], but {unseen}; set config.head.pooling=last_token")
    changed = dataclasses.replace(experiment, head=dataclasses.replace(experiment.head, pooling="last_token"))
    return changed, f"config.head.pooling is last_token: {unseen}"


def labelled_start(experiment: FinetuningExperiment, own: TaskHead) -> Model:
    """Returns the model that a fine-tuning run starts from, without the weights that `with_own_head` draws for each seed.

    `own` is the task's head. Parts that the task does not use (pretraining heads, another task's head) are dropped with a log
    line. Raises UserError if the head needs a pooler and the model has none. Also raises it if `keep_head` is set and the model
    has a different head.
    """
    head = experiment.head_config(own)
    model = load_start(
        experiment.init_from,
        init_new=experiment.init_new,
        seed=experiment.seed,
        vocab_multiple=experiment.model.vocab_multiple,
    )
    for note in model.tokenizer.notes:
        log.info("%s: %s", model.source, note)
    model = _with_classifier_pooling(model, experiment, head)
    if experiment.keep_head and (model.head is None or not model.head.has_same_outputs(head)):
        has = f"a {model.head.subtree} with the labels {', '.join(model.head.labels)}" if model.head else "no head"
        raise UserError(
            f"config.keep_head keeps the head of {experiment.init_from}, which has {has}, but the task needs a {head.subtree} "
            f"with the labels {', '.join(head.labels) or 'none'}; leave keep_head out to start with a new head"
        )
    if experiment.keep_head and model.head is not None:
        asked = {name: (getattr(model.head, name), getattr(head, name)) for name in INPUTS}
        flags = [f"--config.head.{name}={there}" for name, (there, wanted) in asked.items() if there != wanted]
        if flags:
            raise UserError(
                f"config.keep_head keeps the head of {experiment.init_from}, but its input differs from config.head; give "
                f"{' '.join(flags)}"
            )
    if head.reads_pooler and not model.config.kind.pools:
        has_others = "pooling" in head.settings
        remedy = "set config.head.pooling=concat, or config.head.lstm" if has_others else "name a Transformer"
        raise UserError(
            f"config.init_from={experiment.init_from} is a {model.config.encoder} model, whose [CLS] does not represent the text"
            f"{'' if has_others else f' for a {head.kind} head'}; {remedy}"
        )
    pooler = ["pooler"] if head.has_pooler(model.config) else []
    return trained_parts(
        model,
        experiment.init_from,
        trained=[*pooler, *([head.subtree] if experiment.keep_head else [])],
        needed=[] if experiment.init_random else pooler,
        init_new=experiment.init_new,
        why_needed=f", which a {head.subtree} reads",
        why_unused="not used by the task",
    )


def _with_classifier_pooling(model: Model, experiment: FinetuningExperiment, head: TaskHead) -> Model:
    """Returns `model` with the experiment's `classifier_pooling`. If the layers before a classifier are missing, they are
    initialised from the MLM head."""
    asked = experiment.head.pooling
    if asked not in ("pooler", "concat", "last_token", model.config.classifier_pooling):
        if "pooler" in model.params:
            log.info("config.head.pooling=%s: the pooler of %s is dropped", asked, model.source)
        changed = dataclasses.replace(model.config, classifier_pooling=asked)
        model = dataclasses.replace(without_parts(model, ("pooler",)), config=changed)
    begun = with_classifier_layers(model, head)
    if begun is not model:
        log.info("the layers before the classifier are initialised from the MLM head")
    return begun


def weights_fingerprint(name: str) -> str:
    """Returns the SHA-256 of the weight files of the model `name` (a directory, a workdir or a hub name)."""
    directory = find_model_directory(name)
    digest = hashlib.sha256()
    for path in (weights_file(directory), *sorted(directory.glob("*-of-*"))):  # one file, or an index and its shards
        if path is not None:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def config_fingerprint(name: str) -> str:
    """Returns a hash of the settings in the config.json of the model `name`."""
    directory = find_model_directory(name)
    config = config_from_json(read_model_config(directory), str(directory))
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    values |= {name: by_content(x, f"config.model.{name}") for name, x in values.items() if isinstance(x, str)}
    return hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()


def tokenizer_fingerprint(name: str) -> str:
    """Returns a hash of the vocabulary of the model `name` and of its text rules, such as lower-casing."""
    vocabulary = load_tokenizer(find_model_directory(name)).vocabulary.to_json()
    return hashlib.sha256(json.dumps(vocabulary, sort_keys=True).encode()).hexdigest()


def with_own_head(start: Model, config: ModelConfig, head: TaskHead, experiment: FinetuningExperiment) -> Model:
    """Adds a new task head to `start`, with random weights drawn from the seed. The parts in `init_new` are drawn again, since
    the runs of a sweep have different seeds. With `init_random`, all weights are random. With `keep_head`, the head of `start`
    is kept."""
    if experiment.init_random:
        fresh = jax.jit(functools.partial(initial_label_parameters, config, head))(jax.random.key(experiment.seed))
        params: dict[str, PyTree[np.ndarray]] = with_fixed_tables(jax.tree.map(np.asarray, nn.unbox(fresh)), start.params)
        return dataclasses.replace(start, params=params, head=head)
    if again := [part for part in part_names(experiment.init_new) if part in start.untrained]:
        own = start.head if start.head and start.head.subtree in again else None
        start = with_new_parts(without_parts(start, again), NewParts(again, own, experiment.seed))
    return start if experiment.keep_head else with_new_parts(start, NewParts((head.subtree,), head, experiment.seed))


def load_teacher(experiment: FinetuningExperiment, student: Model, head: TaskHead) -> Model | None:
    """Loads the teacher of a distillation. Returns None if no teacher is set.

    Raises UserError if a head has a CRF, if teacher and student differ in task or vocabulary, or if the teacher reads fewer
    tokens than `config.task.length`. Also raises UserError like `check_widths`."""
    name = experiment.distillation.teacher
    if not name:
        return None
    from bert_jax.training.teachers import require_length, require_same_vocabulary

    teacher = import_model(name, vocab_multiple=experiment.model.vocab_multiple)
    if teacher.head is None or not teacher.head.has_same_outputs(head):
        raise UserError(f"config.distillation.teacher={name} has no head for this task; fine-tune it on the same task first")
    if head.has_crf or teacher.head.has_crf:
        raise UserError(
            f"config.distillation compares the logits of single words, but {'the student' if head.has_crf else name} has a CRF, "
            "which predicts the words of a text jointly; distil heads with crf=none"
        )
    named, length = f"config.distillation.teacher={name}", experiment.task.length
    own, remedy = student.tokenizer.vocabulary, "use a teacher with the same vocabulary"
    require_same_vocabulary(named, teacher, own, experiment.init_from, remedy)
    require_length(named, teacher.config, length, f"config.task.length={length}", "lower task.length")
    check_widths(experiment, teacher.config, student.config)
    return teacher


def check_widths(experiment: FinetuningExperiment, teacher: ModelConfig, student: ModelConfig) -> None:
    """Raises UserError if the loss compares hidden states, and one of the two models has no layers, or their hidden sizes
    differ."""
    if not experiment.distillation.hidden_weight:
        return
    if not student.num_layers:
        raise UserError(
            f"config.distillation.hidden_weight compares the hidden states of layers, but the student is a {student.encoder} "
            "model without layers; set hidden_weight to 0"
        )
    if not teacher.num_layers:
        raise UserError(
            "config.distillation.hidden_weight compares the hidden states of layers, but the teacher is a "
            f"{teacher.encoder} model without layers; set hidden_weight to 0"
        )
    if teacher.hidden_size != student.hidden_size:
        raise UserError(
            f"config.distillation.hidden_weight compares hidden states, but the teacher is {teacher.hidden_size} wide and the "
            f"student {student.hidden_size}; set hidden_weight to 0"
        )


