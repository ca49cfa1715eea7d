"""The parts of pretraining beside its loop, which is `bert_jax/pretrain.py`.

In: an experiment and a corpus. Out: trained weights, held-out scores, log lines, results.

    inferred_settings.py   the keys that follow from the corpus or from `init_from` where they are not given
    corpora.py             the two splits of the corpus: whether they suit the experiment, their fingerprint
    warm_start.py          the weights of an existing model as the start
    evaluation.py          held-out scores beside their baselines
    phases.py              Phase: its rows, its compiled step, its evaluation
    log.py                 PretrainingLog: lines, metrics.jsonl, the picture
    results.py             results.json and the exported model
"""
