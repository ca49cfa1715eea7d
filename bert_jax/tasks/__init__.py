"""What fine-tuning and prediction share of each task: its rows and the reading of its logits. numpy only.

A task is one file. Those here are listed in `registry.py`; one of your own lies where you like, and `config.task.module=FILE`
names it. Either holds

    NAMES    the names of its tasks, what `config.task.name` may be
    KIND     of their head: "sequence", "token", "span", "choice" or "mention"
    load     load(config, say) -> Task: the task config.name with its examples, from config.data_dir; say("...") tells of oddities

`task.Task` says what a task has to answer. Most of it is there already: `load` reads its own files into the classes of
`examples.py` and gives them to `TextTask`, `TokenTask`, `SpanTask`, `ChoiceTask` or `MentionTask`, as README shows.
"""
