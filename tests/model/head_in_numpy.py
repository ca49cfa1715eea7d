"""Computes the outputs of every labelled head for a single text, step by step in numpy and float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from bert_jax.model.heads.head import TaskHead


def head_logits(head: TaskHead, params: dict[str, Any], states: np.ndarray, mentions: np.ndarray | None = None) -> np.ndarray:
    """Returns logits [C], or [n, C] for a token or span head, from the hidden states [N+1, n, D] of a text; `mentions` [3] are
    positions from the text's first token."""
    own = params[head.subtree]
    states = states.astype(np.float64)
    x = added = chosen(head, own, states)
    if head.mix_at != "input":
        x = states[0] if head.mix_at == "output" else x
        added = chosen(head, {"mix": own.get("output_mix" if head.mix_at == "both" else "mix")}, states)
    if head.lstm:
        for layer in ("lower", "upper"):
            inputs, kernel = own["lstm"][f"{layer}_input"], own["lstm"][f"{layer}_recurrence"]["kernel"]
            x = np.concatenate([one_direction(x, inputs, kernel, direction) for direction in (0, 1)], -1)
    if head.mix_at != "input":
        x = np.concatenate([x, added], -1)
    ends = np.concatenate([x[-1, : head.lstm], x[0, head.lstm :]])  # with an LSTM: where each direction has read the whole text
    if head.kind == "mention":
        m0, ma, mb = x[mentions]
        x = np.concatenate([m0, ma, mb, m0 * ma, m0 * mb])
    elif head.pooling == "concat":
        x = np.concatenate([ends if head.lstm else x[0], x.mean(0), x.max(0)])
    elif head.pooling == "last_token":
        x = x[-1]
    elif head.kind == "sequence" and head.lstm:
        x = ends
    elif head.kind in ("sequence", "choice"):
        x = np.tanh(x[0] @ params["pooler"]["dense"]["kernel"] + params["pooler"]["dense"]["bias"])
    return x @ own["dense"]["kernel"] + own["dense"]["bias"]


def chosen(head: TaskHead, own: dict[str, Any], states: np.ndarray) -> np.ndarray:
    """Returns the head's input for each token, [n, I]."""
    n = len(states) - 1
    match head.layers:
        case "last":
            return states[n]
        case "second_to_last":
            return states[n - 1]
        case "embeddings":
            return states[0]
        case "last_four_sum":
            return states[n - 3] + states[n - 2] + states[n - 1] + states[n]
        case "all_sum":
            return sum(states[i] for i in range(1, n + 1))
        case "last_four_concat":
            return np.concatenate([states[n - 3], states[n - 2], states[n - 1], states[n]], -1)
        case "embeddings_and_last":
            return np.concatenate([states[0], states[n]], -1)
    mixed = list(states) if head.layers == "scalar_mix" else [states[i] for i in range(n - 3, n + 1)]
    shares = np.exp(np.float64(own["mix"]["weights"]))
    return own["mix"]["gamma"] * sum(w * h for w, h in zip(shares / shares.sum(), mixed, strict=True))


def one_direction(x: np.ndarray, inputs: dict[str, np.ndarray], kernel: np.ndarray, direction: int) -> np.ndarray:
    """Runs an LSTM over x [n, I] from its first token to its last (`direction` 0) or back (1) -> [n, W]."""
    h = c = np.zeros(kernel.shape[1])
    outputs = np.zeros((len(x), h.size))
    for t in range(len(x))[:: 1 - 2 * direction]:
        outside = np.einsum("i,igw->gw", x[t], inputs["kernel"][:, direction]) + inputs["bias"][direction]
        i, f, g, o = outside + np.einsum("z,zgw->gw", h, kernel[direction])
        c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)
        outputs[t] = h = sigmoid(o) * np.tanh(c)
    return outputs


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Returns 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))
