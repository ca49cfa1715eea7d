"""The parts of the training loop for `bert_jax/pretrain.py`.

In: an experiment and a corpus. Out: trained weights, held-out scores, log lines, results.

    inferred_settings.py   fills in model keys from the corpus or `init_from`, and shortens a warmup that is longer than its phase
    splits.py              the two splits of the corpus: checks, fingerprint, and the batches of a phase
    program.py             the program of a run: its objective, steps and layout; its FLOPs
    branch.py              starts a run from the state of another run
    start.py               the first state, random or from an existing model; the teacher of a distillation
    evaluation.py          held-out scores and their baselines
    replay.py              recomputes a training step from the workdir
    pretraining_log.py     PretrainingLog: log lines, metrics.jsonl, the plot of the curves
    reference_curves.py    the band of an experiment over seeds, and whether a run is within it
    results.py             results.json and the exported model
    checkpointed_model.py  the model of an earlier step, from a kept checkpoint
"""
