"""Builds jitted steps and their shardings from configurations, for `pretrain`, `finetune` and `aot`.

In: an experiment and a mesh. Out: functions that are jitted, lowered, or compiled on disk.

    pretraining.py   the training and evaluation steps of pretraining, and the layout of its state
    finetuning.py    the training step and the logits of a labelled task, and the teacher of a distillation
    lowered.py       the steps of either one lowered for a mesh of described devices, which need not be attached
    saved.py         compiled steps on disk
    compilation.py   compiles a step or loads a saved one, and logs the time
"""
