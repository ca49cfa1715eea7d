"""Labelled tasks: official files to examples to features, and logits to scores and prediction files. numpy only.

In: the files of GLUE, SQuAD, SWAG, CoNLL, GAP, SICK, or one's own. Out: features for `examples/labelled.py`, scores of logits.

    registry.py           every task by its name, found in the files *_task.py
    task.py               what a task answers, and the settings of `config.task`
    examples.py           labelled examples as people wrote them: one class a kind of question
    readers/              files -> examples: official formats, TensorFlow Datasets, one's own data
    windows.py            sliding windows over a context that is too long for a row
    text_task.py          texts and pairs to classify or score
    token_task.py         words to tag
    span_task.py          questions whose answer is a span of a context
    spans.py              the logits of a span head -> answers
    choice_task.py        one of several continuations
    mention_task.py       which name a pronoun means
    *_task.py             other tasks, of these kinds
    scores.py             the official metrics of classification, regression and GAP
    entity_scores.py      precision, recall and F1 over entities
    squad_scores.py       the scores of SQuAD's official scripts
    baselines.py          the scores of answers that look at no text
    glue_submission.py    a submission to the leaderboard of GLUE

A task is one file. To add one, as `boolq_task.py` does:

    1. write tasks/NAME_task.py, which the registry finds, or a file anywhere, which `config.task.module=FILE` names. It holds
           NAMES          the names of its tasks, what `config.task.name` may be
           KIND           of their head, a name of `heads/registry.py`: "sequence", "token", "span", "choice" or "mention"
           load           load(config, say) -> Task: the task config.name with its examples from config.data_dir; say("...") tells
                          of oddities. `task.Task` says what a task answers: `load` reads its files into the classes of
                          `examples.py`, and gives them with a head and scores to `TextTask`, `TokenTask`, `SpanTask`, ...
           EXPERIMENTS    the experiment of each name, for a task in this folder
    2. write experiments/finetune/NAME.py, with the command, the hardware and the score to expect in its docstring
    3. write tests/tasks/test_NAME_task.py: what is read from a small file, what is scored, and each fault's message
    4. run `python -m pytest tests/tasks tests/test_experiments.py tests/test_documentation.py`
"""
