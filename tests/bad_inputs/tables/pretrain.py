"""Bad inputs of `pretrain`: the command line, the model to begin with, the corpus, the workdir."""

from __future__ import annotations

from tests.bad_inputs.case import STARTED, Case, Table

CASES = [
    # ---------------------------------------------------------------------------------------------------- the command line
    Case(
        "no experiment",
        says="--config is missing, for example --config=experiments/pretrain/quickstart.py",
        without=("--config",),
    ),
    Case("no workdir", says="--workdir is missing, for example --workdir=runs/mine", without=("--workdir",)),
    Case("an unknown flag", "--confg.seed=1", "unknown argument --confg.seed=1: did you mean --config.seed?"),
    Case(
        "a word too many",
        "quickstart",
        "unexpected 'quickstart': every argument is a flag, --name=value",
    ),
    Case(
        "an experiment file that is not there",
        "--config=quikstart.py",
        "--config=quikstart.py: there is no file ... did you mean 'experiments/pretrain/quickstart.py'?",
    ),
    Case(
        "an experiment that is no Python",
        "--config=notes.txt",
        "--config=$here/notes.txt is not a Python file; an experiment file is one with a function",
        files={"notes.txt": "steps: 5\n"},
    ),
    Case(
        "an experiment with a mistake in its Python",
        "--config=mine.py",
        "--config=$here/mine.py, line 1: invalid syntax",
        files={"mine.py": "def get_config(:\n"},
    ),
    Case(
        "an experiment without get_config",
        "--config=mine.py",
        "--config=$here/mine.py has no function get_config(); see experiments/pretrain/quickstart.py for one",
        files={"mine.py": "config = {}\n"},
    ),
    Case(
        "an experiment that returns a number",
        "--config=mine.py",
        "--config=$here/mine.py: its get_config returns 7, and a ConfigDict or dict is wanted; mend the",
        files={"mine.py": "def get_config(): return 7\n"},
    ),
    Case(
        "an experiment that is a directory",
        "--config=.",
        "--config=.: there is no file . in $here or $repository ... the experiments are bert_base, bert_large,",
    ),
    Case(
        "an argument for an experiment that takes none",
        "--config=$experiment:small",
        "--config=$experiment:small: its get_config takes no argument; leave `:small` out",
    ),
    Case(
        "no argument for an experiment that needs one",
        "--config=mine.py",
        "--config=mine.py needs an argument, --config=mine.py:ARG; its docstring says which",
        files={"mine.py": "def get_config(size): return {}\n"},
    ),
    Case(
        "an experiment file with bytes that are no text",
        "--config=$noise",
        "--config=$noise is not a Python file; an experiment file is one with a function get_config()",
    ),
    Case(
        "a workdir that is a URL",
        "--workdir=gs://bucket/run",
        "--workdir=gs://bucket/run is a URL; mount the bucket (gcsfuse) and give the path of the mount",
    ),
    Case(
        "an empty experiment",
        "--config=",
        "--config is missing, for example --config=experiments/pretrain/quickstart.py",
    ),
    Case("a flag without its value", "--workdir", "argument --workdir: expected one argument"),
    Case("a key without its value", "--config.seed", "--config.seed has no value; write --config.seed=VALUE"),
    Case(
        "one process of several without the others",
        "--processes=2",
        "--coordinator, --process missing: --coordinator=HOST:PORT --processes=N --process=I go together",
    ),
    Case(
        "no processes",
        "--coordinator=localhost:1234 --processes=0 --process=0",
        "--processes=0 must be at least 1 and at most 65,536",
    ),
    Case(
        "a process beyond the last",
        "--coordinator=localhost:1234 --processes=2 --process=2",
        "--process=2 of --processes=2: processes are numbered from 0 to 1",
    ),
    Case(
        "a coordinator without a port",
        "--coordinator=localhost --processes=2 --process=0",
        "--coordinator=localhost must be HOST:PORT of process 0, ... --coordinator=localhost:8476 is one",
    ),
    Case(
        "a number of processes that is none",
        "--processes=two",
        "--processes=two must be a whole number, at least 1 and at most 65,536",
    ),
    Case(
        "a start time-out that is none",
        "--start-timeout=soon",
        "--start-timeout=soon must be a number, above 0 and at most 1e+09",
    ),
    Case(
        "a start time-out that is negative",
        "--start-timeout=-1 --coordinator=localhost:1234 --processes=2 --process=0",
        "--start-timeout=-1 must be above 0 and at most 1e+09",
    ),
    Case(
        "compiled programs that are not there",
        "--compiled=nowhere",
        "--compiled=nowhere is no directory ... make it with `python -m bert_jax.aot --save=DIR` and the same",
        leaves=STARTED,
    ),
    Case(
        "a directory without compiled programs",
        "--compiled=empty",
        "--compiled=empty holds no programs ... this run needs its step for 1 x cpu, jax 0.10.2, jaxlib 0.10.2: make",
        files={"empty/x": ""},
        leaves=STARTED,
    ),
    # ------------------------------------------------------------------------------------------------ the model to begin with
    Case(
        "a model that is not there",
        "--config.init_from=no_such_model",
        "there is no no_such_model ... name a directory that holds config.json and model.safetensors, a",
        leaves=STARTED,
    ),
    Case(
        "a model that is a file",
        "--config.init_from=$train",
        "$train is a file; name the directory that holds config.json and model.safetensors",
        leaves=STARTED,
    ),
    Case(
        "a new part without a model",
        "--config.init_new=pooler",
        "config.init_new and config.init_drop are about the model config.init_from, which is empty; name one",
    ),
    Case(
        "a dropped part without a model",
        "--config.init_drop=pooler",
        "config.init_new and config.init_drop are about the model config.init_from, which is empty; name one",
    ),
    Case(
        "a model with another vocabulary",
        "--config.init_from=$model",
        "config.init_from=$model has a vocabulary of 91 entries, and that ... build the corpus with --vocab=$model",
        leaves=STARTED,
    ),
    # --------------------------------------------------------------------------------------------------------------- the corpus
    Case(
        "a corpus that is not there",
        "--config.corpus.directory=nowhere",
        "corpus nowhere (looked for in $here) does not exist; build one with python -m bert_jax.corpus",
    ),
    Case(
        "a corpus that is a file",
        "--config.corpus.directory=$text",
        "corpus $text is a file; give the directory that python -m bert_jax.corpus --output=DIR has made",
    ),
    Case(
        "a corpus that is another directory",
        "--config.corpus.directory=$tables",
        "$tables is not a corpus (it has no manifest.json); build one with python -m bert_jax.corpus",
    ),
    # -------------------------------------------------------------------------------------------------------------- the workdir
    Case(
        "a workdir with other files",
        "--workdir=.",
        "--workdir=. holds files that are not of a run (thesis.txt); name a new or empty directory",
        files={"thesis.txt": "years of work"},
        leaves=STARTED,
    ),
    Case(
        "a workdir under a file",
        "--workdir=file/run",
        "--workdir=file/run cannot be written (a file is in the way); name a directory you may write to",
        files={"file": ""},
    ),
    Case(
        "a workdir that is a file",
        "--workdir=file",
        "--workdir=file cannot be written (a file is in the way); name a directory you may write to",
        files={"file": ""},
    ),
    Case(
        "the workdir of another verb",
        "--workdir=run",
        copies={"run": "run"},
        says="--workdir=run holds a run of `finetune`, not of `pretrain`; name another --workdir",
    ),
    Case(
        "a model directory for a workdir",
        "--workdir=model",
        "model holds a config.json that is not of a run of ours (a model directory?); name another --workdir",
        copies={"model": "model"},
        leaves=STARTED,
    ),
    Case(
        "a workdir whose configuration is damaged",
        says="run/config.json cannot be read as JSON (Expecting property name ... name another --workdir, or remove this one",
        files={"run/config.json": "{", "run/metrics.jsonl": ""},
        leaves=STARTED,
    ),
    Case(
        "a workdir whose configuration is a list",
        says="run holds a config.json that is not of a run of ours (a model directory?); name another --workdir",
        files={"run/config.json": "[]", "run/metrics.jsonl": ""},
        leaves=STARTED,
    ),
]
TABLE = Table("pretrain", "--config=$experiment --workdir=run", CASES)
