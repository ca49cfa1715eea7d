"""The parts of pretraining besides the training loop, which is in `bert_jax/pretrain.py`.

In: an experiment and a corpus. Out: trained weights, held-out scores, log lines, results.

    inferred_settings.py   fills in model keys from the corpus or `init_from`, and shortens a warmup that is longer than its phase
    corpora.py             checks the two splits of the corpus against the experiment, and computes their fingerprint
    warm_start.py          initialises the parameters from an existing model
    teacher.py             loads and checks the teacher of a distillation
    program.py             the jitted training and evaluation steps, and the layout of the state
    evaluation.py          held-out scores and their baselines
    phases.py              Phase: its rows, its compiled step, its evaluation
    returns.py             goes back before a spike of the loss
    replay.py              a training step once more, from the workdir alone
    log.py                 PretrainingLog: log lines, metrics.jsonl, the plot of the curves
    reference_curves.py    the band of an experiment over seeds, and whether a run lies in it
    results.py             results.json and the exported model
    kept.py                the model of an earlier step, from a checkpoint that was kept
"""
