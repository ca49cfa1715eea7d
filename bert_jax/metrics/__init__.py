"""Computes metrics from summed counts, and writes them to files, plots and log lines.

In: sums from train and evaluation steps. Out: metrics.jsonl, TensorBoard event files, results.json, curves.png, ledger.jsonl,
log lines.

    scores.py       sums -> losses, accuracies, perplexity; unigram and NSP baselines
    ledger.py       the seconds of every activity over all starts of a run; goodput
    ledger_file.py  ledger.jsonl, which keeps them through a kill
    flops.py        the operations of a step, counted by hand
    throughput.py   rows and tokens per second, model FLOPs utilisation; the log line of a step
    profile.py      profiles of a few steps, for XProf
    writer.py       metrics.jsonl, event files, results.json
    plots.py        curves.png
    figures.py      figures as files: PNG, PDF, SVG, with every text as it is
"""
