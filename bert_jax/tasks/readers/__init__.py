"""Reads labelled data (official formats, the user's own data, TensorFlow Datasets) as the examples of `tasks/examples.py`.

In: the files of a data set. Out: lists of examples, or errors that name file, line and column.

    tables.py      text files in rows and columns
    conll.py       words and their tags in columns: CoNLL
    conllu.py      treebanks: CoNLL-U, for tagging and for `analysis`
    squad.py       questions about contexts: SQuAD 1.1 and 2.0
    swag.py        multiple choice: SWAG and CODAH
    gap.py         ambiguous pronouns: GAP
    sick.py        entailment and relatedness of sentence pairs: SICK
    glue.py        GLUE, and submissions to its leaderboard
    catalogue.py   the same data sets from TensorFlow Datasets
    own_rows.py    rows of the user's own tables, JSON, Parquet and Arrow, and the files of a split
    own_data.py    the user's own data for every kind of head

A new task reads its files in its own module with `tables.py` or `own_rows.py`, as `boolq_task.py` does."""
