"""Bad inputs of `tasks.glue_submission` and `tasks.texts`."""

from __future__ import annotations

from tests.bad_inputs.case import Case, Table

ROWS = "index\tprediction\n" + "".join(f"{i}\t0\n" for i in range(1063))

SUBMISSION = [
    Case("no directory", says="the following arguments are required: DIR"),
    Case("no output", "a", "the following arguments are required: --output", without="--output"),
    Case("an unknown flag", "a --partal", "unknown argument --partal: did you mean '--partial'?"),
    Case("a directory that is not there", "nowhere",
         "there is no directory nowhere (looked for in $here); give the directories with predictions"),
    Case("a directory without predictions", "a",
         "no directory has one of CoLA.tsv, SST-2.tsv, MRPC.tsv, STS-B.tsv, ... give the directories with predictions",
         files={"a/notes.txt": ""}),
    Case("one task in two directories", "a b",
         "b/CoLA.tsv and a/CoLA.tsv both have the predictions of CoLA; give one of the two directories",
         files={"a/CoLA.tsv": ROWS, "b/CoLA.tsv": ROWS}),
    Case("some tasks only", "a",
         "the submission lacks SST-2, MRPC, STS-B, QQP, MNLI-m, MNLI-mm, QNLI, ... the leaderboard only accepts all 11 files "
         "together", files={"a/CoLA.tsv": ROWS}),
    Case("no such column", "a", "a/CoLA.tsv, line 1: there is no column 'index'; did you mean 'id'?",
         files={"a/CoLA.tsv": "id\tprediction\n0\t1\n"}),
    Case("a row out of order", "a", "a/CoLA.tsv, line 2: index is '1', not 0; give one row per test example, in order",
         files={"a/CoLA.tsv": "index\tprediction\n1\t1\n"}),
    Case("too few rows", "a --partial",
         "CoLA has 1 prediction, but the official test set has 1,063 rows; predict every row of the test set",
         files={"a/CoLA.tsv": "index\tprediction\n0\t1\n"}),
    Case("a label that the task has not", "a --partial", "prediction 5 of CoLA is '2', not one of 0, 1",
         files={"a/CoLA.tsv": ROWS.replace("\n5\t0\n", "\n5\t2\n")}),
    Case("a word for a number", "a --partial",
         "a/STS-B.tsv, line 2: prediction is 'good', not a number; correct the row, or remove it",
         files={"a/STS-B.tsv": "index\tprediction\n0\tgood\n"}),
    Case("an empty file", "a --partial", "a/CoLA.tsv is empty; fetch it again, or give another file", files={"a/CoLA.tsv": ""}),
    Case("bytes that are not text", "a --partial",
         "a/CoLA.tsv, line 2: byte 20 of the file (0xe9) is not UTF-8; convert it (iconv -f WINDOWS-1252 -t UTF-8, if",
         files={"a/CoLA.tsv": b"index\tprediction\n0\t\xe9\n"}),
    Case("an output under a file", "a --partial --output=file/s",
         "file/s cannot be written: Not a directory; choose another directory", files={"a/CoLA.tsv": ROWS, "file": ""}),
]  # fmt: skip
TEXTS = [
    Case("no task", says="the following arguments are required: --task"),
    Case("a task that is none", "--task=glue/sst", "--task='glue/sst' is not a task; did you mean 'glue/sst2'?"),
    Case("no files of the task", "--task=sick/entailment --data-dir=nowhere",
         "--data-dir=nowhere ... does not exist; give the directory that holds the files of sick/entailment"),
    Case("an output that cannot be written, before the data is read", "--task=sick/entailment --data-dir=nowhere --output=.",
         "--output=. cannot be written: Is a directory; choose another --output, such as out.jsonl"),
    Case("texts of one's own", "--task=own/sequence",
         "the texts of --task=own/sequence are in your own files; pass the files to bert_jax.corpus as --source=jsonl:FILE"),
]  # fmt: skip
TABLES = [
    Table("tasks.glue_submission", "--output=submission", SUBMISSION),
    Table("tasks.texts", "--output=texts.jsonl", TEXTS),
]
