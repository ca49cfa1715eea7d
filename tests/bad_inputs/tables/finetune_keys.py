"""Bad inputs of `finetune`: the keys of its configuration."""

from __future__ import annotations

from tests.bad_inputs.case import Case, Table
from tests.bad_inputs.places import FINETUNE, LINES, TRAIN, train

CASES = [
    # ------------------------------------------------------------------------------------------------------------- the keys
    Case(
        "a text longer than the position table",
        "--config.task.length=65",
        "config.task.length=65 is longer than the position table of ... shorten it, or extend the table with `python -m",
    ),
    Case(
        "a task that is none", "--config.task.name=glue/sst", "config.task.name='glue/sst' is no task; did you mean 'glue/sst2'?"
    ),
    Case(
        "a key that is none",
        "--config.training.learning_rat=1",
        "--config.training.learning_rat=1: there is no 'learning_rat' in config.training; did you mean 'training.learning_rate'?",
    ),
    Case(
        "an empty model",
        "--config.init_from=",
        "config.init_from is empty; name the model to fine-tune (directory, workdir or hub name)",
    ),
    Case(
        "the head of a model that has none",
        "--config.keep_head=true",
        "config.keep_head keeps the head of $model, but that has no head, ... leave keep_head out to start a new head",
    ),
    Case(
        "an LSTM on a head for choices",
        f"{LINES} --config.task.own.dev=train.jsonl --config.task.name=own/choice --config.head.lstm=8",
        "head.lstm=8 is for a sequence, span or token head, not for a choice head; leave it out",
        files={"train.jsonl": '{"prompt": "it", "choices": ["was", "is"], "label": 1}\n'},
    ),
    Case(
        "a CRF on a head for texts",
        "--config.head.crf=free",
        "head.crf='free' is for a token head, not for a sequence head; leave it out",
    ),
    Case("a CRF that is none", "--config.head.crf=yes", "config.head.crf='yes' is not one of none, free, iob2"),
    Case(
        "constraints of a scheme that the tags are not in",
        f"{LINES} --config.task.own.dev=train.jsonl --config.task.name=own/token --config.head.crf=iob2",
        "head.crf='iob2' is for labels O, B-X and I-X, and 'E-A' is none; set head.crf='free', or config.task.scheme='IOB2'",
        files={"train.jsonl": '{"words": ["it", "was"], "labels": ["O", "E-A"]}\n'},
    ),
    Case(
        "transitions that do not learn",
        "--config.training.crf_multiplier=0",
        "config.training.crf_multiplier=0.0 must be above 0 and at most 1e+06",
    ),
    Case("a negative LSTM", "--config.head.lstm=-1", "config.head.lstm=-1 must be at least 0"),
    Case(
        "weights for other labels",
        "--config.training.class_weights='[1, 2, 3]'",
        "config.training.class_weights has 3 numbers, but own/sequence has ... give one for each, or a single 0 to balance them",
    ),
    Case(
        "negative weights",
        "--config.training.class_weights='[-1, 2]'",
        "config.training.class_weights.0=-1.0 must be at least 0 and at most 1e+06",
    ),
    Case(
        "weights for a number",
        f"{TRAIN} --config.task.own.problem=regression --config.task.own.dev=train.csv --config.training.class_weights='[1, 2]'",
        "config.training.class_weights is for tasks that choose one of several labels, and own/sequence is none",
        files=train("text,label\nit was fine,4.5\nit was bad,1\n"),
    ),
    Case(
        "smoothing of a number",
        f"{TRAIN} --config.task.own.problem=regression --config.task.own.dev=train.csv --config.training.label_smoothing=0.1",
        "config.training.label_smoothing is for classification, and own/sequence is a regression; set it to 0",
        files=train("text,label\nit was fine,4.5\nit was bad,1\n"),
    ),
    Case(
        "layers frozen and thawed",
        "--config.training.freeze_encoder=true --config.training.gradual_unfreezing=true",
        "config.training.freeze_encoder and gradual_unfreezing contradict each other; choose one",
    ),
    Case(
        "a run twice in a sweep",
        "--config.sweep.seeds='[1, 1]'",
        "config.sweep contains the run batch-16_rate-3e-05_epochs-1_seed-1 twice; remove the repeated value",
    ),
    Case(
        "a sweep on devices that do not divide",
        "--config.sweep.seeds='[1, 2]' --config.sweep.devices_per_run=3",
        "config.sweep.devices_per_run=3 does not divide the 8 ... choose a divisor, or 0 for one run after another on all",
        devices=8,
    ),
    Case(
        "a teacher that is not there",
        "--config.distillation.teacher=no_such_model",
        "there is no no_such_model ... name a directory that holds config.json and model.safetensors, a",
    ),
    Case(
        "a distillation without a teacher",
        "--config.distillation.temperature=3",
        "config.distillation has settings but no teacher; name one in config.distillation.teacher",
    ),
    Case(
        "a temperature of nothing",
        "--config.distillation.teacher=$classifier --config.distillation.temperature=0",
        "config.distillation.temperature=0.0 must be at least 0.01 and at most 1,000",
    ),
    Case(
        "a share beyond 1",
        "--config.distillation.teacher=$classifier --config.distillation.soft_weight=1.5",
        "config.distillation.soft_weight=1.5 must be at least 0 and at most 1",
    ),
    Case(
        "a teacher of another task",
        "--config.distillation.teacher=$tagger",
        "config.distillation.teacher=$tagger has no head for this task; fine-tune it on the same task first",
    ),
    Case("a learning rate of nothing", "--config.training.learning_rate=0", "config.training.learning_rate=0.0 must be above 0"),
    Case(
        "a warmup of more than everything",
        "--config.training.warmup_fraction=1.5",
        "config.training.warmup_fraction=1.5 must be at least 0 and at most 1",
    ),
    Case(
        "more smoothing than there is",
        "--config.training.label_smoothing=1.5",
        "config.training.label_smoothing=1.5 must be at least 0 and below 1",
    ),
    Case(
        "a layer decay above 1",
        "--config.training.layer_decay=1.1",
        "config.training.layer_decay=1.1 must be at least 0 and at most 1",
    ),
    Case("no epochs", "--config.training.epochs=0", "config.training.epochs=0 must be at least 1"),
    Case("a batch of nothing", "--config.training.batch_size=0", "config.training.batch_size=0 must be at least 1"),
    Case("no microbatches", "--config.training.accumulation=0", "config.training.accumulation=0 must be at least 1"),
    Case(
        "an unknown schedule",
        "--config.training.schedule=cosine",
        "config.training.schedule='cosine' is not one of original, linear, slanted_triangular, constant",
    ),
    Case(
        "an unknown selection",
        "--config.selection.select=newest",
        "config.selection.select='newest' is not one of best, last; did you mean 'best'?",
    ),
    Case("a checkpoint kept of a task", "--config.checkpoints.keep_at=[4]", "config.checkpoints.keep_at is for pretraining"),
    Case(
        "patience for the last weights",
        "--config.selection.patience=2 --config.selection.select=last",
        "config.selection.patience=2 waits for a better evaluation; set selection.select=best",
    ),
    Case("negative patience", "--config.selection.patience=-1", "config.selection.patience=-1 must be at least 0"),
    Case("no evaluation in an epoch", "--config.selection.per_epoch=0", "config.selection.per_epoch=0 must be at least 1"),
    Case(
        "random weights and a kept head",
        "--config.init_random=true --config.keep_head=true",
        "config.init_random starts from random weights, without keep_head and init_new; leave them out",
    ),
    Case(
        "a decay for pretraining",
        "--config.optimizer.decay_power=2.0",
        "config.optimizer.decay_power, end_learning_rate, schedule and layer_decay are for pretraining; set training.schedule",
    ),
    Case("texts too short for anything", "--config.task.length=4", "config.task.length=4 must be at least 8"),
    Case("a negative number of training rows", "--config.task.train_rows=-1", "config.task.train_rows=-1 must be at least 0"),
    Case("a context that is none", "--config.task.context=page", "config.task.context='page' is not one of sentence, document"),
    Case(
        "a scheme that is none",
        "--config.task.scheme=IOB3",
        "config.task.scheme='IOB3' is not one of nothing, IOB1, IOB2, IOE1, IOE2, BIOES; did you mean",
    ),
    Case(
        "a pooling that is none",
        "--config.head.pooling=max",
        "config.head.pooling='max' is not one of pooler, concat",
    ),
    Case(
        "layers that are none",
        "--config.head.layers=first",
        "config.head.layers='first' is not one of last, second_to_last, embeddings, last_four_sum,",
    ),
    Case(
        "four layers of a model with one",
        "--config.head.layers=last_four_sum",
        "head.layers='last_four_sum' needs 4 layers, and the model has 1; choose another",
    ),
    Case(
        "a dropout of everything in the head",
        "--config.head.dropout=1.0",
        "config.head.dropout=1.0 must be at least 0 and below 1",
    ),
    Case(
        "a sweep of no batch",
        "--config.sweep.batch_sizes='[0]'",
        "config.sweep.batch_sizes.0=0 must be at least 1 and at most 1,048,576",
    ),
    Case(
        "a sweep that is no list",
        "--config.sweep.learning_rates=fast",
        "--config.sweep.learning_rates=fast: wanted a list as [1, 2], above 0 and at most 1e+30 (now ())",
    ),
    Case(
        "a learning rate that is not a number",
        "--config.training.learning_rate=nan",
        "config.training.learning_rate=nan must be a finite number, above 0 and at most 1e+30",
    ),
]


TABLE = Table("finetune", FINETUNE, CASES)
