"""(state, batch) -> (state, sums): optimizers and steps as pure functions; compiled programs and checkpoints.

In: logits and targets, gradients, the state of a run. Out: sums that add over batches, and the next state.

    optimizers.py         AdamW, LAMB and the original's Adam; what an optimizer is told of each parameter; which ones decay
    schedules.py          the learning rate as a function of the step
    layerwise_rates.py    learning rates by layer: decay, freezing, gradual unfreezing
    steps.py              train_step, eval_step, TrainState
    spikes.py             steps whose loss is a spike are left out
    data_parallel.py      gradients while the state is sharded over the data axis (ZeRO)
    compilation.py        compiles a step or loads a saved one, and logs the time
    saved_programs.py     compiled steps on disk
    checkpoints/          saves and restores the training state; the only folder that imports Orbax
"""

OPTIMIZERS = {
    "bert_adam": "bert_jax.training.optimizers:bert_adam",
    "adamw": "bert_jax.training.optimizers:adamw",
    "lamb": "bert_jax.training.optimizers:lamb",
}
"""Name in `config.optimizer.name` -> where its function is. To add an optimizer, write its function and name it here."""

SCHEDULES = {
    "original": "bert_jax.training.schedules:original",
    "linear": "bert_jax.training.schedules:linear",
    "slanted_triangular": "bert_jax.training.schedules:slanted_triangular",
    "constant": "bert_jax.training.schedules:constant",
}
"""Name of a learning-rate schedule of pretraining (`config.optimizer.schedule`, `config.phases.N.schedule`) and fine-tuning
(`config.training.schedule`) -> where its function is. To add a schedule, write its function and name it here."""
