"""Sums to numbers, and numbers to files and pictures.

In: sums of steps. Out: metrics.jsonl, TensorBoard event files, results.json, curves.png, log lines.

    scores.py     sums -> losses, accuracies, perplexity; the word-frequency baseline
    report.py     speed, utilisation and the line about them
    writer.py     metrics.jsonl, event files, results.json
    pictures.py   curves.png
"""
