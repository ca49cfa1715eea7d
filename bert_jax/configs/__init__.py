"""Experiment files and flags to frozen dataclasses. Nothing behind this folder sees a ConfigDict.

In: `--config=FILE[:ARG] --config.key=value`. Out: a PretrainingExperiment or a FinetuningExperiment, every value checked.

    files.py         the values of an experiment file, with the keys that the command line overrides
    overrides.py     `--config.key=value`: which key, and its value by the type of the key
    keys.py          the key that was meant by an unknown one
    sections.py      nested values -> dataclasses; unknown keys, wrong types and ranges are UserErrors
    pretraining.py   every key of a pretraining experiment
    finetuning.py    every key of a fine-tuning experiment

The keys of a group that belongs to a folder (model, examples, optimizer, mesh, task) stand in that folder, as dataclasses.
"""
