"""(state, batch) -> (state, sums): optimizers and steps as pure functions; the state, log, checkpoints and export of a run.

In: an objective, batches, the state of a run. Out: the next state; metrics.jsonl, TensorBoard event files, curves.png, log lines,
checkpoints, results.json and model/.

    optimizers.py         AdamW, LAMB and the original's Adam; which parameters decay
    schedules.py          the learning rate as a function of the step
    layerwise_rates.py    learning rates by layer: decay, freezing, gradual unfreezing
    steps.py              train_step, eval_step, TrainState
    spikes.py             steps whose loss is a spike are left out
    data_parallel.py      gradients while the state is sharded over the data axis (ZeRO)
    compilation.py        compiles a step or loads a saved one, and logs the time
    saved_programs.py     compiled steps on disk
    checkpoints/          saves and restores the training state; the only folder that imports Orbax
    saving.py             saves checkpoints, and records failed saves in metrics.jsonl
    step_sums.py          the sums of the steps since the last log line; ends a run that diverges
    throughput.py         rows and tokens per second, model FLOPs utilisation; the log line of a step
    metrics.py            metrics.jsonl and TensorBoard event files
    curves.py             curves.png, drawn from metrics.jsonl
    exporting.py          writes the trained model to the workdir, or to another disk where that one is full
"""
