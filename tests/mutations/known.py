"""Mistakes that have passed unseen once, and mistakes that make no difference."""

from __future__ import annotations

import dataclasses

from tests.mutations.mistakes import Mistake


@dataclasses.dataclass(frozen=True)
class Equivalent:
    """A mistake that makes no difference; texts with single spaces."""

    file: str
    old: str
    new: str
    reason: str


SEEN = [
    Mistake("bert_jax/training/steps.py", 1, "dropout_seed(seed, step, microbatch)", "dropout_seed(seed, step, jnp.int32(0))"),
    Mistake("bert_jax/training/steps.py", 1, "learning_rate(state.step)", "learning_rate(state.step + 1)"),
    Mistake(
        "bert_jax/model/embeddings.py", 1, "dropout(self.layer_norm(x), Dropout(c.hidden_dropout, seed))", "self.layer_norm(x)"
    ),
    Mistake("bert_jax/model/encoder.py", 1, "(x, y, seeds[2], positions)", "(x, y, seeds[1], positions)"),
    Mistake("bert_jax/model/residual_norm.py", 1, "rate=c.hidden_dropout", "rate=c.attention_dropout"),
    Mistake("bert_jax/model/kernels/attention_tpu.py", 1, "(unit * self.plan.blocks + i) * self.plan.blocks + j", "unit"),
    Mistake("bert_jax/corpus/shard.py", 1, "return self._tokens + len(self._held)", "return len(self._held)"),
    Mistake("bert_jax/corpus/shard.py", 1, "counts += np.bincount(tokens", "counts = np.bincount(tokens"),
    Mistake(
        "bert_jax/corpus/cleaning.py", 1, "len(s) <= config.max_sentence_characters", "len(s) < config.max_sentence_characters"
    ),
    Mistake(
        "bert_jax/interop/huggingface_config.py",
        1,
        '"hidden_dropout": "hidden_dropout_prob",\n    "attention_dropout": "attention_probs_dropout_prob"',
        '"hidden_dropout": "attention_probs_dropout_prob",\n    "attention_dropout": "hidden_dropout_prob"',
    ),
    Mistake("bert_jax/prediction/forwards.py", 1, "else total / len(chosen)", "else total"),
    Mistake(
        "bert_jax/batches/source.py",
        1,
        "places[blocks == block] % plan.num_rows",
        "np.minimum(places[blocks == block], plan.num_rows - 1)",
    ),
    Mistake("bert_jax/costs/hlo.py", 1, '(1 if direction == "LE" else -1 if direction == "GE" else 0)', "0"),
    Mistake("bert_jax/examples/pairs.py", 1, "key_of(key, _CUT_B)", "key_of(key, _CUT_A)"),
    Mistake(
        "bert_jax/heads/outputs.py",
        1,
        "takes_class_weights = takes_smoothing = has_accuracy = False",
        "takes_class_weights = takes_smoothing = has_accuracy = True",
    ),
    Mistake("bert_jax/heads/outputs.py", 1, "if len(values) == 1 else", "if len(values) == 2 else"),
    Mistake("bert_jax/pretraining/phases.py", 1, "self.source.at(step - self.start", "self.source.at(step + self.start"),
    Mistake("bert_jax/runtime/workdir.py", 1, "elif (directory / METRICS).exists()", "elif directory.exists()"),
    Mistake("bert_jax/costs/estimate.py", 1, "            read += part\n", "            pass\n"),
    Mistake("bert_jax/runtime/log_setup.py", 1, "logging.getLogger(name).setLevel(logging.ERROR)", "pass"),
    Mistake("bert_jax/pretraining/evaluation.py", 1, "self._is_compiled = True", "self._is_compiled = False"),
    Mistake("bert_jax/costs/hlo.py", 1, '"f8e4m3fn": 8', '"f8e4m3fn": 9'),
    Mistake("bert_jax/analysis/comparison/figures.py", 1, 'axes.set_ylabel("head of the first model", fontsize=8)', "pass"),
    Mistake("bert_jax/heads/outputs.py", 1, "return logits >= 0", "return logits >= 1"),
    Mistake("bert_jax/runtime/restarts.py", 1, "            signal.signal(number, handler)", "            pass"),
    Mistake("bert_jax/tasks/readers/swag.py", 1, 'table.require("sent1", "sent2", *endings)', "pass"),
    Mistake("bert_jax/pretraining/log.py", 1, "self._ledger.close()", "pass"),
]
"""What passed unseen once; the test that was added holds the kind."""
EQUIVALENT: list[Equivalent] = [
    Equivalent("bert_jax/runtime/independent_processes.py", "daemon=True", "daemon=False", "__exit__ ends the thread"),
    Equivalent(
        "bert_jax/corpus/heldout.py", "hashes < heldout_limit(short)", "hashes <= heldout_limit(short)", "one hash of 2**64"
    ),
    Equivalent("bert_jax/tasks/mention_task.py", "_LEAST = 1e-15", "_LEAST = 2e-15", "its logarithm is finite all the same"),
    Equivalent(
        "bert_jax/batches/source.py",
        "return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}",
        "return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[1]}",
        "all parts have the same arrays, and there are at least two",
    ),
    Equivalent(
        "bert_jax/pretraining/log.py",
        "self.metrics = MetricsWriter(run.workdir, resume_step=step or -1) if run.is_first else None",
        "self.metrics = MetricsWriter(run.workdir, resume_step=step or -2) if run.is_first else None",
        "no record has a step below 0",
    ),
    Equivalent(
        "bert_jax/examples/packing.py",
        "dtype = np.int32 if len(lengths) < 2**31 else np.int64",
        "dtype = np.int32 if len(lengths) <= 2**31 else np.int64",
        "the last of 2**31 examples has the number 2**31 - 1",
    ),
    Equivalent(
        "bert_jax/analysis/probing/structural.py",
        'sentences = (trees["depth"][:, 0] >= 0).sum()',
        'sentences = (trees["depth"][:, 1] >= 0).sum()',
        "a sentence with a tree has at least two words",
    ),
]
"""Found by `run.py`, each with why no test could see it."""
