"""Bad inputs of `pretrain`."""

from __future__ import annotations

from tests.bad_inputs.case import Case, Table
from tests.bad_inputs.damage import cut, flip, remove, replace, some_shards, turned_round
from tests.bad_inputs.places import modern

CORPUS = "--config.corpus.directory=corpus"
STATIC = "--config.model.encoder=static --config.model.num_layers=0 --config.examples.pairs=none"
"""Word vectors, which compile fast, for the cases whose run begins."""
TOKENS = "corpus/shard-00000-of-00002/train.tokens.npy"

CASES = [
    # ---------------------------------------------------------------------------------------------------- the command line
    Case(
        "no experiment", says="--config is missing, for example --config=experiments/pretrain/quickstart.py", without="--config"
    ),
    Case("no workdir", says="--workdir is missing, for example --workdir=runs/mine", without="--workdir"),
    Case("an unknown flag", "--confg.seed=1", "unknown argument --confg.seed=1: did you mean --config.seed?"),
    Case("a word too many", "quickstart", "unexpected 'quickstart': every argument is a flag, --name=value"),
    Case(
        "an experiment file that is not there",
        "--config=quikstart.py",
        "--config=quikstart.py: there is no file ... did you mean 'experiments/pretrain/quickstart.py'?",
    ),
    Case(
        "an experiment that is not Python",
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
        "--config=$experiment:small: its get_config does not take an argument; leave `:small` out",
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
        "an experiment file with bytes that are not text",
        "--config=$noise",
        "--config=$noise is not a Python file; an experiment file is a Python file with a function get_config()",
    ),
    Case(
        "a workdir that is a URL",
        "--workdir=s3://bucket/run",
        "--workdir=s3://bucket/run is a URL; give a local path, or gs://BUCKET/PATH for Google Cloud Storage",
    ),
    Case(
        "steps in a bucket",
        "--compiled=gs://b/steps",
        "--compiled=gs:/b/steps: this flag only accepts a local path; copy the file",
    ),
    Case(
        "a workdir in a mistyped bucket",
        "--workdir=gs:/bucket/run",
        "--workdir=gs:/bucket/run: a path in a bucket starts with gs://; did you mean gs://bucket/run?",
    ),
    Case(
        "a corpus in a mistyped bucket",
        "--config.corpus.directory=gs:bucket/corpus",
        "config.corpus.directory=gs:bucket/corpus: a path in a bucket starts with gs://; did you mean gs://bucket/corpus?",
    ),
    Case(
        "a whole bucket as the workdir",
        "--workdir=gs://bucket/",
        "--workdir=gs://bucket/ is a whole bucket; name a directory or file in it, such as gs://bucket/NAME",
    ),
    Case("an empty experiment", "--config=", "--config is missing, for example --config=experiments/pretrain/quickstart.py"),
    Case("a flag without its value", "--workdir", "argument --workdir: expected one argument"),
    Case("a key without its value", "--config.seed", "--config.seed has no value; write --config.seed=VALUE"),
    Case(
        "one process of several without the others",
        "--processes=2",
        "--coordinator, --process missing: --coordinator=HOST:PORT, --processes=N and --process=I must be given together",
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
        "--coordinator=localhost must be HOST:PORT of process 0, ... for example --coordinator=localhost:8476",
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
        f"{STATIC} --compiled=nowhere",
        "--compiled=nowhere (looked for in $here) is not a directory; make it with `python -m bert_jax.aot --save=DIR` and",
    ),
    Case(
        "a directory without compiled programs",
        f"{STATIC} --compiled=empty",
        "--compiled=empty holds no programs ... this run needs a program of its step for 1 x cpu, jax 0.10.2, jaxlib 0.10.2",
        files={"empty/x": ""},
    ),
    # -------------------------------------------------------------------------------------------------- the initial model
    Case(
        "a model that does not exist",
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
        "a model of 8,192 tokens and a corpus of another vocabulary",
        "--config=$repository/experiments/pretrain/modern_laptop.py --config.init_from=m --config.corpus.directory=$corpus",
        "config.init_from=m has a vocabulary of 97 entries, but the vocabulary of the corpus $corpus has 132; build the corpus "
        "with --vocab=m",
        files=modern(),
    ),
    Case(
        "windows wider than those of the kernel",
        "--config.model.attention=fused --config.model.layer_types=['full','sliding'] --config.model.sliding_radius=3000",
        "model.attention='fused' is not available: fused attention supports windows of up to 2,048 tokens per side, not 3,000; "
        "set model.attention to 'plain' or 'auto'",
    ),
    Case(
        "a type for another number of layers",
        "--config.model.layer_types=['full']",
        "model.layer_types lists 1 layer, but model.num_layers=2; list one type per layer, or leave layer_types out",
    ),
    Case(
        "a tiling without a model",
        "--config.init_tiled=true",
        "config.init_tiled makes a larger model from config.init_from, which is empty; name a model",
    ),
    Case(
        "a dropped part without a model",
        "--config.init_drop=pooler",
        "config.init_new and config.init_drop name parts of config.init_from, which is empty; name a model",
    ),
    Case(
        "a model with another vocabulary",
        "--config.init_from=$model",
        "config.init_from=$model has a vocabulary of 91 entries, but the vocabulary of the corpus ... build the corpus with "
        "--vocab=$model",
    ),
    # --------------------------------------------------------------------------------------------------------------- the corpus
    Case(
        "a corpus that does not exist",
        "--config.corpus.directory=nowhere",
        "corpus nowhere (looked for in $here) does not exist; build a corpus with python -m bert_jax.corpus",
    ),
    Case(
        "a corpus that is a file",
        "--config.corpus.directory=$text",
        "corpus $text is a file; give the directory that python -m bert_jax.corpus --output=DIR has written",
    ),
    Case(
        "a corpus that is another directory",
        "--config.corpus.directory=$tables",
        "$tables is not a corpus (it has no manifest.json); build a corpus with python -m bert_jax.corpus",
    ),
    # -------------------------------------------------------------------------------------------------------------- the workdir
    Case(
        "a workdir with other files",
        "--workdir=.",
        "--workdir=. holds files that are not from a run (thesis.txt); name a new or empty directory",
        files={"thesis.txt": "years of work"},
    ),
    Case(
        "a workdir under a file",
        "--workdir=file/run",
        "--workdir=file/run cannot be written (a file is in the way); name a directory that you may write to",
        files={"file": ""},
    ),
    Case(
        "a workdir that is a file",
        "--workdir=file",
        "--workdir=file cannot be written (a file is in the way); name a directory that you may write to",
        files={"file": ""},
    ),
    Case(
        "a step to replay and an experiment",
        "--replay=3",
        "--replay=3 uses the experiment of the workdir; leave --config=$experiment out",
    ),
    Case("a step to replay that is none", "--replay=0", "--replay=0 must be at least 1"),
    Case(
        "a step to replay of no run",
        "--replay=3",
        "--workdir=run (looked for in $here) holds no run; name the workdir of a run of pretrain",
        without="--config",
    ),
    Case(
        "a step to replay of a run of another command",
        "--replay=3 --workdir=$run",
        "--workdir=$run holds a run of bert_jax ... finetune; name the workdir of a run of pretrain",
        without="--config",
    ),
    Case(
        "the workdir of another command",
        "--workdir=run",
        copies="run",
        says="--workdir=run holds a run of `finetune`, not of `pretrain`; name another --workdir",
    ),
    Case(
        "a model directory for a workdir",
        "--workdir=model",
        "model holds a config.json that was not written by a run (a model directory?); name another --workdir",
        copies="model",
    ),
    Case(
        "a workdir whose configuration is damaged",
        says="run/config.json cannot be read as JSON (Expecting property name ... name another --workdir, or remove this one",
        files={"run/config.json": "{", "run/metrics.jsonl": ""},
    ),
    Case(
        "a workdir whose configuration is a list",
        says="run holds a config.json that was not written by a run (a model directory?); name another --workdir",
        files={"run/config.json": "[]", "run/metrics.jsonl": ""},
    ),
    Case(
        "a corpus with a shard cut short",
        CORPUS,
        "corrupted corpus: ... remove corpus/shard-00000-of-00002 and corpus/manifest.json,",
        copies="corpus",
        spoil=cut(TOKENS, 10),
    ),
    Case(
        "a corpus with a flipped byte",
        f"{STATIC} {CORPUS}",
        "corrupted corpus: ... remove corpus/shard-00000-of-00002 and corpus/manifest.json,",
        copies="corpus",
        spoil=flip(TOKENS, -5),
        leaves="run run/*",
    ),
    Case(
        "a corpus without a shard",
        CORPUS,
        "corrupted corpus: ... remove corpus/shard-00000-of-00002 and corpus/manifest.json, and",
        copies="corpus",
        spoil=remove("corpus/shard-00000-of-00002"),
    ),
    Case(
        "a corpus whose manifest is a list",
        CORPUS,
        "corpus/manifest.json must hold a JSON object, but holds [] ... remove it and rerun the command that built the corpus",
        copies="corpus",
        files={"corpus/manifest.json": "[]"},
    ),
    Case(
        "a corpus whose manifest nests without end",
        CORPUS,
        "corpus/manifest.json cannot be read as JSON (brackets are ... remove it and rerun the command that built the corpus",
        copies="corpus",
        files={"corpus/manifest.json": "[" * 100_000},
    ),
    Case(
        "a corpus whose manifest is cut short",
        CORPUS,
        "corpus/manifest.json cannot be read as JSON (Expecting ',' ... remove it and rerun the command that built the corpus",
        copies="corpus",
        spoil=cut("corpus/manifest.json", 20),
    ),
    Case(
        "a corpus whose manifest leaves it",
        CORPUS,
        "corpus/manifest.json names the shard '../../../shard', expected 'shard-00000-of-00002'. bert_jax never writes such",
        copies="corpus",
        spoil=replace("corpus/manifest.json", "shard-00000-of-00002", "../../../shard"),
    ),
    Case(
        "a corpus whose manifest names some shards only",
        CORPUS,
        "corrupted corpus: corpus/manifest.json: it lists 1 shard, and ... Copy the whole corpus again, or remove",
        copies="corpus",
        spoil=some_shards("corpus/manifest.json"),
    ),
    Case(
        "a corpus with another vocabulary",
        CORPUS,
        "corrupted corpus: corpus/tokenizer does not hold the ... to use another vocabulary, build another corpus with",
        copies="corpus",
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
        "config.phases.0.steps=10000000000000 must be at least 0 and at most 2,147,483,647",
    ),
    Case(
        "a model wider than any machine",
        "--config.model.hidden_size=1000000000",
        "config.model.hidden_size=1000000000 must be at least 1 and at most 65,536",
    ),
    Case(
        "a workdir of another configuration",
        says="--workdir=run holds a run with a different configuration: ... name another --workdir for the new configuration, or",
        files={"run/config.json": '{"written_by": "bert_jax 0.1 pretrain", "seed": 3}', "run/metrics.jsonl": "{}\n"},
        leaves="run/.lock",
    ),
    Case(
        "a phase that loses its corpus, maybe to another phase",
        says="--workdir=run holds a run with a different configuration: ... phases.0.corpus ... stored other, given nothing",
        files={
            "run/config.json": '{"written_by": "bert_jax 0.1 pretrain", "phases": [{"steps": 3, "corpus": "other"}]}',
            "run/metrics.jsonl": "{}\n",
        },
        leaves="run/.lock",
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
        "--config=$here/mine.py ended the program (sys.exit(0)); correct the file",
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
        " must be HOST:PORT of process 0, with a port of at ... for example --coordinator=localhost:8476",
    ),
    Case(
        "a phase of more digits than Python reads",
        f"--config.phases.{'9' * 5000}.steps=1",
        "' in config.phases; the list has the indices",
    ),
    Case(
        "a coordinator's port that is not a port",
        "--coordinator=localhost:99999 --processes=2 --process=0",
        "--coordinator=localhost:99999 must be HOST:PORT of process 0, with a port of at ... for example "
        "--coordinator=localhost:8476",
    ),
    Case(
        "a hang time-out that is not a number",
        "--hang-seconds=nan",
        "--hang-seconds=nan must be a finite number, above 0 and at most 1e+09",
    ),
    Case(
        "a profile of one step number",
        "--profile=10",
        "--profile=10 must be FIRST:LAST, two whole numbers with FIRST at least 0 and below LAST; 10:15 means the five",
    ),
    Case("a profile that ends before it begins", "--profile=15:10", "--profile=15:10 must be FIRST:LAST, two whole numbers"),
    Case("a profile from before the first step", "--profile=-1:3", "--profile=-1:3 must be FIRST:LAST ... FIRST at least 0"),
    Case(
        "a profile of steps after the last",
        "--profile=10:9000",
        "--profile=10:9000 ends after the last step of this run, ... name earlier steps",
    ),
    Case("a hang time-out of nothing", "--hang-seconds=0", "--hang-seconds=0 must be above 0 and at most 1e+09"),
    # ------------------------------------------------------------------------------------------------------------- the keys
    Case(
        "a corpus at the home of nobody",
        "--config.corpus.directory=~no.body/corpus",
        "config.corpus.directory=~no.body/corpus: there is no user 'no.body', so ~ cannot be expanded",
    ),
    Case(
        "a teacher in an unknown home",
        "--config.teacher=~/model",
        "config.teacher=~/model: HOME is not set, so ~ cannot be expanded; write the full path",
        environment={"HOME": ""},
    ),
    Case(
        "an unknown key",
        "--config.model.hiden_size=8",
        "--config.model.hiden_size=8: there is no 'hiden_size' in config.model; did you mean 'model.hidden_size'?",
    ),
    Case(
        "a key of another group",
        "--config.training.lr=1",
        "--config.training.lr=1: there is no 'training' in config; did you mean 'phases.0.learning_rate'?",
    ),
    Case(
        "a key given twice",
        "--config.phases.0.steps=10 --config.phases[0].steps=20",
        "--config.phases.0.steps=10 and --config.phases.0.steps=20 contradict each other; give one of them",
    ),
    Case(
        "a group for a key",
        "--config.model=8",
        "--config.model=8: model is a group ... set one of model.activation, model.attention,",
    ),
    Case(
        "a key below a value",
        "--config.seed.x=8",
        "--config.seed.x=8: there is no 'x' in config.seed; config.seed is a single value",
    ),
    Case(
        "a phase that is not there",
        "--config.phases.7.steps=8",
        "--config.phases.7.steps=8: there is no '7' in config.phases; the list has the indices 0 to 1",
    ),
    Case(
        "a word for a whole number",
        "--config.phases.0.steps=many",
        "--config.phases.0.steps=many: wanted a whole number, at least 0 and at most 2,147,483,647 (now 14)",
    ),
    Case(
        "a fraction for a whole number",
        "--config.phases.0.steps=1.5",
        "--config.phases.0.steps=1.5: wanted a whole number, at least 0 and at most 2,147,483,647 (now 14)",
    ),
    Case(
        "a word for a number",
        "--config.phases.0.learning_rate=fast",
        "--config.phases.0.learning_rate=fast: wanted a number, at least 0 and at most 1e+30 (now 0.003)",
    ),
    Case(
        "a word for true or false",
        "--config.mesh.zero_sharding=maybe",
        "--config.mesh.zero_sharding=maybe: wanted true or false (now True)",
    ),
    Case("the former name of a key", "--config.examples.whole_word=true", "did you mean 'examples.masking'?"),
    Case(
        "an unknown kind of masking",
        "--config.examples.masking=words_whole",
        "config.examples.masking='words_whole' is not one of tokens, whole_words, words, spans",
    ),
    Case(
        "pairs for a model whose [CLS] sees no text",
        "--config.model.direction=left_to_right --config.examples.pairs=paper",
        "config.examples.pairs=paper needs [CLS] to represent a pair ... set config.examples.pairs=none",
    ),
    Case(
        "an objective of another direction",
        "--config.objective=next_token",
        "config.objective=next_token cannot train a model with direction=both; leave it out (default: bert), or change",
    ),
    Case(
        "a kernel without a left-to-right mask",
        "--config.model.direction=left_to_right --config.model.attention=fused",
        "model.attention='fused' is not available: the fused attention kernels do not support left-to-right masks",
    ),
    Case(
        "no phases",
        "--config=mine.py",
        "the experiment has no phases, so there is nothing to train; add one to config.phases",
        files={"mine.py": "def get_config(): return {'corpus': {'directory': '$corpus'}, 'phases': []}\n"},
    ),
    Case(
        "phases that are not a list",
        "--config=mine.py",
        "config.phases must be a list of phases, not 3",
        files={"mine.py": "def get_config(): return {'corpus': {'directory': '$corpus'}, 'phases': 3}\n"},
    ),
    Case(
        "a checkpoint kept after the end",
        "--config.checkpoints.keep_at=[4,25]",
        "config.checkpoints.keep_at has step 25, but the run ends at step 24; name steps of the run",
    ),
    Case(
        "a phase without steps",
        "--config=mine.py",
        "config.phases.0 needs steps",
        files={"mine.py": "def get_config(): return {'corpus': {'directory': '$corpus'}, 'phases': [{}]}\n"},
    ),
    Case(
        "a group that is a number",
        "--config=mine.py",
        "config.model must be a group of keys, not 3",
        files={"mine.py": "def get_config(): return {'corpus': {'directory': '$corpus'}, 'model': 3}\n"},
    ),
    Case(
        "a number for a word",
        "--config=mine.py",
        "config.init_from=3 must be a str, like the default ''",
        files={"mine.py": "def get_config(): return {'corpus': {'directory': '$corpus'}, 'init_from': 3}\n"},
    ),
    Case(
        "rows longer than the position table",
        "--config.phases.0.length=65",
        "config.phases.0.length=65 is longer than the position table ... shorten the rows, or raise model.max_position",
    ),
    Case(
        "rows too short for a pair",
        "--config.phases.0.length=4",
        "config.phases.0: length=4 must be at least 5, because every row has 3 special tokens",
    ),
    Case(
        "word vectors of rows with a single word",
        f"{STATIC} --config.phases.0.length=3",
        "config.phases.0.length=3 leaves room for one token between [CLS] and [SEP], but skip-gram needs neighbours; "
        "set it to at least 4",
    ),
    Case(
        "next words of rows without a word",
        "--config.model.direction=left_to_right --config.examples.pairs=none --config.phases.0.length=2",
        "config.phases.0.length=2 must be at least 3 and at most 32,767",
    ),
    Case(
        "a batch that does not divide over the devices",
        "--config.phases.1.batch_size=9",
        "config.phases.1.batch_size=9 is not divisible by 8 devices along data x fsdp; nearest: 8 or 16",
        devices=8,
    ),
    Case(
        "a batch that is not divisible by microbatches",
        "--config.phases.0.accumulation=3",
        "config.phases.0.batch_size=8 is not divisible by 3 microbatches (accumulation)",
    ),
    Case(
        "a mesh larger than the machine",
        "--config.mesh.tensor=3",
        "mesh data=-1 x fsdp=1 x tensor=3 needs a multiple of 3 devices, but there ... set one axis to -1 to use all remaining",
    ),
    Case("a mesh of no devices", "--config.mesh.data=0", "mesh.data=0 must be at least 1, or -1 for all remaining devices"),
    Case(
        "two axes that take what is left",
        "--config.mesh.data=-1 --config.mesh.fsdp=-1",
        "only one of mesh.data, mesh.fsdp and mesh.tensor can be -1",
    ),
    Case(
        "an unknown type of reduction",
        "--config.mesh.reduce_dtype=float8",
        "config.mesh.reduce_dtype='float8' is not one of float32, bfloat16; did you mean 'float32'?",
    ),
    Case(
        "an unknown way across slices",
        "--config.mesh.across_slices=tensor",
        "config.mesh.across_slices='tensor' is not one of auto, data, fsdp",
    ),
    Case(
        "a warmup longer than its phase",
        "--config.phases.0.warmup_steps=15",
        "config.phases.0.warmup_steps=15 must be between 0 and the phase's steps=14",
    ),
    Case(
        "lengths that every phase sets",
        "--config.examples.length=64",
        "config.examples.length has no effect, because every phase sets its own; ... such as config.phases.0.length",
    ),
    Case(
        "a schedule that continues nothing",
        "--config.phases.0.continue_schedule=true",
        "config.phases.0.continue_schedule has no schedule to continue, because this is the first phase; leave it out",
    ),
    Case(
        "no steps of the whole run", "--config.steps=0", "config.steps=0 is fewer than the 2 phases; each needs at least one step"
    ),
    Case(
        "fewer steps than phases", "--config.steps=1", "config.steps=1 is fewer than the 2 phases; each needs at least one step"
    ),
    Case("no steps", "--config.phases.0.steps=0", "config.phases.0 needs steps, at least 1, or a budget in tokens"),
    Case("negative steps", "--config.phases.0.steps=-3", "config.phases.0.steps=-3 must be at least 0"),
    Case("a batch of nothing", "--config.phases.0.batch_size=0", "config.phases.0.batch_size=0 must be at least 1"),
    Case("a negative seed", "--config.seed=-1", "config.seed=-1 must be at least 0 and at most 4,294,967,295"),
    Case("a seed too large", "--config.seed=4294967296", "config.seed=4294967296 must be at least 0 and at most 4,294,967,295"),
    Case("a log of no steps", "--config.log_every=0", "config.log_every=0 must be at least 1"),
    Case("no patience for bad steps", "--config.abort_after_skipped=0", "config.abort_after_skipped=0 must be at least 1"),
    Case("an evaluation of no rows", "--config.evaluation.rows=0", "config.evaluation.rows=0 must be at least 1"),
    Case("an evaluation every 0 steps", "--config.evaluation.every=0", "config.evaluation.every=0 must be at least 1"),
    Case(
        "an evaluation batch that does not divide",
        "--config.evaluation.batch_size=9",
        "config.evaluation.batch_size=9 is not divisible by 8 devices along data x fsdp; nearest: 8 or 16",
        devices=8,
    ),
    Case("no checkpoints kept", "--config.checkpoints.keep=0", "config.checkpoints.keep=0 must be at least 1"),
    Case(
        "an unknown way to make pairs",
        "--config.examples.pairs=orignal",
        "config.examples.pairs='orignal' is not one of original, paper, successive, none; did you mean 'original'?",
    ),
    Case(
        "nothing masked",
        "--config.examples.masked_fraction=0",
        "config.examples.masked_fraction=0.0 must be above 0 and at most 1",
    ),
    Case(
        "more masked than there is",
        "--config.examples.masked_fraction=1.5",
        "config.examples.masked_fraction=1.5 must be above 0 and at most 1",
    ),
    Case(
        "probabilities above 1",
        "--config.examples.mask_probability=0.95",
        "mask_probability=0.95 and random_probability=0.1 sum to ... lower one of the two (the rest of the predicted tokens",
    ),
    Case(
        "no room for predictions of packed rows",
        "--config.phases.1.max_predictions=5",
        "max_predictions=5 is too small for packed_examples=3 at length=64: one ... set max_predictions=10 or packed_examples=1",
    ),
    Case(
        "more predictions than places",
        "--config.phases.0.max_predictions=40",
        "config.phases.0: max_predictions=40 must be at most 29, because a row of length=32 has no more",
    ),
    Case(
        "no examples in a row",
        "--config.phases.1.packed_examples=0",
        "config.phases.1.packed_examples=0 must be at least 1 and at most 4,096",
    ),
    Case(
        "a negative count of duplicates",
        "--config.examples.duplicates=-1",
        "config.examples.duplicates=-1 must be at least 0 and at most 10,000",
    ),
    Case(
        "heads that do not divide the width",
        "--config.model.num_heads=3",
        "model.hidden_size=16 is not divisible by model.num_heads=3; the nearest number of heads that divides it is 2",
    ),
    Case("a width of nothing", "--config.model.hidden_size=0", "model.hidden_size=0 must be at least 1"),
    Case("no layers", "--config.model.num_layers=0", "model.num_layers=0 must be at least 1"),
    Case("an unknown encoder", "--config.model.encoder=lstm", "model.encoder='lstm' is not one of transformer, encoder_"),
    Case(
        "static vectors with layers",
        "--config.model.encoder=static",
        "must be 0: word vectors have no layers (model.encoder=static)",
    ),
    Case(
        "characters that give no table for a tied softmax",
        "--config.model.encoder=bilm --config.model.character_cnn=true",
        "model.character_cnn=True requires model.encoder=bilm and model.tied_decoder=false",
    ),
    Case(
        "halves of an odd width",
        "--config.model.encoder=bilm --config.model.hidden_size=17",
        "model.hidden_size=17 must be even: each direction of model.encoder=bilm uses half of it; set 18",
    ),
    Case(
        "a kernel of attention for an LSTM",
        "--config.model.encoder=bilm --config.model.scan_layers=false --config.model.attention=fused",
        "model.attention=fused does not apply to model.encoder=bilm; leave it out (auto)",
    ),
    Case(
        "the objective of another model",
        "--config.model.encoder=bilm --config.examples.pairs=none --config.objective=next_token",
        "cannot train a model with encoder=bilm; leave it out (default: bilm), or change config.model.encoder",
    ),
    Case(
        "judging pairs by an LSTM",
        "--config.model.encoder=bilm --config.model.scan_layers=false --config.examples.pairs=paper",
        "but the [CLS] of model.encoder=bilm learns no such representation; set config.examples.pairs=none",
    ),
    Case(
        "negatives for BERT",
        "--config.objective_options.negatives=7",
        "--config.objective_options.negatives=7: the objective MlmNsp has no settings; leave this flag out",
    ),
    Case(
        "another name of a key",
        "--config.model.rematerialisation=full",
        "there is no 'rematerialisation' in config.model; did you mean 'model.remat'?",
    ),
    Case(
        "an unknown activation",
        "--config.model.activation=gelo",
        "model.activation='gelo' is not one of gelu, gelu_tanh, relu, silu; did you mean 'gelu'?",
    ),
    Case(
        "an unknown number type",
        "--config.model.dtype=float17",
        "model.dtype='float17' is not one of float32, bfloat16; did you mean 'bfloat16'?",
    ),
    Case(
        "an unknown attention",
        "--config.model.attention=flash",
        "config.model.attention='flash' is not one of auto, fused, plain",
    ),
    Case(
        "fused attention on a CPU",
        "--config.model.attention=fused",
        "model.attention='fused' is not available: fused attention needs a TPU or ... set model.attention to 'plain' or 'auto'",
    ),
    Case("an unknown remat", "--config.model.remat=some", "config.model.remat='some' is not one of none, dots, full"),
    Case(
        "dropout of everything",
        "--config.model.hidden_dropout=1",
        "config.model.hidden_dropout=1.0 must be at least 0 and below 1",
    ),
    Case(
        "negative dropout",
        "--config.model.attention_dropout=-0.1",
        "config.model.attention_dropout=-0.1 must be at least 0 and below 1",
    ),
    Case(
        "no layer in a step of the loop",
        "--config.model.layers_per_scan_step=0",
        "config.model.layers_per_scan_step=0 must be at least 1 and at most 10,000",
    ),
    Case(
        "an unknown optimizer",
        "--config.optimizer.name=adan",
        "optimizer.name='adan' is not one of bert_adam, adamw, lamb, stable_adamw; did you mean 'adamw'?",
    ),
    Case("a decay rate of 1", "--config.optimizer.b2=1", "config.optimizer.b2=1.0 must be at least 0 and below 1"),
    Case(
        "a negative weight decay",
        "--config.optimizer.weight_decay=-0.1",
        "config.optimizer.weight_decay=-0.1 must be at least 0 and at most 1,000",
    ),
    Case(
        "a negative clip norm",
        "--config.optimizer.clip_norm=-1",
        "config.optimizer.clip_norm=-1.0 must be at least 0 and at most 1e+30",
    ),
    Case(
        "another size of vocabulary",
        "--config.model.vocab_size=7",
        "config.model.vocab_size=7, but the vocabulary of the corpus ... or build the corpus with the model's vocabulary",
    ),
    # -------------------------------------------------------------------------------------------------------------- the teacher
    Case(
        "a teacher that is not there",
        "--config.teacher=no_such_model",
        "there is no no_such_model ... name a directory that holds config.json and model.safetensors, a",
    ),
    Case(
        "a teacher that predicts no words",
        "--config.teacher=$classifier",
        "config.teacher=$classifier has no trained mlm_head, so it cannot predict masked words; use a pretrained model with one",
    ),
    Case(
        "a teacher with another vocabulary",
        "--config.teacher=$model",
        "config.teacher=$model has a different vocabulary than the corpus ... build the corpus with --vocab=$model",
    ),
    Case(
        "a teacher of masked words for a model that reads from left to right",
        "--config.teacher=$model --config.model.direction=left_to_right --config.examples.pairs=none",
        "config.teacher=$model predicts masked words, but a model with direction=left_to_right and encoder=transformer does "
        "not; set direction=both and encoder=transformer, or leave the teacher out",
    ),
    Case(
        "a teacher of masked words for a biLM",
        "--config.teacher=$model --config.model.encoder=bilm --config.examples.pairs=none",
        "config.teacher=$model predicts masked words, but a model with direction=both and encoder=bilm does not; set",
    ),
    Case(
        "a distillation without a teacher",
        "--config.distillation.temperature=3",
        "config.distillation has settings but there is no teacher; name one in config.teacher",
    ),
    Case(
        "a teacher without weight",
        "--config.teacher=$model --config.distillation.soft_weight=0",
        "config.teacher=$model has no effect, because soft_weight, hidden_weight and attention_weight of config.distillation are",
    ),
    Case(
        "attention maps that are not held",
        "--config.teacher=$model --config.distillation.attention_weight=1 --config.model.scan_layers=true",
        "config.distillation.attention_weight=1.0 compares attention maps ... set these, or set attention_weight=0",
    ),
]
TABLE = Table("pretrain", "--config=$experiment --workdir=run", CASES)
