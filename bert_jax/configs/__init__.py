"""Converts experiment files and flags to frozen dataclasses. No module outside this folder handles a ConfigDict.

In: `--config=FILE[:ARG] --config.key=value`. Out: a PretrainingExperiment, a FinetuningExperiment or a StudyExperiment with
checked values.

    experiment_files.py  experiment file and `--config.key=value` -> nested values -> dataclasses; unknown keys are UserErrors
    objectives.py        the keys `objective` and `objective_options`
    pretraining.py       every key of a pretraining experiment
    finetuning.py        every key of a fine-tuning experiment
    study.py             every key of a study: arms, tasks, seeds, budget
    command_line.py      the command line of `pretrain`, `finetune` and `study`
    memory_advice.py     the settings that lower a step's memory, for the message when a step does not fit

The dataclass of a group that belongs to another folder (model, examples, optimizer, mesh, task) is defined in that folder.
"""
