"""Labelled tasks: official files to examples to features, and logits to scores and prediction files. numpy only.

In: the files of GLUE, SQuAD, SWAG, CoNLL, GAP, SICK, or one's own. Out: features for `examples/labelled.py`, scores of logits.

    registry.py           every task by its name
    task.py               what a task answers, and the settings of `config.task`
    examples.py           labelled examples as people wrote them: one class a kind of question
    tables.py             rows of text files, every fault named by file, line and column
    readers.py            official files of words to tag, of choices, of pronouns and of SICK
    squad.py              official files of questions
    glue.py               official files of GLUE
    catalogue.py          the same examples from TensorFlow Datasets
    own_rows.py           rows of one's own files, of tables and of JSON lines
    own_data.py           one's own data for every kind of head
    windows.py            sliding windows over a context that is too long for a row
    text_task.py          texts and pairs to classify or score
    token_task.py         words to tag
    span_task.py          questions whose answer is a span of a context
    spans.py              the logits of a span head -> answers
    choice_task.py        one of several continuations
    mention_task.py       which name a pronoun means
    scores.py             the official metrics of classification, regression and GAP
    entity_scores.py      precision, recall and F1 over entities
    squad_scores.py       the scores of SQuAD's official scripts
    baselines.py          the scores of answers that look at no text
    glue_submission.py    a submission to the leaderboard of GLUE

A task is one file. Those here are listed in `registry.py`; one of your own lies where you like, and `config.task.module=FILE`
names it. Either holds

    NAMES    the names of its tasks, what `config.task.name` may be
    KIND     of their head, a name of `heads/registry.py`: "sequence", "token", "span", "choice" or "mention"
    load     load(config, say) -> Task: the task config.name with its examples, from config.data_dir; say("...") tells of oddities

`task.Task` says what a task has to answer. Most of it is there already: `load` reads its own files into the classes of
`examples.py` and gives them to `TextTask`, `TokenTask`, `SpanTask`, `ChoiceTask` or `MentionTask`, as README shows.
"""
