"""The phases of arms that pretrain differently from BERT. These are arms that predict every token, and arms with ModernBERT's
recipe."""

from __future__ import annotations

from collections.abc import Sequence

from bert_jax.files import JsonObject

MASKED = 0.3
"""ModernBERT's recipe masks this fraction of the tokens."""


def every_token(lengths: tuple[int, int], learning_rate: float | None = None, *, accumulation: int = 1) -> JsonObject:
    """Returns the changes that make two phases predict every token. `lengths` are the lengths of the rows in the two phases.

    If a `learning_rate` is given, it applies to both phases, and the first phase has 28,000 steps of 32 rows instead of 7,000
    steps of 128 rows. A row of 32 tokens has 31 targets instead of 5, so many small steps learn more from the same rows than
    few large steps (`experiments/pretrain/left_to_right.py` does the same). With 128 rows and a learning rate of 1.5e-3, a
    left-to-right model only learns word frequencies.

    With `accumulation`, the second phase sums the gradients of this many microbatches. For BERT-Base, the logits of 64 rows of
    511 tokens and 30,522 pieces are 4 GB in float32. A chip with 16 GB has no room for these logits and everything else.

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


def modern_masks(length: int, packed: int = 1) -> JsonObject:
    """Returns the mask settings of ModernBERT's recipe for a phase. The rows of the phase have `length` tokens and up to
    `packed` examples.

    >>> modern_masks(128)
    {'masked_fraction': 0.3, 'max_predictions': 38}
    """
    # the number of masked tokens is rounded for each example
    return {"masked_fraction": MASKED, "max_predictions": int(MASKED * length) + packed // 2}


def modern_recipe(phases: Sequence[JsonObject]) -> JsonObject:
    """Returns ModernBERT's recipe (arXiv:2412.13663, section 2.2) for `phases`, which have steps and a length. 30 % of the
    tokens are masked, and there is no next sentence prediction. The optimizer is StableAdamW without clipping. The learning
    rate is constant after the warmup of each phase. In the last fifth of the last phase, the learning rate falls to 0 by the
    schedule "1-sqrt"."""
    *_, last = phases = [{**phase, **modern_masks(phase["length"], phase.get("packed_examples", 1))} for phase in phases]
    decay = max(1, last["steps"] // 5)
    stays = [*phases[:-1], {**last, "steps": last["steps"] - decay}]
    falls = {name: value for name, value in last.items() if name not in ("warmup_steps", "continue_schedule")}
    return {
        "examples": {"pairs": "none"},
        "optimizer": {
            "name": "stable_adamw",
            "b1": 0.9,
            "b2": 0.98,
            "epsilon": 1e-6,
            "weight_decay": 1e-5,
            "decouple_rate": True,
            "clip_norm": 0.0,
            "schedule": "constant",
        },
        "phases": [*stays, {**falls, "steps": decay, "schedule": "1-sqrt"}],
    }
