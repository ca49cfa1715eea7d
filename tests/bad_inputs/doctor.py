"""Bad inputs of `doctor` that are mistakes on the command line; problems of a machine are faults in its report."""

from __future__ import annotations

from tests.bad_inputs.case import Case, Table

CASES = [
    Case("an unknown flag", "--chip=4", "unknown argument --chip=4: did you mean '--chips'?"),
    Case("an experiment that is not there", "--config=bert_bse.py",
         "--config=bert_bse.py: there is no file ... did you mean 'experiments/pretrain/bert_base.py'?"),
    Case("a key that is none", "--config.model.hiden_size=8",
         "--config.model.hiden_size=8: there is no 'hiden_size' in config.model; did you mean 'model.hidden_size'?"),
    Case("a key without its prefix", "--seed=3", "unknown argument --seed=3: did you mean --config.seed?"),
    Case("a key without an experiment", "--config.seed=1", "--config.seed needs an experiment file; add --config=FILE",
         without="--config"),
    Case("no chips", "--chips=0", "--chips=0 must be at least 1 and at most 2,147,483,647"),
    Case("figures into a directory that is not there", "--json=nowhere/a.json",
         "--json=nowhere/a.json: there is no directory nowhere (looked for in $here); create it first"),
    Case("figures into a directory itself", "--json=.",
         "--json=. cannot be written: Is a directory; choose another --json, such as out.json"),
    Case("figures into a bucket", "--json=gs://bucket/a.json", "--json=gs://bucket/a.json: this flag only accepts a local path"),
    Case("a workdir without a name", "--workdir=", "--workdir= is empty; give a name, or leave the flag out"),
    Case("a mistyped bucket", "--workdir=gs:/bucket/run", "a path in a bucket starts with gs://; did you mean gs://bucket/run?"),
    Case("a whole bucket", "--workdir=gs://bucket", "--workdir=gs://bucket is a whole bucket; name a directory or file in it"),
    Case("a process without the others", "--process=0",
         "--coordinator, --processes missing: --coordinator=HOST:PORT, --processes=N and --process=I must be given together"),
]  # fmt: skip
TABLE = Table("doctor", "--config=$experiment --workdir=run", CASES)
