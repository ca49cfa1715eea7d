"""Computes metrics from summed counts, and writes them to files, plots and log lines.

In: sums from train and evaluation steps. Out: metrics.jsonl, TensorBoard event files, results.json, curves.png, log lines.

    scores.py      sums -> losses, accuracies, perplexity; unigram and NSP baselines
    throughput.py  rows and tokens per second, model FLOPs utilisation; the log line of a step
    writer.py      metrics.jsonl, event files, results.json
    plots.py       curves.png
"""
