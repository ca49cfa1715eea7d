"""Labelled tasks. A task turns files into examples and features, and logits into scores and prediction files. Only numpy is
used.

In: the files of GLUE, SQuAD, SWAG, CoNLL, GAP, SICK, or the user's own data. Out: features for `data/rows.py`, scores and
prediction files from logits.

    registry.py           the tasks by name, found in the files *_task.py
    config.py             TaskConfig, OwnDataConfig: the keys of `config.task`
    task.py               Task: the interface of all tasks
    examples.py           labelled examples before tokenisation: one class for each kind of task
    readers/              files -> examples: official formats, TensorFlow Datasets, the user's own data
    text_task.py          classification and regression of texts and pairs: GLUE, SICK
    token_task.py         token classification: named entities, parts of speech
    span_task.py          extractive question answering: SQuAD
    spans.py              sliding windows over a context that is longer than a row, and answers from the logits of a span head
    choice_task.py        multiple choice: SWAG, CODAH
    mention_task.py       pronoun resolution: GAP
    *_task.py             other tasks of these kinds
    scores.py             the official metrics, except for entities, and the scores of constant predictions
    published.py          the published scores of other systems, from published.json
    entity_scores.py      precision, recall and F1 over entities
    glue_submission.py    a submission to the leaderboard of GLUE
    texts.py              the texts of a task's training examples, for a corpus

A task is one file. To add one, as `boolq_task.py` does:

    1. write tasks/NAME_task.py, which the registry finds, or a file elsewhere, for `config.task.name=FILE.py:NAME`. It defines
           NAMES          the names of its tasks, which are the values of `config.task.name`; NAME is one of them
           KIND           the kind of their head in `heads.KINDS`: "sequence", "token", "span", "choice" or "mention"
           load           load(config, say) -> Task: the task `config.name` with its examples from `config.data_dir`. It reads the
                          files into the classes of `examples.py`, and passes them with a head and metrics to `TextTask`,
                          `TokenTask`, `SpanTask`, ... or to a class of its own with the methods of `task.Task`. `say("...")`
                          reports problems in the data that do not stop the run.
           EXPERIMENTS    the experiment of each name, for a task in this folder
    2. write experiments/finetune/NAME.py, with the command, the hardware and the expected score in its docstring
    3. write tests/tasks/test_NAME_task.py: the examples read from a small file, their scores, and the message of each error
    4. run `python -m pytest tests/tasks tests/test_experiments.py tests/test_documentation.py`
"""
