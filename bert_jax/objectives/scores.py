"""Computes scores from summed counts. Sums are divided last, so means over uneven batches and processes are exact.

The sums over one or more batches, which training and evaluation steps return, are a mapping with these keys:

    mlm_loss      sum of the cross-entropies of the predicted tokens, in nats
    mlm_correct   number of them whose most probable token is the target
    mlm_targets   number of predicted tokens
    next_token_loss, next_token_correct, next_token_targets    the same for the next tokens of a left-to-right model
    bilm_loss, bilm_correct, bilm_targets    the same for the predictions of both directions of a biLM
    skip_gram_loss, skip_gram_correct, skip_gram_targets    of the pairs of skip-gram: correct is a positive score
    nsp_loss, nsp_correct, nsp_examples    the same for next sentence prediction, absent or zero without NSP
    soft_loss     sum over the predicted tokens of the divergence from a teacher; in a distillation only
    hidden_difference, attention_divergence    sums over the `tokens`, where a distillation compares them
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

TOKENS = {"mlm": "MLM", "next_token": "next token", "bilm": "biLM", "skip_gram": "skip-gram"}
"""The predictions of tokens: the prefix of their sums and scores, and their name in logs and pictures. A run has one of them."""


def score_title(name: str) -> str:
    """The title of a score in log lines and figures, such as "MLM loss" for "mlm_loss"."""
    for prefix, shown in (TOKENS | {"nsp": "NSP"}).items():
        if name.startswith(f"{prefix}_"):
            return f"{shown} {name.removeprefix(f'{prefix}_')}"
    return name.replace("_", " ")


def token_measure(names: Collection[str]) -> str:
    """The prefix in TOKENS of the sums or scores with these `names`; "mlm" where there is none."""
    return next((measure for measure in TOKENS if f"{measure}_loss" in names), "mlm")


def summarise(sums: Mapping[str, float]) -> dict[str, float]:
    """The losses, perplexity and accuracies of summed counts. An objective without targets (of tokens or NSP) is left out; "loss"
    is the sum of both, without terms against a teacher."""
    scores = {}
    measure = token_measure(sums)
    if targets := float(sums.get(f"{measure}_targets", 0)):
        scores[f"{measure}_loss"] = float(sums[f"{measure}_loss"]) / targets
        if measure != "skip_gram":  # whose loss is no cross-entropy of a word
            scores["perplexity"] = perplexity(scores[f"{measure}_loss"])
        scores[f"{measure}_accuracy"] = float(sums[f"{measure}_correct"]) / targets
    if examples := float(sums.get("nsp_examples", 0)):
        scores["nsp_loss"] = float(sums["nsp_loss"]) / examples
        scores["nsp_accuracy"] = float(sums["nsp_correct"]) / examples
    for name, count in (("soft_loss", "mlm_targets"), ("hidden_difference", "tokens"), ("attention_divergence", "tokens")):
        if name in sums:
            scores[name] = float(sums[name]) / max(float(sums[count]), 1.0)
    if scores:
        scores["loss"] = scores.get(f"{measure}_loss", 0.0) + scores.get("nsp_loss", 0.0)
    return scores


def perplexity(loss: float) -> float:
    """exp(loss); infinity where exp would overflow."""
    return math.exp(loss) if loss < 700 else math.inf if loss >= 700 else math.nan


def unigram_baseline(target_counts: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """The accuracy and loss of the unigram distribution, which ignores the context: a model with no better scores has learned
    nothing.

    target_counts: [V], how often each token is a target in training; targets: int [...], the ids of all predictions on held-out
    rows, -1 where unused. The accuracy is that of always predicting the most frequent target; the loss is the cross-entropy with
    add-one (Laplace) smoothing, which is finite for tokens without a count.
    """
    vocabulary = target_counts.shape[0]
    used = np.asarray(targets)[np.asarray(targets) >= 0]
    if not used.size:
        raise ValueError("no targets: the unigram baseline is undefined")
    found = np.bincount(used, minlength=vocabulary)
    if found.shape[0] > vocabulary:
        raise ValueError(f"target {used.max()} is outside the vocabulary of {vocabulary} counts")
    smoothed = target_counts.astype(np.float64) + 1.0
    log_probability = np.log(smoothed) - np.log(smoothed.sum())
    return {
        "unigram_accuracy": float(found[target_counts.argmax()] / used.size),
        "unigram_loss": float(-(found @ log_probability) / used.size),
    }


def next_sentence_baseline(labels: np.ndarray) -> dict[str, float]:
    """The NSP accuracy of always predicting the more frequent label (int [...]: 0 = next sentence, 1 = random, -1 = no example);
    a model with no better accuracy has learned nothing about NSP. {} if there is no example."""
    used = np.asarray(labels)[np.asarray(labels) >= 0]
    if not used.size:
        return {}
    return {"nsp_majority_accuracy": float(np.bincount(used).max() / used.size)}
