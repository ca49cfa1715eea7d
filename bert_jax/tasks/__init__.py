"""Labelled tasks. A task turns files into examples and features, and logits into scores and prediction files. Only numpy is
used.

In: the files of GLUE, SQuAD, SWAG, CoNLL, GAP, SICK, or the user's own data. Out: features for `data/rows.py`, scores and
prediction files from logits.

    config.py             TaskConfig, OwnDataConfig: the keys of `config.task`
    task.py               Task: the interface of all tasks; loads a task by its name
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

A task is one file and one line here. To add one, as `boolq_task.py` does:

    1. write tasks/NAME_task.py, and list the names of its tasks in TASKS below. It defines
           KIND           the kind of their head in `heads.KINDS`: "sequence", "token", "span", "choice" or "mention"
           load           load(config, say) -> Task: the task `config.name` with its examples from `config.data_dir`. It reads the
                          files into the classes of `examples.py`, and passes them with a head and metrics to `TextTask`,
                          `TokenTask`, `SpanTask`, ... or to a class of its own with the methods of `task.Task`. `say("...")`
                          reports problems in the data that do not stop the run.
       A file elsewhere, for `config.task.name=FILE.py:NAME`, also defines
           NAMES          the names of its tasks; NAME is one of them
    2. write experiments/finetune/NAME.py, with the command, the hardware and the expected score in its docstring
    3. write tests/tasks/test_NAME_task.py: the examples read from a small file, their scores, and the message of each error
    4. run `python -m pytest tests/tasks tests/test_experiments.py tests/test_documentation.py`
"""

TASKS = {
    "boolq": "bert_jax.tasks.boolq_task",
    "swag": "bert_jax.tasks.choice_task",
    "codah": "bert_jax.tasks.choice_task",
    "own/choice": "bert_jax.tasks.choice_task",
    "gap": "bert_jax.tasks.mention_task",
    "squad/v1.1": "bert_jax.tasks.span_task",
    "squad/v2.0": "bert_jax.tasks.span_task",
    "own/span": "bert_jax.tasks.span_task",
    "glue/cola": "bert_jax.tasks.text_task",
    "glue/sst2": "bert_jax.tasks.text_task",
    "glue/mrpc": "bert_jax.tasks.text_task",
    "glue/stsb": "bert_jax.tasks.text_task",
    "glue/qqp": "bert_jax.tasks.text_task",
    "glue/mnli": "bert_jax.tasks.text_task",
    "glue/qnli": "bert_jax.tasks.text_task",
    "glue/rte": "bert_jax.tasks.text_task",
    "glue/wnli": "bert_jax.tasks.text_task",
    "glue/ax": "bert_jax.tasks.text_task",
    "sick/entailment": "bert_jax.tasks.text_task",
    "sick/relatedness": "bert_jax.tasks.text_task",
    "own/sequence": "bert_jax.tasks.text_task",
    "conll2003": "bert_jax.tasks.token_task",
    "wnut17": "bert_jax.tasks.token_task",
    "pos": "bert_jax.tasks.token_task",
    "own/token": "bert_jax.tasks.token_task",
}
"""Name in `config.task.name` -> location of the module, which is imported when the task is used."""
ENGLISH = tuple(name for name in TASKS if name != "pos" and not name.startswith("own/"))
"""The tasks whose data is English. Treebanks (pos) and the user's own data may be in any language."""
