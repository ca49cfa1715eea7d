"""(state, batch) -> (state, sums): losses, optimizers and steps as pure functions. No mesh, no files.

In: logits and targets, gradients, the state of a run. Out: sums that add over batches, and the next state.

    losses.py             masked language modelling and next sentence prediction, as sums
    label_losses.py       the losses of labelled tasks, as sums
    skip_gram.py          skip-gram with negative sampling, as sums
    objectives.py         Objective: the loss of a run; those of pretraining and of labelled tasks
    distillation.py       the losses of distillation in pretraining, and the objective that adds them
    optimizers.py         AdamW, LAMB and the original's Adam; which parameters decay
    schedules.py          the learning rate as a function of the step
    layerwise_rates.py    learning rates by layer: decay, freezing, gradual unfreezing
    steps.py              train_step, eval_step, TrainState
    spikes.py             steps whose loss is a spike are left out
    data_parallel.py      gradients while the state is sharded over the data axis (ZeRO)
"""
