"""Configurations to jitted steps and their shardings: what `pretrain` and `finetune` run, and what `aot` costs.

In: an experiment and a mesh. Out: jitted functions, live, lowered or saved.

    pretraining.py   the training and evaluation steps of pretraining, and the layout of its state
    finetuning.py    the training step and the logits of a labelled task, and the teacher of a distillation
    lowered.py       either one lowered for devices that need not be there
    saved.py         compiled steps on disk
    compilation.py   compiles a step, or loads a saved one, and logs the time
"""
