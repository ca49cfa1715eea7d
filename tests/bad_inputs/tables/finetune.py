"""Bad inputs of `finetune`: the command line, the model to begin with, a run that is there."""

from __future__ import annotations

from tests.bad_inputs.case import Case, Table
from tests.bad_inputs.damage import cut, extra_tensors, keys, not_finite, remove, replace
from tests.bad_inputs.places import FINETUNE, TRAIN

CASES = [
    # ---------------------------------------------------------------------------------------------------- the command line
    Case(
        "no experiment",
        says="--config is missing, for example --config=experiments/pretrain/quickstart.py",
        without=("--config",),
    ),
    Case("no workdir", says="--workdir is missing, for example --workdir=runs/mine", without=("--workdir",)),
    Case("a profile that is no range", "--profile=3:3", "--profile=3:3 must be FIRST:LAST, two whole numbers"),
    Case(
        "a profile of steps after the last",
        "--profile=10:9000",
        "--profile=10:9000 ends after the last step of this run, ... name earlier steps",
    ),
    Case("an unknown flag", "--wordir=x", "unknown argument --wordir=x: did you mean '--workdir'?"),
    Case(
        "no model",
        says="config.init_from is empty; name the model to fine-tune (directory, workdir or hub name)",
        without=("--config.init_from",),
    ),
    Case(
        "an argument that its experiment has no use for",
        "--config=$repository/experiments/finetune/squad.py:v3",
        "config.task.name='squad/v3' is no task; did you mean 'squad/v2.0'?",
    ),
    Case(
        "a glue task that is none",
        "--config=$repository/experiments/finetune/glue.py:mrcp",
        "config.task.name='glue/mrcp' is no task; did you mean 'glue/mrpc'?",
    ),
    # ------------------------------------------------------------------------------------------------ the model to begin with
    Case(
        "a model that is not there",
        "--config.init_from=no_such_model",
        "there is no no_such_model ... name a directory that holds config.json and model.safetensors, a",
    ),
    Case(
        "a model without weights",
        "--config.init_from=model",
        "model is not a model directory: model.safetensors missing",
        copies={"model": "model"},
        spoil=remove("model/model.safetensors"),
    ),
    Case(
        "a model whose weights are cut short",
        "--config.init_from=model",
        "model/model.safetensors (24,864 bytes) is damaged or incomplete (Error while ... copy or export the model again",
        copies={"model": "model"},
        spoil=cut("model/model.safetensors", 100),
    ),
    Case(
        "a model with tensors of another class",
        "--config.init_from=model",
        "not part of this model: mine.bias, mine.weight; `convert --drop='mine.*'` leaves them out",
        copies={"model": "model"},
        spoil=extra_tensors("model", "mine.bias", "mine.weight"),
    ),
    Case(
        "a model whose configuration is damaged",
        "--config.init_from=model",
        "model/config.json cannot be read as JSON (Unterminated string starting at: line 24 column ... copy the model again",
        copies={"model": "model"},
        spoil=cut("model/config.json", 20),
    ),
    Case(
        "a model without a pooler",
        "--config.init_from=$tagger",
        "config.init_from=$tagger has no pooler, which a ... to begin it with random weights, say --config.init_new=pooler",
    ),
    Case(
        "a kept head with other labels",
        "--config.init_from=model --config.keep_head=true",
        "config.keep_head keeps the head of model, but that has a ... leave keep_head out to start a new head",
        copies={"model": "classifier"},
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
        "other is a workdir without an exported model yet; continue its run with the command that started it",
        files={"other/config.json": "{}", "other/checkpoints/0": ""},
    ),
    # ------------------------------------------------------------------------------------------------------- a run that is there
    Case(
        "another configuration",
        "--workdir=run --config.training.label_smoothing=0.1 --config.seed=4",
        "--workdir=run holds a run with another configuration: ... name another --workdir for the new configuration, or repeat",
        copies={"run": "run"},
    ),
    Case(
        "changed data under the same name",
        f"--workdir=run {TRAIN}",
        "--workdir=run holds a run with another configuration: ... name another --workdir for the new configuration, or repeat",
        copies={"run": "run", "train.csv": "train"},
        spoil=replace("train.csv", "poor", "good"),
    ),
    Case(
        "another model under the same name",
        "--workdir=run --config.init_from=$classifier",
        "--workdir=run holds a run with another configuration: ... name another --workdir for the new configuration, or repeat",
        copies={"run": "run"},
    ),
    Case(
        "a workdir of other files",
        "--workdir=.",
        "--workdir=. holds files that are not of a run (thesis.txt); name a new or empty directory",
        files={"thesis.txt": "years of work"},
    ),
    Case(
        "a workdir whose configuration is damaged",
        "--workdir=run",
        "run/config.json cannot be read as JSON (Unterminated string starting ... name another --workdir, or remove this one",
        copies={"run": "run"},
        spoil=cut("run/config.json", 20),
    ),
    Case(
        "a model with a weight that is not a number",
        "--config.init_from=model",
        "model/model.safetensors cannot be used: NaN or infinity in ... take an earlier state of this model, or copy it again",
        copies={"model": "model"},
        spoil=not_finite("model"),
    ),
]


TABLE = Table("finetune", FINETUNE, CASES)
