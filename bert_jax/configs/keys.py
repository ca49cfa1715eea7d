"""The dotted keys of an experiment, and suggestions for unknown keys based on spelling and names in other codebases."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterator
from typing import Any

from bert_jax.interface.ranges import hints, is_group

ALIASES = {
    "zero_sharding": ("spread_state", "zero", "zero_stage"),
    "learning_rate": ("lr", "rate", "peak_lr", "peak_learning_rate"),
    "epochs": ("epoch", "num_epochs", "n_epochs", "num_train_epochs"),
    "batch_size": ("bs", "batch", "train_batch_size", "per_device_train_batch_size", "global_batch_size"),
    "weight_decay": ("wd", "decay"),
    "warmup_steps": ("warmup", "num_warmup_steps"),
    "warmup_fraction": ("warmup", "warmup_ratio", "warmup_proportion"),
    "steps": ("max_steps", "num_steps", "total_steps", "train_steps", "num_train_steps"),
    "length": ("max_length", "max_len", "max_seq_length", "seq_len", "seq_length", "sequence_length"),
    "accumulation": ("gradient_accumulation_steps", "accumulation_steps", "grad_accum", "gradient_accumulation"),
    "clip_norm": ("clip", "grad_clip", "max_grad_norm", "gradient_clip", "gradient_clipping"),
    "schedule": ("scheduler", "lr_schedule", "lr_scheduler", "lr_scheduler_type"),
    "b1": ("beta1", "adam_beta1", "adam_b1"),
    "b2": ("beta2", "adam_beta2", "adam_b2"),
    "epsilon": ("eps", "adam_epsilon"),
    "layer_norm_epsilon": ("layer_norm_eps",),
    "hidden_dropout": ("dropout", "hidden_dropout_prob"),
    "attention_dropout": ("dropout", "attention_probs_dropout_prob"),
    "num_layers": ("layers", "n_layers", "num_hidden_layers", "depth"),
    "num_heads": ("heads", "n_heads", "num_attention_heads"),
    "hidden_size": ("width", "d_model", "dim", "hidden_dim", "embed_dim"),
    "intermediate_size": ("ffn_dim", "d_ff", "feed_forward_size"),
    "max_position": ("max_position_embeddings", "max_positions"),
    "doc_stride": ("stride",),
    "max_answer": ("max_answer_tokens", "max_answer_length"),
    "max_question": ("max_query_length",),
    "max_predictions": ("max_predictions_per_seq",),
    "masking": ("whole_word", "whole_word_mask", "do_whole_word_mask", "wwm"),
    "masked_fraction": ("mlm_probability", "masked_lm_prob", "mask_prob"),
    "remat": ("rematerialisation", "rematerialization", "gradient_checkpointing"),
    "log_every": ("log_steps", "logging_steps", "log_interval"),
    "evaluation.every": ("eval_every", "eval_steps", "eval_interval"),
    "checkpoints.every": ("save_every", "save_steps", "checkpoint_every"),
    "checkpoints.keep": ("save_total_limit", "keep_checkpoints", "max_to_keep"),
    "init_from": ("init_checkpoint", "pretrained", "model_name_or_path", "checkpoint"),
    "seed": ("random_seed",),
    "data_dir": ("data", "dataset", "data_path"),
}
"""The last part of a key (the last two parts if one is ambiguous) -> its names in other codebases."""

RENAMED = {
    "skip_gram": "objective_options",
    "model.rematerialisation": "model.remat",
    "model.scan_unroll": "model.scan_layers",
    "task.module": "task.name",
    "spikes.back": "spikes.rollback_steps",
    "spikes.times": "spikes.max_rollbacks",
}
"""Old names of keys and groups -> their current names. An old name is an error that gives the current one."""


def leaf_keys(schema: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every dotted key of a config dataclass with its annotation. A list of groups only appears as its item 0, e.g.
    "phases.0.steps"."""
    for name, hint in hints(schema).items():
        inner = typing.get_args(hint)[:1]
        if is_group(hint):
            yield from leaf_keys(hint, f"{above}{name}.")
        elif inner and is_group(inner[0]):
            yield from leaf_keys(inner[0], f"{above}{name}.0.")
        else:
            yield above + name, hint


def suggested_keys(key: str, schema: Any) -> list[str]:
    """Returns the known keys similar to the unknown `key`, most similar first, or an empty list."""
    known = [name for name, _ in leaf_keys(schema)]
    group, _, last = key.replace("-", "_").lower().rpartition(".")
    ours = (last, *(name for name, others in ALIASES.items() if last in others))
    same = [name for name in known if any(f".{name}".endswith(f".{our}") for our in ours)]
    siblings = [name for name in known if name.rpartition(".")[0] == group]
    if here := [name for name in same if name in siblings] or difflib.get_close_matches(key, siblings, n=1, cutoff=0.75):
        return here
    if same:
        return sorted(same, key=lambda name: name.count("."))[:3]
    lasts = {name.rpartition(".")[2]: name for name in reversed(known)}
    groups = sorted({name.rpartition(".")[0] for name in known} - {""})
    close = difflib.get_close_matches(key, [*known, *groups], n=1, cutoff=0.75)
    return close or [lasts[name] for name in difflib.get_close_matches(last, lasts, n=1, cutoff=0.8)]


def renamed_key(key: str, schema: Any) -> str | None:
    """Returns the current name of the dotted `key` if the key or its group was renamed, otherwise None."""
    known = {name for name, _ in leaf_keys(schema)}
    for old, new in RENAMED.items():
        if new in known and (key == old or key.startswith(f"{old}.")):
            return new + key.removeprefix(old)
    return None


def did_you_mean(key: str, schema: Any, inside: Any = None) -> str:
    """Returns the end of an error message for an unknown key: its new name if it was renamed, suggested keys, or the names
    `inside` its group."""
    if now := renamed_key(key, schema):
        return f"it is now called {now!r}"
    if found := suggested_keys(key, schema):
        return f"did you mean {' or '.join(map(repr, found))}?"
    return f"valid keys: {', '.join(sorted(inside))}" if inside else "there are no keys"
