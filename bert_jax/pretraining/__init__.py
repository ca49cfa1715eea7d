"""Pretraining. `bert_jax/pretrain.py` puts the parts of this package into the training loop.

In: an experiment and a corpus. Out: trained weights, held-out scores, log lines, results.

    inferred_settings.py   fills in model keys from the corpus or `init_from`, and shortens a warmup that is longer than its phase
    splits.py              checks and fingerprint of the two splits of the corpus, and the batches of a phase
    program.py             the program of a run (objective, steps and layout), and the FLOPs of a run
    start.py               the initial state (random, from a model, or from another run), and the teacher of a distillation
    evaluation.py          held-out scores and their baselines
    replay.py              recomputes a training step from the workdir and the corpus
    pretraining_log.py     PretrainingLog: log lines, metrics.jsonl, the plot of the curves
    reference_curves.py    the band of an experiment's scores over seeds, and whether a run is within it
    results.py             results.json, and the model to export (from the last step or from a kept checkpoint)
"""
