"""Optimizers and training steps as pure functions, (state, batch) -> (state, sums), and the state, log, checkpoints and export of
a run.

In: an objective, batches, the state of a run. Out: the next state; metrics.jsonl, TensorBoard and other log sinks, curves.png,
log lines, checkpoints, results.json and model/.

    config.py             OptimizerConfig, SpikeConfig, LogConfig: this folder's keys of an experiment
    optimizers.py         AdamW, StableAdamW, LAMB and the original's Adam; weight decay
    schedules.py          the learning rate as a function of the step
    layerwise_rates.py    learning rates by layer: decay, freezing, gradual unfreezing
    steps.py              TrainState; Program: a step and an evaluation, as pure functions and compiled for a mesh
    spikes.py             skips steps whose loss is a spike; rolls back to an earlier state
    data_parallel.py      gradients while the state is sharded over the data axis (ZeRO)
    compilation.py        compiles a step, or saves and loads a compiled one, and logs the time
    checkpoints.py        saves, restores and checks the training state; the only module that imports Orbax
    loop.py               the training loop of `pretrain` and `finetune`: start reading here
    log.py                RunLog: lines with scores and rates; metrics.jsonl; the sinks TensorBoard, Weights & Biases, MLflow
    curves.py             curves.png, drawn from metrics.jsonl
    warm_start.py         loads the model that a run starts from
    teachers.py           checks the teacher of a distillation, and places it on the devices
    exporting.py          writes the trained model to the workdir, or to another disk if the workdir's is full
"""

OPTIMIZERS = {
    "bert_adam": "bert_jax.training.optimizers:bert_adam",
    "adamw": "bert_jax.training.optimizers:adamw",
    "lamb": "bert_jax.training.optimizers:lamb",
    "stable_adamw": "bert_jax.training.optimizers:stable_adamw",
}
"""Name in `config.optimizer.name` -> location of its function. To add an optimizer, write its function and list it here."""

SCHEDULES = {
    "original": "bert_jax.training.schedules:original",
    "linear": "bert_jax.training.schedules:linear",
    "slanted_triangular": "bert_jax.training.schedules:slanted_triangular",
    "constant": "bert_jax.training.schedules:constant",
    "warmup": "bert_jax.training.schedules:warmup",
    "cosine": "bert_jax.training.schedules:cosine",
    "1-sqrt": "bert_jax.training.schedules:one_minus_sqrt",
    "inverse_sqrt": "bert_jax.training.schedules:inverse_sqrt",
}
"""Name of a learning-rate schedule of pretraining (`config.optimizer.schedule`, `config.phases.N.schedule`) and fine-tuning
(`config.training.schedule`) -> location of its function. To add a schedule, write its function and list it here."""

SINKS = {
    "tensorboard": "bert_jax.training.log:Tensorboard",
    "wandb": "bert_jax.training.log:Wandb",
    "mlflow": "bert_jax.training.log:Mlflow",
}
"""Name in `config.log.sinks` -> location of its class. To add a log sink, write its class and list it here."""
