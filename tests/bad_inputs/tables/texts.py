"""Bad inputs of `tasks.texts`."""

from __future__ import annotations

from tests.bad_inputs.case import Case, Table

CASES = [
    Case("no task", says="the following arguments are required: --task"),
    Case("a task that is none", "--task=glue/sst", "--task='glue/sst' is no task; did you mean 'glue/sst2'?"),
    Case(
        "no files of the task",
        "--task=sick/entailment --data-dir=nowhere",
        "--data-dir=nowhere ... is not there; give the directory that holds the files of sick/entailment",
    ),
    Case(
        "texts of one's own",
        "--task=own/sequence",
        "--task=own/sequence has its texts in your own files; give them to bert_jax.corpus with --source=jsonl:FILE",
    ),
]

TABLE = Table("tasks.texts", "--output=texts.jsonl", CASES)
