"""Bad inputs of `pretrain`: the command line, the model to begin with, the corpus, the workdir."""

from __future__ import annotations

from tests.bad_inputs.case import Case, Table
from tests.bad_inputs.damage import cut, flip, remove, replace, some_shards, turned_round

CORPUS = "--config.corpus.directory=corpus"
TOKENS = "corpus/shard-00000-of-00002/train.tokens.npy"

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
        "--config=$here/notes.txt is not a Python file; an experiment file is a Python file with a function",
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
        "--config=$here/mine.py has no function get_config(); see experiments/pretrain/quickstart.py for an example",
        files={"mine.py": "config = {}\n"},
    ),
    Case(
        "an experiment that returns a number",
        "--config=mine.py",
        "--config=$here/mine.py: its get_config returns 7; it must return a ConfigDict or a dict",
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
        "a misspelt argument of an experiment",
        "--config=$repository/experiments/pretrain/laptop.py:tinny",
        "laptop.py:tinny: its get_config does not accept 'tinny'; did you mean 'tiny'?",
    ),
    Case(
        "no argument for an experiment that needs one",
        "--config=mine.py",
        "--config=mine.py needs an argument, --config=mine.py:ARG; its docstring lists the arguments",
        files={"mine.py": "def get_config(size): return {}\n"},
    ),
    Case(
        "an experiment file with bytes that are no text",
        "--config=$noise",
        "--config=$noise is not a Python file; an experiment file is a Python file with a function get_config()",
    ),
    Case(
        "a workdir that is a URL",
        "--workdir=s3://bucket/run",
        "--workdir=s3://bucket/run is a URL; give a local path, or gs://BUCKET/PATH for Google Cloud Storage",
    ),
    Case("steps in a bucket", "--compiled=gs://b/steps", "--compiled=gs:/b/steps: this flag takes a local path; copy it"),
    Case(
        "a workdir in a mistyped bucket",
        "--workdir=gs:/bucket/run",
        "--workdir=gs:/bucket/run: a path in a bucket begins with gs://; did you mean gs://bucket/run?",
    ),
    Case(
        "a corpus in a mistyped bucket",
        "--config.corpus.directory=gs:bucket/corpus",
        "config.corpus.directory=gs:bucket/corpus: a path in a bucket begins with gs://; did you mean gs://bucket/corpus?",
    ),
    Case(
        "a whole bucket as the workdir",
        "--workdir=gs://bucket/",
        "--workdir=gs://bucket/ is a whole bucket; name a directory or file in it, such as gs://bucket/NAME",
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
        "--compiled=nowhere (looked for in $here) is no directory; make it with `python -m bert_jax.aot --save=DIR` and the same",
    ),
    Case(
        "a directory without compiled programs",
        "--compiled=empty",
        "--compiled=empty holds no programs ... this run needs its step for 1 x cpu, jax 0.10.2, jaxlib 0.10.2: make",
        files={"empty/x": ""},
    ),
    # ------------------------------------------------------------------------------------------------ the model to begin with
    Case(
        "a model that is not there",
        "--config.init_from=no_such_model",
        "there is no no_such_model ... name a directory that holds config.json and model.safetensors, a",
    ),
    Case(
        "a model that is a file",
        "--config.init_from=$train",
        "$train is a file; name the directory that holds config.json and model.safetensors",
    ),
    Case(
        "a new part without a model",
        "--config.init_new=pooler",
        "config.init_new and config.init_drop name parts of config.init_from, which is empty; name a model",
    ),
    Case(
        "a dropped part without a model",
        "--config.init_drop=pooler",
        "config.init_new and config.init_drop name parts of config.init_from, which is empty; name a model",
    ),
    Case(
        "a model with another vocabulary",
        "--config.init_from=$model",
        "config.init_from=$model has a vocabulary of 91 entries, and that ... build the corpus with --vocab=$model",
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
        "a step to replay beside an experiment",
        "--replay=3",
        "--replay=3 takes the experiment from the workdir; leave --config=$experiment out",
    ),
    Case("a step to replay that is none", "--replay=0", "--replay=0 must be at least 1"),
    Case(
        "a step to replay of no run",
        "--replay=3",
        "--workdir=run (looked for in $here) holds no run; name the workdir of a run of pretrain",
        without=("--config",),
    ),
    Case(
        "a step to replay of a run of another verb",
        "--replay=3 --workdir=$run",
        "--workdir=$run holds a run of bert_jax ... finetune; name the workdir of a run of pretrain",
        without=("--config",),
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
        "model holds a config.json that is not of a run (a model directory?); name another --workdir",
        copies={"model": "model"},
    ),
    Case(
        "a workdir whose configuration is damaged",
        says="run/config.json cannot be read as JSON (Expecting property name ... name another --workdir, or remove this one",
        files={"run/config.json": "{", "run/metrics.jsonl": ""},
    ),
    Case(
        "a workdir whose configuration is a list",
        says="run holds a config.json that is not of a run (a model directory?); name another --workdir",
        files={"run/config.json": "[]", "run/metrics.jsonl": ""},
    ),
    Case(
        "a corpus with a shard cut short",
        CORPUS,
        "corrupted corpus: ... remove corpus/shard-00000-of-00002 and corpus/manifest.json,",
        copies={"corpus": "corpus"},
        spoil=cut(TOKENS, 10),
    ),
    Case(
        "a corpus with a flipped byte",
        CORPUS,
        "corrupted corpus: ... remove corpus/shard-00000-of-00002 and corpus/manifest.json,",
        copies={"corpus": "corpus"},
        spoil=flip(TOKENS, -5),
        leaves=("run", "run/*"),  # found beside the training
    ),
    Case(
        "a corpus without a shard",
        CORPUS,
        "corrupted corpus: ... remove corpus/shard-00000-of-00002 and corpus/manifest.json, and",
        copies={"corpus": "corpus"},
        spoil=remove("corpus/shard-00000-of-00002"),
    ),
    Case(
        "a corpus whose manifest is a list",
        CORPUS,
        "corpus/manifest.json holds no JSON object, but [] ... remove it and run the command that built the corpus: it continues",
        copies={"corpus": "corpus"},
        files={"corpus/manifest.json": "[]"},
    ),
    Case(
        "a corpus whose manifest nests without end",
        CORPUS,
        "corpus/manifest.json cannot be read as JSON (brackets are ... remove it and run the command that built the corpus: it",
        copies={"corpus": "corpus"},
        files={"corpus/manifest.json": "[" * 100_000},
    ),
    Case(
        "a corpus whose manifest is cut short",
        CORPUS,
        "corpus/manifest.json cannot be read as JSON (Expecting ',' ... remove it and run the command that built the corpus: it",
        copies={"corpus": "corpus"},
        spoil=cut("corpus/manifest.json", 20),
    ),
    Case(
        "a corpus whose manifest leaves it",
        CORPUS,
        "corpus/manifest.json names the shard '../../../shard', expected 'shard-00000-of-00002': no build writes such",
        copies={"corpus": "corpus"},
        spoil=replace("corpus/manifest.json", "shard-00000-of-00002", "../../../shard"),
    ),
    Case(
        "a corpus whose manifest names some shards only",
        CORPUS,
        "corrupted corpus: corpus/manifest.json: 1 shard, of which ... copy the whole corpus again, or remove",
        copies={"corpus": "corpus"},
        spoil=some_shards("corpus/manifest.json"),
    ),
    Case(
        "a corpus with another vocabulary",
        CORPUS,
        "corrupted corpus: corpus/tokenizer does not hold the ... for another vocabulary, build a corpus with it in another",
        copies={"corpus": "corpus"},
        spoil=turned_round("corpus/tokenizer/vocab.txt", 5),
    ),
    Case(
        "a learning rate that is not a number",
        "--config.phases.0.learning_rate=nan",
        "config.phases.0.learning_rate=nan must be a finite number, at least 0 and at most 1e+30",
    ),
    Case(
        "more steps than anyone has",
        "--config.phases.0.steps=10000000000000",
        "config.phases.0.steps=10000000000000 must be at least 1 and at most 2,147,483,647",
    ),
    Case(
        "a model wider than any machine",
        "--config.model.hidden_size=1000000000",
        "config.model.hidden_size=1000000000 must be at least 1 and at most 65,536",
    ),
    Case(
        "a workdir of another configuration",
        says="--workdir=run holds a run with another configuration: ... name another --workdir for the new configuration, or",
        files={"run/config.json": '{"written_by": "bert_jax 0.1 pretrain", "seed": 3}', "run/metrics.jsonl": "{}\n"},
        leaves=("run/.lock",),
    ),
    Case(
        "an experiment that raises",
        "--config=mine.py",
        "--config=$here/mine.py raises ZeroDivisionError; correct the file here: ... ZeroDivisionError: division by zero",
        files={"mine.py": "def get_config():\n    return 1 / 0\n"},
    ),
    Case(
        "an experiment that exits",
        "--config=mine.py",
        "--config=$here/mine.py ended the program (sys.exit(0)) instead of returning its settings; correct the file",
        files={"mine.py": "import sys\ndef get_config():\n    sys.exit(0)\n"},
    ),
    Case(
        "an experiment that imports what is not there",
        "--config=mine.py",
        "--config=$here/mine.py raises ModuleNotFoundError; correct the file ... ModuleNotFoundError: No module named 'nowhere'",
        files={"mine.py": "import nowhere\ndef get_config(): return {}\n"},
    ),
    Case("an empty workdir", "--workdir=", "--workdir is missing, for example --workdir=runs/mine"),
    Case(
        "a flag twice with different values",
        "--workdir=a --workdir=b",
        "--workdir=a and --workdir=b contradict each other; give one of them",
    ),
    Case(
        "a coordinator's port of more digits than Python reads",
        f"--coordinator=localhost:{'9' * 5000} --processes=2 --process=0",
        " must be HOST:PORT of process 0, with a port of at ... --coordinator=localhost:8476 is one",
    ),
    Case(
        "a phase of more digits than Python reads",
        f"--config.phases.{'9' * 5000}.steps=1",
        "' in config.phases; it has 0 to 1",
    ),
    Case(
        "a coordinator's port that is no port",
        "--coordinator=localhost:99999 --processes=2 --process=0",
        "--coordinator=localhost:99999 must be HOST:PORT of process 0, with a port of at ... --coordinator=localhost:8476 is one",
    ),
    Case(
        "a hang time-out that is not a number",
        "--hang-seconds=nan",
        "--hang-seconds=nan must be a finite number, above 0 and at most 1e+09",
    ),
    Case(
        "a profile of one step number",
        "--profile=10",
        "--profile=10 must be FIRST:LAST, two whole numbers, FIRST at least 0 and below LAST; 10:15 are the five",
    ),
    Case("a profile that ends before it begins", "--profile=15:10", "--profile=15:10 must be FIRST:LAST, two whole numbers"),
    Case("a profile from before the first step", "--profile=-1:3", "--profile=-1:3 must be FIRST:LAST ... FIRST at least 0"),
    Case(
        "a profile of steps after the last",
        "--profile=10:9000",
        "--profile=10:9000 ends after the last step of this run, ... name earlier steps",
    ),
    Case("a hang time-out of nothing", "--hang-seconds=0", "--hang-seconds=0 must be above 0 and at most 1e+09"),
]
TABLE = Table("pretrain", "--config=$experiment --workdir=run", CASES)
