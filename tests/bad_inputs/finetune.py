"""Bad inputs of `finetune`."""

from __future__ import annotations

import os

from tests.bad_inputs.case import Case, Table
from tests.bad_inputs.damage import (
    add_file,
    add_line,
    cut,
    extra_tensors,
    keys,
    link,
    not_finite,
    remove,
    replace,
    without_last_column,
)
from tests.bad_inputs.places import FINETUNE, GOOD, LINES, OFFICIAL_DATA, TRAIN, train
from tests.compressed import zstd

TREE = "1\tthe\t_\tDET\t_\t_\t0\troot\t_\t_\n"


def in_lines(name: str, says: str, text: str, flags: str = "") -> Case:
    """Returns a case with a training file of JSON lines."""
    return Case(name, f"{LINES} {flags}", says, files={"train.jsonl": text})


CASES = [
    # ---------------------------------------------------------------------------------------------------- the command line
    Case(
        "no experiment", says="--config is missing, for example --config=experiments/pretrain/quickstart.py", without="--config"
    ),
    Case("no workdir", says="--workdir is missing, for example --workdir=runs/mine", without="--workdir"),
    Case("a profile that is not a range", "--profile=3:3", "--profile=3:3 must be FIRST:LAST, two whole numbers"),
    Case(
        "a profile of steps after the last",
        "--profile=10:9000",
        "--profile=10:9000 ends after the last step of this run, ... name earlier steps",
    ),
    Case("an unknown flag", "--wordir=x", "unknown argument --wordir=x: did you mean '--workdir'?"),
    Case(
        "no model",
        says="config.init_from is empty; name the model to fine-tune (directory, workdir or hub name)",
        without="--config.init_from",
    ),
    Case(
        "an argument that its experiment has no use for",
        "--config=$repository/experiments/finetune/squad.py:v3",
        "config.task.name='squad/v3' is not a task; did you mean 'squad/v2.0'?",
    ),
    Case(
        "a glue task that is none, reported before the model is looked for",
        "--config=$repository/experiments/finetune/glue.py:mrcp --config.init_from=no_such_model",
        "config.task.name='glue/mrcp' is not a task; did you mean 'glue/mrpc'?",
    ),
    # -------------------------------------------------------------------------------------------------- the initial model
    Case(
        "a model that does not exist, reported before the data is read",
        "--config.init_from=no_such_model --config.task.own.train=nowhere.csv",
        "there is no no_such_model ... name a directory that holds config.json and model.safetensors, a",
    ),
    Case(
        "a model without weights",
        "--config.init_from=model",
        "model is not a model directory, because it has no model.safetensors",
        copies="model",
        spoil=remove("model/model.safetensors"),
    ),
    Case(
        "a model whose weights are cut short",
        "--config.init_from=model",
        "model/model.safetensors (24,864 bytes) is damaged or incomplete (Error while ... copy or export the model again",
        copies="model",
        spoil=cut("model/model.safetensors", 100),
    ),
    Case(
        "a model with tensors of another class",
        "--config.init_from=model",
        "not part of this model: mine.bias, mine.weight; to leave them out, use `convert --drop='mine.*'`",
        copies="model",
        spoil=extra_tensors("model", "mine.bias", "mine.weight"),
    ),
    Case(
        "a model whose configuration is damaged",
        "--config.init_from=model",
        "model/config.json cannot be read as JSON (Unterminated string starting at: line 24 column ... copy the model again",
        copies="model",
        spoil=cut("model/config.json", 20),
    ),
    Case(
        "a model without a pooler",
        "--config.init_from=$tagger",
        "config.init_from=$tagger has no pooler, which a ... to start it from random weights, give --config.init_new=pooler",
    ),
    Case(
        "a kept head with other labels",
        "--config.init_from=model --config.keep_head=true",
        "config.keep_head keeps the head of model, which has a ... leave keep_head out to start with a new head",
        copies="model=classifier",
        spoil=keys("model/config.json", id2label={"0": "no", "1": "yes"}, label2id=None),
    ),
    Case(
        "a checkpoint of the original",
        "--config.init_from=$tf1",
        "$tf1 is a TensorFlow checkpoint; convert it first: python -m bert_jax.convert --from=$tf1 --to=DIR",
    ),
    Case(
        "a workdir without a model yet",
        "--config.init_from=other",
        "other is a workdir that has no exported model yet; to complete the run, repeat the command that started",
        files={"other/config.json": "{}", "other/checkpoints/0": ""},
    ),
    # ------------------------------------------------------------------------------------------------------- an existing run
    Case(
        "another configuration",
        "--workdir=run --config.training.label_smoothing=0.1 --config.seed=4",
        "--workdir=run holds a run with a different configuration: ... name another --workdir for the new configuration",
        copies="run",
    ),
    Case(
        "changed data under the same name",
        f"--workdir=run {TRAIN}",
        "--workdir=run holds a run with a different configuration: ... name another --workdir for the new configuration",
        copies="run train.csv=train",
        spoil=replace("train.csv", "poor", "good"),
    ),
    Case(
        "another model under the same name",
        "--workdir=run --config.init_from=$classifier",
        "--workdir=run holds a run with a different configuration: ... name another --workdir for the new configuration",
        copies="run",
    ),
    Case(
        "a workdir whose checkpoints could not be read",
        "--workdir=lr[1e-4]",
        "--workdir=lr[1e-4] contains",
    ),
    Case(
        "a workdir that is a link to nothing",
        "--workdir=link",
        "--workdir=link cannot be written (a link to gone, which does not exist); name a directory that you may write to",
        spoil=link("link", "gone"),
    ),
    Case(
        "a link to nothing among the files of a pattern",
        "--config.task.own.train=t*.csv",
        "t2.csv (a link to gone, which does not exist) cannot be read; restore its target, or remove the link",
        files={"t1.csv": GOOD},
        spoil=link("t2.csv", "gone"),
    ),
    Case(
        "checkpoints that are a file",
        "--workdir=run",
        "run/checkpoints is not a directory, so checkpoints cannot be saved in it; move it away",
        copies="run",
        spoil=[remove("run/checkpoints"), remove("run/results.json"), add_file("run/checkpoints")],
        leaves="run/*",
    ),
    Case(
        "a workdir of other files",
        "--workdir=.",
        "--workdir=. holds files that are not from a run (thesis.txt); name a new or empty directory",
        files={"thesis.txt": "years of work"},
    ),
    Case(
        "a workdir whose configuration is damaged",
        "--workdir=run",
        "run/config.json cannot be read as JSON (Unterminated string starting ... name another --workdir, or remove this one",
        copies="run",
        spoil=cut("run/config.json", 20),
    ),
    Case(
        "a model with a weight that is not a number",
        "--config.init_from=model",
        "model/model.safetensors cannot be used because of NaN or infinity in ... use an earlier state of the model, or copy",
        copies="model",
        spoil=not_finite("model"),
    ),
    # ------------------------------------------------------------------------------------------------------------- the keys
    Case(
        "a text longer than the position table",
        "--config.task.length=65",
        "config.task.length=65 is longer than the position table of ... shorten the texts, or extend the table with `python -m",
    ),
    Case(
        "a task that is none",
        "--config.task.name=glue/sst",
        "config.task.name='glue/sst' is not a task; did you mean 'glue/sst2'?",
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
        "config.keep_head keeps the head of $model, which has no head, ... leave keep_head out to start with a new head",
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
        "head.crf='iob2' requires labels O, B-X and I-X, not 'E-A'; set head.crf='free', or config.task.scheme='IOB2'",
        files={"train.jsonl": '{"words": ["it", "was"], "labels": ["O", "E-A"]}\n'},
    ),
    Case(
        "constraints of a scheme in which these tags are invalid",
        f"{LINES} --config.task.own.dev=train.jsonl --config.task.name=own/token --config.head.crf=iob2",
        "config.head.crf=iob2 predicts I-X only after B-X or I-X, but own/token, train, has 2 words with I-X ... (the first is "
        "'oslo', I-A); set config.task.scheme=IOB2",
        files={"train.jsonl": '{"words": ["in", "oslo", "rome", "bob"], "labels": ["O", "I-A", "B-A", "I-B"]}\n'},
    ),
    Case(
        "transitions that do not learn",
        "--config.training.crf_multiplier=0",
        "config.training.crf_multiplier=0.0 must be above 0 and at most 1e+06",
    ),
    Case("a negative LSTM", "--config.head.lstm=-1", "config.head.lstm=-1 must be at least 0"),
    Case(
        "weights for other labels, reported before the model is loaded",
        "--config.training.class_weights='[1, 2, 3]' --config.init_from=$tagger",
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
        "config.training.class_weights is for tasks that choose one of several labels, but own/sequence does not; "
        "leave it out",
        files=train("text,label\nit was fine,4.5\nit was bad,1\n"),
    ),
    Case(
        "smoothing of a number",
        f"{TRAIN} --config.task.own.problem=regression --config.task.own.dev=train.csv --config.training.label_smoothing=0.1",
        "config.training.label_smoothing is for classification, but own/sequence is a regression; set it to 0",
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
        "a teacher that is not there, reported before the data is read",
        "--config.distillation.teacher=no_such_model --config.task.own.train=nowhere.csv",
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
    Case(
        "cross-view training without a text",
        "--config.cross_view.batch_size=8",
        "config.cross_view has settings but no text; name a corpus in config.cross_view.corpus",
    ),
    in_lines(
        "cross-view training on a Transformer",
        "config.cross_view needs two independent LSTM directions, which a Transformer does not have; start from a biLM, or "
        "from static vectors with config.head.lstm",
        '{"words": ["it", "was"], "labels": ["a", "b"]}\n',
        "--config.task.own.dev=train.jsonl --config.task.name=own/token --config.cross_view.corpus=$corpus",
    ),
    Case(
        "cross-view training of a classifier",
        "--config.cross_view.corpus=$corpus",
        "config.cross_view is for tagging, not for a sequence head; leave it out",
    ),
    Case(
        "cross-view training with a teacher",
        "--config.cross_view.corpus=$corpus --config.distillation.teacher=$classifier",
        "config.cross_view learns from the model itself, but config.distillation learns from another model; leave one of them",
    ),
    Case(
        "cross-view training on no corpus",
        "--config.cross_view.corpus=no_such_corpus",
        "corpus no_such_corpus ... does not exist; build a corpus with python -m bert_jax.corpus --output=no_such_corpus",
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
        "--config.training.schedule=cosinus",
        "config.training.schedule='cosinus' is not one of original, linear, slanted_triangular, constant",
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
        "config.selection.patience=2 requires selection.select=best; set it to best",
    ),
    Case("negative patience", "--config.selection.patience=-1", "config.selection.patience=-1 must be at least 0"),
    Case("no evaluation in an epoch", "--config.selection.per_epoch=0", "config.selection.per_epoch=0 must be at least 1"),
    Case(
        "random weights and a kept head",
        "--config.init_random=true --config.keep_head=true",
        "config.init_random starts from random weights, so keep_head and init_new have no effect; leave the two out",
    ),
    Case(
        "a decay for pretraining",
        "--config.optimizer.decay_power=2.0",
        "config.optimizer.decay_power, end_learning_rate, schedule, layer_decay and decouple_rate are only for pretraining; ",
    ),
    Case("texts too short for anything", "--config.task.length=4", "config.task.length=4 must be at least 8"),
    Case("a negative number of training rows", "--config.task.train_rows=-1", "config.task.train_rows=-1 must be at least 0"),
    Case("a context that is none", "--config.task.context=page", "config.task.context='page' is not one of sentence, document"),
    Case(
        "a scheme that is none",
        "--config.task.scheme=IOB3",
        "config.task.scheme='IOB3' is not one of nothing, IOB1, IOB2, IOE1, IOE2, BIOES; did you mean",
    ),
    Case("a pooling that is none", "--config.head.pooling=max", "config.head.pooling='max' is not one of pooler, concat"),
    Case(
        "layers that are none",
        "--config.head.layers=first",
        "config.head.layers='first' is not one of last, second_to_last, embeddings, last_four_sum,",
    ),
    Case(
        "four layers of a model with one",
        "--config.head.layers=last_four_sum",
        "head.layers='last_four_sum' needs 4 layers, but the model has 1; choose another",
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
        "a sweep that is not a list",
        "--config.sweep.learning_rates=fast",
        "--config.sweep.learning_rates=fast: wanted a list as [1, 2], above 0 and at most 1e+30 (now ())",
    ),
    Case(
        "a learning rate that is not a number",
        "--config.training.learning_rate=nan",
        "config.training.learning_rate=nan must be a finite number, above 0 and at most 1e+30",
    ),
    # --------------------------------------------------------------------------------------------------------- one's own data
    Case(
        "a file in a mistyped bucket",
        "--config.task.own.train=gs:/bucket/train.csv",
        "config.task.own.train=gs:/bucket/train.csv: a path in a bucket starts with gs://; did you mean gs://bucket/train.csv?",
    ),
    Case(
        "data at the home of nobody",
        "--config.task.own.train=~no.body/train.csv",
        "config.task.own.train=~no.body/train.csv: there is no user 'no.body', so ~ cannot be expanded",
    ),
    Case(
        "no such column",
        TRAIN,
        "train.csv, line 1: there is no column 'label'; did you mean 'lable'? (task.own.label)",
        files=train("text,lable\nit was fine,good\n"),
    ),
    Case(
        "a table without column names",
        TRAIN,
        "train.csv, line 1: there is no column 'text'; known: good, it was fine (task.own.text, or columns if the first row is",
        files=train("it was fine,good\nit was bad,poor\n"),
    ),
    Case(
        "a comment above the column names",
        TRAIN,
        "train.csv, line 2: the row has 2 columns, but there is only one column name (# by Ada); the first line must name the",
        files=train(f"# by Ada\n{GOOD}"),
    ),
    Case(
        "columns without a name",
        TRAIN,
        "train.csv, line 1: there is no column 'label'; known: '', text (task.own.label, or columns if the first row is",
        files=train(",text,\n0,it was fine,good\n"),
    ),
    Case(
        "a label of invisible characters",
        TRAIN,
        "train.csv, line 4: label is '\\u200b', not a text; correct the row, or remove it",
        files=train(f"{GOOD}it was odd,\u200b\n"),
    ),
    Case(
        "cells in single quotes",
        TRAIN,
        "train.csv, line 2: the row has 3 columns, but there are 2 column names (text, label); enclose cells in double quotes,",
        files=train("text,label\n'it was fine, so',good\n"),
    ),
    Case(
        "labels in single quotes",
        TRAIN,
        "train.csv, line 2: label is 'good', and the single quotes are part of the label; enclose cells in "
        "double quotes, not in single ones, or",
        files=train("text,label\nit was fine,'good'\nit was bad,'poor'\n"),
    ),
    Case(
        "a table named as Parquet",
        "--config.task.own.train=train.parquet",
        "train.parquet is text, not Parquet; give it a name with the ending of its format, such as .csv",
        files={"train.parquet": GOOD},
    ),
    in_lines(
        "a text inside an object",
        'train.jsonl, line 1: text is {"en": "it was fine"}, not a text; write each part to a field of its own',
        '{"text": {"en": "it was fine"}, "label": "good"}\n',
    ),
    in_lines(
        "questions in the format of MRQA",
        "train.jsonl, line 1: there is no field 'question', but a list of questions about one context, as in MRQA; give one "
        "question per line (jq -c 'select(.qas) | {context} + .qas[]' train.jsonl)",
        '{"header": {}}\n{"context": "it was fine", "qas": [{"qid": "1", "question": "how", "answers": ["fine"]}]}\n',
        "--config.task.name=own/span",
    ),
    in_lines(
        "the text of a choice as its label",
        "train.jsonl, line 1: label is 'fine', not one of 0, 1 (first_choice=0); write the index of the choice (0) instead of",
        '{"prompt": "it was", "choices": ["fine", "bad"], "label": "fine"}\n',
        "--config.task.name=own/choice",
    ),
    Case(
        "a treebank under another name",
        "--config.task.own.train=train.conll --config.task.name=own/token",
        "train.conll: the first column has word numbers, not words; if it is CoNLL-U, give it a name that ends in .conllu, or",
        files={"train.conll": f"{TREE}2\tfilm\t_\tNOUN\t_\t_\t1\tdep\t_\t_\n\n{TREE}"},
    ),
    Case(
        "words that are not in the order of their sentences",
        f"{TRAIN} --config.task.name=own/token --config.task.own.sentence=n",
        "train.csv: each of the 3 sentences has only one word if the column 'n' has the sentence of each row; sort the rows by",
        files=train("n,words,labels\n0,it,O\n1,so,O\n0,was,O\n"),
    ),
    Case(
        "a label that training has not",
        f"{TRAIN} --config.task.own.dev=dev.csv",
        "dev.csv, line 4: the label 'strange' is not known; known: good, poor. Correct the label, or add it to label_names",
        files={"train.csv": GOOD, "dev.csv": f"{GOOD}it was odd,strange\n"},
    ),
    Case(
        "a label outside those named",
        f"{TRAIN} --config.task.own.label_names=\"['good', 'bad']\"",
        "train.csv, line 3: the label 'poor' is not known; known: good, bad. Correct the label, or add it to label_names",
        files=train(GOOD),
    ),
    Case(
        "a list with a single word without quotes",
        "--config.task.own.label_names=[pos]",
        "task.own.label_names=[pos] has only one label, so ... name two or more labels as [a,b], or leave label_names empty to",
    ),
    Case(
        "one label only",
        f"{TRAIN} --config.task.own.dev=",
        "every example of train.csv has the label 'good'; give examples with two or more",
        files=train("text,label\nit was fine,good\nso it was,good\n"),
    ),
    Case(
        "quotes that do not match",
        TRAIN,
        "train.csv, line 4: the quotes in this row are not balanced (unexpected end of data); double every quote inside quotes",
        files=train(f'{GOOD}"it was ""fine,good\nit was bad,poor\n'),
    ),
    Case(
        "a row that is too short",
        TRAIN,
        "train.csv, line 4: the row has 1 column, but there are 2 column names (text, label); correct the line, or remove it",
        files=train(f"{GOOD}it was fine\n"),
    ),
    Case(
        "a row that is too long",
        TRAIN,
        "train.csv, line 4: the row has 3 columns, but there are 2 column names (text, label); correct the line, or remove it",
        files=train(f"{GOOD}it was fine,good,better\n"),
    ),
    Case(
        "a text that is empty",
        TRAIN,
        'train.csv, line 5: text is " ", not a text; correct the row, or remove it',
        files=train(f"{GOOD}\n ,good\n"),
    ),
    Case(
        "a label that pandas wrote for none",
        TRAIN,
        "train.csv, line 4: label is 'nan', which usually marks a missing value; fill in a value, or remove the row",
        files=train(f"{GOOD}it was,nan\n"),
    ),
    Case(
        "a label that is empty",
        TRAIN,
        'train.csv, line 4: label is "", not a text; correct the row, or remove it',
        files=train(f"{GOOD}it was,\n"),
    ),
    Case(
        "semicolons in a table of commas",
        TRAIN,
        "train.csv, line 1: the only column is 'text;label'; set delimiter=';'",
        files=train(GOOD.replace(",", ";")),
    ),
    Case(
        "quotes in a table of TABs",
        "--config.task.own.train=train.tsv",
        'train.tsv, line 2: "it was ""fine""" is in double quotes; set quotes=true if ... or quotes=false if they are part of',
        files={"train.tsv": 'text\tlabel\n"it was ""fine"""\tgood\nit was bad\tpoor\n'},
    ),
    Case(
        "several labels in columns of their own",
        f"{TRAIN} --config.task.own.problem=multi_label",
        "train.csv, line 1: there is no column 'label' with lists of labels; set label_names=[good,poor] to read columns of",
        files=train("text,good,poor\nit was fine,1,0\nit was bad,0,1\n"),
    ),
    Case(
        "several labels with commas",
        f"{TRAIN} --config.task.own.problem=multi_label",
        "train.csv, line 2: label is \"good,long\"; set separator=',' if this sign separates the items, or list the items as",
        files=train('text,label\nit was fine,"good,long"\nit was bad,poor\n'),
    ),
    Case(
        "words in rows of their own",
        f"{TRAIN} --config.task.name=own/token",
        "train.csv: each of the 2 sentences has only one word; if a column has the sentence of each row, set "
        "sentence=COLUMN; ... end each sentence with an empty line",
        files=train("words,labels\nit,O\nada,B-PER\n"),
    ),
    Case(
        "words in columns under a row of names",
        "--config.task.own.train=train.conll --config.task.name=own/token",
        "train.conll, line 1: the line has column names (word) instead of a word and its tag; remove the line",
        files={"train.conll": "word tag\nit O\n\nada B-PER\n"},
    ),
    Case(
        "choices in a text",
        f"{TRAIN} --config.task.name=own/choice",
        'train.csv, line 2: choices is "it was", not a list like ["a", "b"]; set separator to the text between the choices',
        files=train("prompt,choices,label\nso,it was,0\n"),
    ),
    Case(
        "half a Parquet file",
        "--config.task.own.train=train.parquet",
        "train.parquet is not a whole Parquet file (Parquet magic bytes not found in footer); fetch it again",
        files={"train.parquet": b"PAR1\x15\x04" + b"abcd" * 20},
    ),
    Case(
        "a Parquet file with the name of a table",
        TRAIN,
        "train.csv is a Parquet file, not text; give it a name that ends in .parquet",
        files=train(b"PAR1\x15\x04" + b"abcd" * 20),
    ),
    Case("no rows", TRAIN, "train.csv has no rows; give a file with one example per row", files=train("text,label\n")),
    Case("nothing at all", TRAIN, "train.csv is empty; fetch it again, or give another file", files=train("")),
    Case(
        "no such file",
        TRAIN,
        "train.csv (looked for in $here) cannot be read: No such file or directory; give the path of a text",
    ),
    Case(
        "a saved data set with several training splits",
        "--config.task.own.train=data",
        "data has 2 train splits (train_r1, train_r2); give the directory of one, such as data/train_r1",
        files={"data/dataset_dict.json": '{"splits": ["train_r1", "dev_r1", "train_r2"]}'},
    ),
    Case(
        "a directory for a table",
        "--config.task.own.train=$tables",
        "$tables has no Parquet or Arrow files; give the file of the train split",
    ),
    Case(
        "bytes that are not text",
        TRAIN,
        "train.csv, line 4: byte 48 of the file (0xe9) is not UTF-8; convert it (iconv -f WINDOWS-1252 -t UTF-8, if",
        files=train(GOOD.encode() + b"caf\xe9,good\n"),
    ),
    Case(
        "a table in UTF-16",
        TRAIN,
        "train.csv, line 1: byte 1 of the file (0xff) is not UTF-8: it starts like ... convert it (iconv -f UTF-16 -t UTF-8)",
        files=train(GOOD.encode("utf-16")),
    ),
    Case(
        "a table in UTF-32",
        TRAIN,
        "train.csv, line 1: byte 1 of the file (0xff) is not UTF-8: it starts like UTF-32; convert it (iconv -f UTF-32 -t UTF-8)",
        files=train(GOOD.encode("utf-32")),
    ),
    Case(
        "a table in UTF-16 without its mark",
        TRAIN,
        "train.csv, line 1: character 1 of the file is NUL ... : it starts like UTF-16; convert it (iconv -f UTF-16BE -t UTF-8)",
        files=train(GOOD.encode("utf-16-be")),
    ),
    Case(
        "a NUL in a table",
        TRAIN,
        "train.csv, line 4: character 46 of the file is NUL, which text must not contain; remove it",
        files=train(f"{GOOD}a\0b,good\n"),
    ),
    Case(
        "noise for a table",
        "--config.task.own.train=$noise",
        "$noise ends in '.bin', which is not the ending of a known format; give it a name ... or set delimiter",
    ),
    Case(
        "zstd that is cut short",
        "--config.task.own.train=train.csv.zst",
        "train.csv.zst is not a whole zstd file (Truncated compressed stream); fetch it again",
        files={"train.csv.zst": zstd(GOOD.encode())[:-5]},
    ),
    Case(
        "a table that is a tar archive",
        TRAIN,
        "train.csv is a tar archive, not text; unpack it first (tar -xf)",
        files=train(b"train.csv".ljust(257, b"\0") + b"ustar\x0000"),
    ),
    Case(
        "a gzip that is none",
        "--config.task.own.train=train.csv.gz",
        "train.csv.gz is not a whole gzip file (Not a gzipped file (b'te')); fetch it again",
        files={"train.csv.gz": GOOD},
    ),
    Case(
        "a number that is none",
        f"{TRAIN} --config.task.own.problem=regression",
        "train.csv, line 3: label is 'low', not a number from -1e+06 to 1e+06; correct the row, or remove it",
        files=train("text,label\nit was fine,4.5\nit was bad,low\n"),
    ),
    Case(
        "an infinite number",
        f"{TRAIN} --config.task.own.problem=regression",
        "train.csv, line 3: label is 'inf', not a number from -1e+06 to 1e+06; correct the row, or remove it",
        files=train("text,label\nit was fine,4.5\nit was bad,inf\n"),
    ),
    Case(
        "a number that is not one",
        f"{TRAIN} --config.task.own.problem=regression",
        "train.csv, line 3: label is 'nan', not a number from -1e+06 to 1e+06; correct the row, or remove it",
        files=train("text,label\nit was fine,4.5\nit was bad,nan\n"),
    ),
    Case(
        "a suffix that says nothing",
        "--config.task.own.train=train.docx",
        "train.docx ends in '.docx', which is not the ending ... one of .csv, .tsv, .tab, .txt, .psv, .jsonl, ... or set",
        files={"train.docx": GOOD},
    ),
    in_lines(
        "JSON that is none",
        "train.jsonl, line 2: the line is not JSON (Expecting value: line 1 column 10 (char 9)): '{\"text\": '; write one",
        '{"text": "it was fine", "label": "good"}\n{"text": \n',
    ),
    in_lines(
        "JSON that nests without end",
        "train.jsonl, line 1: the line is not JSON (brackets are nested too deep): ... write one object per line",
        "[" * 100_000 + "\n",
    ),
    in_lines(
        "JSON that is not an object",
        "train.jsonl, line 1: [1, 2] is not an object; write each line as one object with the columns as fields",
        "[1, 2]\n",
    ),
    in_lines(
        "half a surrogate pair",
        "train.jsonl, line 1: 'text' has half a surrogate pair, which is not a character; correct the row, or remove it",
        '{"text": "\\ud800", "label": "good"}\n',
    ),
    in_lines(
        "a list of 0s and 1s for names",
        "train.jsonl, line 1: label is a list of 0s and 1s, one for each of 3 labels; name the labels: label_names=[a,b,c]",
        '{"text": "it was fine", "label": [1, 0, 0]}\n{"text": "it was bad", "label": [0, 1, 0]}\n',
        "--config.task.own.problem=multi_label",
    ),
    in_lines(
        "a label twice",
        "train.jsonl, line 1: label has 'good' twice; list each label once",
        '{"text": "it was fine", "label": ["good", "good"]}\n',
        "--config.task.own.problem=multi_label",
    ),
    in_lines(
        "a label that is not a number",
        "train.jsonl, line 2: label is NaN; fill in a value, or remove the row",
        '{"text": "it was fine", "label": 0.0}\n{"text": "it was bad", "label": NaN}\n',
    ),
    in_lines(
        "a blank word",
        "train.jsonl, line 1: item 2 of 3 in words is only white space (U+3000); replace it by a visible character",
        '{"words": ["it", "\u3000", "was"], "labels": ["O", "O", "O"]}\n',
        "--config.task.name=own/token",
    ),
    in_lines(
        "one object for the whole table",
        "train.jsonl is a single object for the whole table, as written by pandas' to_json; give one object per row",
        '{"text": {"0": "it was fine"}, "label": {"0": "good"}}\n',
    ),
    in_lines(
        "fewer tags than words",
        "train.jsonl, line 1: there are 2 words, but 1 labels; give one label per word",
        '{"words": ["it", "was"], "labels": ["O"]}\n',
        "--config.task.name=own/token",
    ),
    in_lines(
        "a choice that is not there",
        "train.jsonl, line 1: label is '2', not one of 0, 1 (first_choice=0); set first_choice=1",
        '{"prompt": "it", "choices": ["was", "is"], "label": 2}\n',
        "--config.task.name=own/choice",
    ),
    in_lines(
        "a single choice",
        "train.jsonl, line 1: choices has 1 choice; give two or more choices",
        '{"prompt": "it", "choices": ["was"], "label": 0}\n',
        "--config.task.name=own/choice",
    ),
    in_lines(
        "an answer without a text",
        "train.jsonl, line 1: answers has the text null with the start 7; give a text and a whole number as "
        "the start; correct the row, or "
        "remove it",
        '{"question": "who", "context": "it was ada", "answers": [{"answer_start": 7}]}\n',
        "--config.task.name=own/span",
    ),
    in_lines(
        "an answer outside its context",
        "$dev, line 1: there is no column 'context'; did you mean 'text'?",
        '{"question": "who", "context": "it was ada", "answers": [{"text": "bob", "answer_start": 7}]}\n',
        "--config.task.name=own/span",
    ),
    in_lines(
        "a question twice",
        "train.jsonl: 2 questions share the id 'a'; give each question an id of its own",
        '{"id": "a", "question": "who", "context": "it was ada", "answers": ["ada"]}\n' * 2,
        "--config.task.name=own/span --config.task.own.dev=train.jsonl --config.task.own.id=id",
    ),
    Case(
        "no dev set",
        "--config.task.own.dev=",
        "own/sequence has no examples of the dev split; give examples with config.task.own.dev",
    ),
    Case(
        "tags in another scheme without a training set",
        "--config.task.own.train= --config.task.own.dev=dev.jsonl --config.task.name=own/token --config.task.scheme=IOB2 "
        "--config.task.own.label_names=[O,I-A]",
        "own/token has no examples of the train split; give examples with config.task.own.train",
        files={"dev.jsonl": '{"words": ["it", "was"], "labels": ["O", "I-A"]}\n'},
    ),
    Case(
        "no training set", "--config.task.own.train=", "the labels are not known; set train to the training file, or name the"
    ),
    Case(
        "an unknown problem",
        "--config.task.own.problem=regresion",
        "config.task.own.problem='regresion' is not one of classification, regression, multi_label; did you",
    ),
    Case(
        "a delimiter of two characters",
        "--config.task.own.delimiter=::",
        "task.own.delimiter='::' must be one character, for example ';'",
    ),
    Case(
        "a label named twice",
        "--config.task.own.label_names=\"['good', 'good']\"",
        "label_names=('good', 'good') names a label twice; name each label once",
    ),
    Case(
        "a column named twice",
        f"{TRAIN} --config.task.own.columns=\"['text', 'label', 'label']\"",
        "task.own.columns=('text', 'label', 'label') names a column twice; name each column once",
        files=train("it was fine,good,poor\nit was bad,poor,good\n"),
    ),
    *(
        Case(
            f"a pipe for {what}",
            f"--config.task.own.train={name} {flags}",
            f"{name} is a pipe or a device, but this file is read several times; save it to a file first",
            spoil=lambda directory, name=name: os.mkfifo(directory / name),
        )
        for what, name, flags in (
            ("a table", "pipe.csv", ""),
            ("JSON lines", "pipe.jsonl", ""),
            ("a Parquet file", "pipe.parquet", ""),
            ("a file of an unknown name", "pipe", ""),
            ("a file of words", "pipe.conll", "--config.task.name=own/token"),
            ("a treebank", "pipe.conllu", "--config.task.name=own/token"),
            ("a file of questions", "pipe.json", "--config.task.name=own/span"),
        )
    ),
    Case(
        "columns of another number",
        f"{TRAIN} --config.task.own.columns=\"['text', 'label', 'id']\"",
        "train.csv, line 1: the row has 2 columns, but there are 3 column names (text, label, id); correct the line, or remove",
        files=train(GOOD),
    ),
    # --------------------------------------------------------------------------------------------------------- official files
    *(
        Case(f"no directory of {task}", f"--config.task.name={task} --config.task.data_dir=nowhere", "nowhere ... ; give ")
        for task in ("glue/sst2", "sick/relatedness", "swag", "codah", "conll2003", "pos", "gap", "squad/v1.1")
    ),
    Case(
        "no directory of a task that the catalogue has not",
        "--config.task.name=swag",
        "swag is not in the catalogue of tfds; set config.task.data_dir to the directory of the official files",
    ),
    Case(
        "a label that the task has not",
        f"--config.task.name=glue/sst2 {OFFICIAL_DATA}",
        "data/SST-2/train.tsv, line 98: label is '2', not one of 0, 1; correct the row, or remove it",
        copies="data=sst2",
        spoil=add_line("data/SST-2/train.tsv", "it was odd\t2"),
    ),
    Case(
        "an official file with commas",
        f"--config.task.name=glue/sst2 {OFFICIAL_DATA}",
        "data/SST-2/dev.tsv, line 1: the only column is 'sentence,label'; separate columns with TABs, not with ','",
        copies="data=sst2",
        files={"data/SST-2/dev.tsv": "sentence,label\nit was fine,1\n"},
    ),
    Case(
        "no such column of an official file",
        f"--config.task.name=glue/sst2 {OFFICIAL_DATA}",
        "data/SST-2/dev.tsv, line 1: there is no column 'sentence'; did you mean 'sentences'?",
        copies="data=sst2",
        spoil=replace("data/SST-2/dev.tsv", "sentence\t", "sentences\t"),
    ),
    Case(
        "an offset outside the text",
        f"--config.task.name=gap {OFFICIAL_DATA}",
        "data/gap-development.tsv, line 2: Pronoun is 'she', but the text at ... is ''; count the characters of Text from 0",
        copies="data=gap",
        spoil=replace("data/gap-development.tsv", "\tshe\t", "\tshe\t9"),
    ),
    Case(
        "an offset of more digits than Python reads",
        f"--config.task.name=gap {OFFICIAL_DATA}",
        "data/gap-development.tsv, line 2: Pronoun-offset is '999999 ... ...', not an integer from 0; correct the row, or remove",
        copies="data=gap",
        spoil=replace("data/gap-development.tsv", "\tshe\t", f"\tshe\t{'9' * 5000}"),
    ),
    Case(
        "a row of GAP that is there twice",
        f"--config.task.name=gap {OFFICIAL_DATA}",
        "the ID 'x' is also in ... but predictions are named by ID; give each row its own ID",
        copies="data=gap",
        spoil=[add_line("data/gap-development.tsv", "x\tshe saw ada and bob\tshe\t0\tada\t8\tTRUE\tbob\t16\tFALSE\t-")] * 2,
    ),
    Case(
        "a pronoun of no gender",
        f"--config.task.name=gap {OFFICIAL_DATA}",
        "data/gap-development.tsv: the pronoun 'it' of x is neither masculine nor ... remove the row, because GAP is scored by "
        "gender",
        copies="data=gap",
        spoil=add_line("data/gap-development.tsv", "x\tit saw ada and bob\tit\t0\tada\t7\tTRUE\tbob\t15\tFALSE\t-"),
    ),
    Case(
        "a dev set without labels",
        f"--config.task.name=swag {OFFICIAL_DATA}",
        "no example of swag, dev, has a label, so it cannot be scored; give the file with labels",
        copies="data=swag",
        spoil=without_last_column("data/val.csv"),
    ),
    Case(
        "a training set without labels",
        f"--config.task.name=swag {OFFICIAL_DATA}",
        "no training example of swag has a label; give the file with labels",
        copies="data=swag",
        spoil=without_last_column("data/train.csv"),
    ),
    Case(
        "a tag that is none",
        f"--config.task.name=conll2003 {OFFICIAL_DATA}",
        "data/train.txt, line 9 has the label 'PLACE', not an entity tag ... correct the file, or give another file",
        copies="data=conll",
        spoil=replace("data/train.txt", "B-LOC", "PLACE"),
    ),
    Case(
        "a line cut short",
        f"--config.task.name=conll2003 {OFFICIAL_DATA}",
        "data/train.txt, line 5: the line has 2 columns, but other lines have 4; correct the line",
        copies="data=conll",
        spoil=replace("data/train.txt", " B-NP O", ""),
    ),
    Case(
        "a comment inside a sentence",
        f"--config.task.name=conll2003 {OFFICIAL_DATA}",
        "data/train.txt, line 2: the line has 5 columns, but other lines have 4; correct the line, or put the comment before",
        copies="data=conll",
        files={"data/train.txt": "ada NNP I-NP I-PER\n# by hand, not checked\nran VBD I-VP O\n"},
    ),
    Case(
        "a tag that is none in a file with a comment of one TAB",
        f"--config.task.name=conll2003 {OFFICIAL_DATA}",
        "data/train.txt, line 3 has the label 'PLACE', not an entity tag ... correct the file, or give another file",
        copies="data=conll",
        files={"data/train.txt": "# by\thand\nada NNP I-NP I-PER\nrome NNP I-NP PLACE\n"},
    ),
    Case(
        "a line of white space that is not an empty line",
        f"--config.task.name=conll2003 {OFFICIAL_DATA}",
        "data/train.txt, line 2: the line has only white space (U+00A0), so it is neither a word nor an empty line ... correct",
        copies="data=conll",
        files={"data/train.txt": "ada NNP I-NP I-PER\n\u00a0\nran VBD I-VP O\n"},
    ),
    Case(
        "a treebank whose sentences are not apart",
        f"--config.task.name=pos {OFFICIAL_DATA}",
        "data/a-train.conllu, line 2: the ID 1 follows the ID 1; end the previous sentence with an empty line",
        files={"data/a-train.conllu": TREE * 2, "data/a-dev.conllu": TREE},
    ),
    Case(
        "an ID of more digits than Python reads",
        f"--config.task.name=pos {OFFICIAL_DATA}",
        "data/a-train.conllu, line 1: the ID 11111111111111111... is the first ID of the sentence; number the words of a",
        files={"data/a-train.conllu": "1" * 5000 + TREE, "data/a-dev.conllu": TREE},
    ),
    *(
        Case(
            f"data of the hub for {name}",
            f"--config.task.name={name} {OFFICIAL_DATA}",
            f". The task {name} does not read data/a/train-0.parquet; {remedy}",
            files={"data/a/train-0.parquet": b"PAR1", "data/a/dev-0.parquet": b"PAR1"},
        )
        for name, remedy in (
            ("glue/sst2", "set config.task.name=own/sequence and config.task.own.train=data/a/train-0.parquet, and name"),
            ("swag", "set config.task.name=own/choice and config.task.own.train=data/a/train-0.parquet, and name its columns"),
            ("gap", "write the data as a file of gap"),
        )
    ),
    Case(
        "no dev file",
        f"--config.task.name=conll2003 {OFFICIAL_DATA}",
        "config.task.data_dir=data has no valid.txt or eng.testa, the dev split of conll2003; give another directory",
        copies="data=conll",
        spoil=remove("data/valid.txt"),
    ),
    Case(
        "half a file",
        f"--config.task.name=squad/v1.1 {OFFICIAL_DATA}",
        "data/train-v1.1.json is not JSON (Expecting ',' delimiter: line 1 column 14661 (char 14660)); fetch the file again",
        copies="data=squad1",
        spoil=cut("data/train-v1.1.json", 9),
    ),
    Case(
        "another version",
        f"--config.task.name=squad/v2.0 {OFFICIAL_DATA}",
        'data/train-v2.0.json, data[0].paragraphs[0].qas[0].is_impossible: "yes" is not true or false; give a SQuAD file',
        copies="data=squad2",
        spoil=replace("data/train-v2.0.json", '"is_impossible": true', '"is_impossible": "yes"'),
    ),
    Case(
        "a file that is a list",
        f"--config.task.name=squad/v1.1 {OFFICIAL_DATA}",
        "data/train-v1.1.json, the file: [] is not an object; give a SQuAD file",
        files={"data/train-v1.1.json": "[]", "data/dev-v1.1.json": "[]"},
    ),
    Case(
        "JSON lines with the name of SQuAD",
        f"--config.task.name=squad/v1.1 {OFFICIAL_DATA}",
        "data/train-v1.1.json is not JSON (Extra data: ... the first line is a complete object; if each line is an object,",
        files={"data/train-v1.1.json": '{"question": "who"}\n' * 2, "data/dev-v1.1.json": "[]"},
    ),
    Case(
        "an ID that is a list",
        f"--config.task.name=squad/v1.1 {OFFICIAL_DATA}",
        "data/train-v1.1.json, data[0].paragraphs[0].qas[0].id: [1] is not a text or a whole number; give a SQuAD file",
        copies="data=squad1",
        spoil=replace("data/train-v1.1.json", '"id": "', '"id": [1], "old": "'),
    ),
    Case(
        "an offset that is not a whole number",
        f"--config.task.name=squad/v1.1 {OFFICIAL_DATA}",
        "data/train-v1.1.json, data[0].paragraphs[0].qas[0].answers: has the text ... with the start 0.5; give a text and a "
        "whole number",
        copies="data=squad1",
        spoil=replace("data/train-v1.1.json", '"answer_start": ', '"answer_start": 0.5, "old": '),
    ),
    Case(
        "a number of more digits than Python reads",
        f"--config.task.name=squad/v1.1 {OFFICIAL_DATA}",
        "data/train-v1.1.json is not JSON (a number has more than 4,300 digits); fetch the file again",
        copies="data=squad1",
        spoil=replace("data/train-v1.1.json", '"answer_start": ', f'"answer_start": {"9" * 5000}'),
    ),
    Case(
        "a file that nests without end",
        f"--config.task.name=squad/v1.1 {OFFICIAL_DATA}",
        "data/train-v1.1.json is not JSON (brackets are nested too deep); fetch the file again",
        files={"data/train-v1.1.json": "[" * 100_000, "data/dev-v1.1.json": "[]"},
    ),
    Case(
        "a file without questions",
        f"--config.task.name=squad/v1.1 {OFFICIAL_DATA}",
        "data/train-v1.1.json has no questions; give a SQuAD file",
        files={"data/train-v1.1.json": '{"data": []}', "data/dev-v1.1.json": '{"data": []}'},
    ),
    Case(
        "an enormous number",
        f"{TRAIN} --config.task.own.dev=train.csv --config.task.own.problem=regression",
        "train.csv, line 3: label is '1e300', not a number from -1e+06 to 1e+06; correct the row, or remove it",
        files=train("text,label\nit was fine,4.5\nit was bad,1e300\n"),
    ),
    Case(
        "a table with spaces before the quotes of its labels",
        TRAIN,
        'train.csv, line 2: label is "good", and the quotes are part of the label because a space precedes them; remove the',
        files=train('text,label\nit was fine, "good"\nit was bad, "poor"\n'),
    ),
    Case(
        "two tables joined",
        TRAIN,
        "train.csv, line 4: the row repeats the column names, perhaps because files were joined; remove the row",
        files=train(f"\ufeff{GOOD}\ufeff{GOOD}"),
    ),
    Case(
        "text in fastText's format",
        "--config.task.own.train=train.txt",
        "train.txt, line 1: the file is in fastText's format; write a label, a TAB and a text on each line (sed -E",
        files={"train.txt": "__label__good it was fine\n__label__poor it was bad\n"},
    ),
    Case(
        "a text of invisible characters",
        TRAIN,
        "train.csv, line 4: text is '\\u200b\\ufeff', not a text; correct the row, or remove it",
        files=train(f"{GOOD}\u200b\ufeff,good\n"),
    ),
    Case(
        "JSON values one after another",
        "--config.task.own.train=train.json",
        "train.json holds several JSON values, one after another; write each value on a line of its own (jq -c . train.json >",
        files={"train.json": '{\n "text": "a",\n "label": "b"\n}\n{\n "text": "c",\n "label": "d"\n}\n'},
    ),
    Case(
        "an empty list in JSON",
        "--config.task.own.train=train.json",
        "train.json has no rows; give a file with one example per row",
        files={"train.json": "[]"},
    ),
    Case(
        "a blank name of a label",
        "\"--config.task.own.label_names=[good,' ']\"",
        "task.own.label_names=['good', ' '] has a blank name; name each label, as [a,b]",
    ),
    Case(
        "a label that looks like another",
        f"{TRAIN} --config.task.own.dev=dev.csv",
        "dev.csv, line 2: the label 'p\\u043eor' is not known, although it looks like 'poor'; write both in the same way",
        files={"train.csv": GOOD, "dev.csv": "text,label\nit was bad,p\u043eor\n"},
    ),
    Case(
        "texts as labels",
        f"{TRAIN} --config.task.own.columns=[text,label] --config.task.own.dev=dev.csv",
        "dev.csv, line 1: the label 'other' is not known; known: 0, 1, 2, 3, ... , ... (60 in all). Correct the label",
        files={"train.csv": "".join(f"good,{i}\n" for i in range(60)), "dev.csv": "good,other\n"},
    ),
    Case(
        "entities as characters in Label Studio's tasks",
        f"{TRAIN[:-4]}.json --config.task.name=own/token",
        "train.json, item 1: there is no field 'words', but entities with the offsets ... Label Studio; give the words and",
        files={"train.json": '[{"text": "it was ada", "label": [{"start": 7, "end": 10, "labels": ["PER"]}]}]'},
    ),
    Case(
        "tasks of Label Studio with their annotations",
        f"{TRAIN[:-4]}.json",
        "train.json, item 1: there is no field 'text'; the file has tasks of Label Studio ... export them as JSON-MIN or as CSV",
        files={"train.json": '[{"id": 1, "annotations": [], "data": {"text": "it was"}}]'},
    ),
    Case(
        "annotations of brat",
        f"{TRAIN[:-4]}.ann --config.task.name=own/token",
        "train.ann has annotations with the offsets of their characters, as brat writes them; give the words and tags of each",
        files={"train.ann": "T1\tPerson 7 10\tada\n"},
    ),
    Case(
        "columns of one object",
        LINES,
        'train.jsonl, line 1: text is ["it was", "we"], not a text; the object holds whole columns ... pandas',
        files={"train.jsonl": '{"text": ["it was", "we"], "label": ["good", "poor"]}\n'},
    ),
    Case(
        "columns of one object on several lines",
        f"{TRAIN[:-4]}.json",
        "train.json is a single object (text, label); the object holds whole columns; write one object per row",
        files={"train.json": '{\n"text": ["it was", "we"],\n"label": ["good", "poor"]}\n'},
    ),
    Case(
        "columns of words in one object",
        f"{LINES} --config.task.name=own/token",
        "train.jsonl, line 1: words is ... not a list of texts; the object holds whole columns",
        files={"train.jsonl": '{"words": [["it"], ["we", "saw"]], "labels": [["O"], ["O", "B-A"]]}\n'},
    ),
    Case(
        "the rows of the hub's viewer",
        f"{TRAIN[:-4]}.json",
        "train.json is a single object (features, rows); give ... (jq -c '.rows[].row' train.json > train.jsonl)",
        files={"train.json": '{"features": [], "rows": [{"row_idx": 0, "row": {"text": "it was", "label": "good"}}]}'},
    ),
    Case(
        "a comma after each line of JSON",
        LINES,
        "train.jsonl, line 1: a comma follows the object; remove the comma from each line (sed -i",
        files={"train.jsonl": '{"text": "it was", "label": "good"},\n{"text": "we", "label": "poor"},\n'},
    ),
    Case(
        "objects on several lines each",
        LINES,
        "train.jsonl holds several JSON values, one after another; write ... (jq -c . train.jsonl > train-lines.jsonl)",
        files={"train.jsonl": '{\n"text": "it was", "label": "good"\n}\n{\n"text": "we", "label": "poor"\n}\n'},
    ),
    Case(
        "a table with pipes and another name",
        f"{TRAIN[:-4]}.dat",
        "train.dat ends in '.dat', which is not the ending of a known format; give it ... .psv, ... or set delimiter='|'",
        files={"train.dat": "text|label\nit was fine|good\n"},
    ),
    Case(
        "a table in Markdown",
        f"{TRAIN[:-4]}.psv",
        "train.psv, line 2: the line belongs to a table in Markdown; remove it, and the '|' at the beginning and end",
        files={"train.psv": "| text | label |\n|---|:--:|\n| it was fine | good |\n"},
    ),
    Case(
        "an error of a spreadsheet as a label",
        TRAIN,
        "train.csv, line 4: label is '#REF!', which usually marks a missing value; fill in a value, or remove the row",
        files=train(f"{GOOD}it was,#REF!\n"),
    ),
    Case(
        "subtitles",
        f"{TRAIN[:-4]}.srt",
        "train.srt is a file of subtitles, not text; write the sentences to a text file first, without the times",
        files={"train.srt": "1\n00:00:01,000 --> 00:00:02,500\nit was fine\n"},
    ),
    Case(
        "a comment above the names of GAP's columns",
        f"--config=$repository/experiments/finetune/gap.py {OFFICIAL_DATA} --config.task.length=32",
        "data/gap-development.tsv, line 1: the first line must have the column names, but it is a comment ('# by Ada')",
        copies="data=gap",
        spoil=replace("data/gap-development.tsv", "ID\t", "# by Ada\nID\t"),
    ),
    Case(
        "entities as characters",
        f"{LINES} --config.task.name=own/token",
        "train.jsonl, line 1: there is no field 'words', but entities with the offsets of their characters, as in spaCy,",
        files={"train.jsonl": '{"text": "Paris is", "label": [[0, 5, "LOC"]]}\n'},
    ),
    Case(
        "a row that was rejected in Prodigy",
        LINES,
        "train.jsonl, line 2: the annotator's answer is 'reject'; keep only accepted rows (jq -c 'select(.answer == \"accept\")'",
        files={
            "train.jsonl": "".join(
                f'{{"text": "good", "_input_hash": {i}, "label": "a", "answer": "{answer}"}}\n'
                for i, answer in enumerate(("accept", "reject"))
            )
        },
    ),
    Case(
        "a number of no label",
        f"{TRAIN} --config.task.own.label_names=[good,poor]",
        "train.csv, line 3: the label 2 is out of range: labels are 0 (good) to 1 (poor); correct the label, or add its name",
        files=train("text,label\nit was fine,0\nit was bad,2\n"),
    ),
]
TABLE = Table("finetune", FINETUNE, CASES)
