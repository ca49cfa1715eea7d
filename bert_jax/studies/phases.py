"""The phases of the pretraining of arms that predict every token: left-to-right models, LSTMs and static vectors."""

from __future__ import annotations

from bert_jax.files import JsonObject


def every_token(lengths: tuple[int, int], learning_rate: float | None = None, *, accumulation: int = 1) -> JsonObject:
    """Returns the changes of two phases with rows of `lengths` tokens where every token is predicted.

    With a `learning_rate`, which applies to both phases, the first one takes 28,000 steps of 32 rows instead of 7,000 of 128: a
    row of 32 tokens has 31 targets instead of 5, so that more and smaller steps learn more from the same rows
    (`experiments/pretrain/left_to_right.py` has such rows too). With 128 rows at 1.5e-3 a left-to-right model stays on the
    plateau of word frequencies.

    With `accumulation`, the second phase sums the gradients of this many microbatches: of BERT-Base the logits of 64 rows of 511
    tokens and 30,522 pieces are 4 GB in float32, which do not fit on a chip with 16 GB together with the rest.

    >>> every_token((128, 512))
    {'0': {'max_predictions': 127}, '1': {'max_predictions': 511}}
    """
    first: JsonObject = {"max_predictions": lengths[0] - 1}
    second: JsonObject = {"max_predictions": lengths[1] - 1}
    if learning_rate:
        first |= {"steps": 28_000, "batch_size": 32, "warmup_steps": 800, "learning_rate": learning_rate}
        second |= {"learning_rate": learning_rate}
    if accumulation > 1:
        second |= {"accumulation": accumulation}
    return {"0": first, "1": second}
