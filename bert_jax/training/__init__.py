"""(state, batch) -> (state, sums): optimizers and steps as pure functions; compiled programs and checkpoints.

In: logits and targets, gradients, the state of a run. Out: sums that add over batches, and the next state.

    optimizers.py         AdamW, LAMB and the original's Adam; which parameters decay
    schedules.py          the learning rate as a function of the step
    layerwise_rates.py    learning rates by layer: decay, freezing, gradual unfreezing
    steps.py              train_step, eval_step, TrainState
    spikes.py             steps whose loss is a spike are left out
    data_parallel.py      gradients while the state is sharded over the data axis (ZeRO)
    compilation.py        compiles a step or loads a saved one, and logs the time
    saved_programs.py     compiled steps on disk
    checkpoints/          saves and restores the training state; the only folder that imports Orbax
"""
