"""The parts that `bert_jax/pretrain.py` puts into the training loop.

In: an experiment and a corpus. Out: trained weights, held-out scores, log lines, results.

    inferred_settings.py   fills in model keys from the corpus or `init_from`, and shortens a warmup that is longer than its phase
    splits.py              the two splits of the corpus: checks, fingerprint, and the batches of a phase
    program.py             the program of a run: its objective, steps and layout; its FLOPs
    start.py               the initial state: random, from a model, or from another run; the teacher of a distillation
    evaluation.py          held-out scores and their baselines
    replay.py              recomputes a training step from the workdir alone
    pretraining_log.py     PretrainingLog: log lines, metrics.jsonl, the plot of the curves
    reference_curves.py    the band of an experiment's scores over seeds, and whether a run is within it
    results.py             results.json; the model to export, of the last step or from a kept checkpoint
"""
