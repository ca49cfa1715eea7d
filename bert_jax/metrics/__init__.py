"""Computes metrics from summed counts, and writes them to files, plots and log lines.

In: sums from train and evaluation steps. Out: metrics.jsonl, TensorBoard and other log sinks, results.json, curves.png,
ledger.jsonl, log lines.

    scores.py       sums -> losses, accuracies, perplexity; unigram and NSP baselines
    ledger.py       the seconds of every activity over all starts of a run; goodput
    ledger_file.py  ledger.jsonl, which keeps them through a kill
    flops.py        the operations of a step, counted by hand
    throughput.py   rows and tokens per second, model FLOPs utilisation; the log line of a step
    profile.py      profiles of a few steps, for XProf
    writer.py       metrics.jsonl, results.json
    sinks.py        TensorBoard, Weights & Biases, MLflow: where the numbers of metrics.jsonl go too
    plots.py        curves.png
    figures.py      figures as files: PNG, PDF, SVG, with every text as it is
"""

SINKS = {
    "tensorboard": "bert_jax.metrics.sinks:Tensorboard",
    "wandb": "bert_jax.metrics.sinks:Wandb",
    "mlflow": "bert_jax.metrics.sinks:Mlflow",
}
"""Name in `config.log.sinks` -> where its class is. To add a log sink, write its class and name it here."""
