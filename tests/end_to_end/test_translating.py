"""A translation run from the command line. If it is stopped and started again, it ends bit for bit like an uninterrupted run.
`tests/sharding/test_translation_on_meshes.py` has the same step on eight devices and on one."""

from __future__ import annotations

import pathlib
import random
import signal

import pytest

from bert_jax.prediction import translating
from tests.end_to_end import forked
from tests.end_to_end.conftest import ASKED, command
from tests.end_to_end.forked import Signal
from tests.end_to_end.runs import (
    VOCABULARY,
    WORDS,
    assert_same_weights,
    learned,
    results,
    write_experiment,
)

EXPERIMENT = """
from bert_jax.model.config import published

def get_config():
    return {{
        "corpus": {{"directory": {corpus!r}}},
        "examples": {{"pairs": "none"}},
        "model": {{**published("transformer_base"), "vocab_size": {vocabulary_size}, "hidden_size": 16, "num_layers": 1,
                  "decoder_layers": 1, "num_heads": 2, "intermediate_size": 32, "max_position": 32, "hidden_dropout": 0.1,
                  "initializer_range": 0.1}},
        "optimizer": {{"name": "adamw", "schedule": "inverse_sqrt"}},
        "phases": [{{"steps": 6, "length": 32, "batch_size": 8, "packed_examples": 3, "learning_rate": 3e-3, "warmup_steps": 2}}],
        "evaluation": {{"every": 6, "rows": 8, "batch_size": 8}},
        "checkpoints": {{"every": 2}},
        "log_every": 1,
    }}
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The experiment of a language in which the words come in the opposite order."""
    base, rng = tmp_path_factory.mktemp("translating"), random.Random(0)
    sources = [rng.choices(WORDS.split(), k=rng.randint(3, 7)) for _ in range(80)]
    (base / "text.en").write_text("".join(f"{' '.join(words)}\n" for words in sources))
    (base / "text.de").write_text("".join(f"{' '.join(reversed(words))}\n" for words in sources))
    source, corpus = f"--source=parallel:{base / 'text.en'}:{base / 'text.de'}", base / "corpus"
    flags = (f"--vocab={VOCABULARY}", "--lowercase", f"--output={corpus}", "--eval-fraction=0.1", "--shards=2", "--workers=1")
    (built,) = forked.run(base, ("corpus", source, *flags))
    assert built.status == 0, built.output
    return write_experiment(base / "experiment.py", corpus, EXPERIMENT)


def translate_nothing() -> None:
    """Leaves out the translation of the held-out pairs at the end, whose beam search takes seconds to compile."""
    translating.held_out_scores = lambda *arguments: {}


def test_a_stopped_translation_run_resumes_bit_for_bit(experiment: pathlib.Path):
    base = experiment.parent
    workdir, whole = base / "stopped", base / "uninterrupted"
    lines = [command(experiment, at) for at in (workdir, workdir, whole)]
    stop = Signal(ASKED, argument=3, number=signal.SIGTERM)
    stopped, *done = forked.run(base, *lines, at=stop, prepare=translate_nothing)
    assert stopped.status == 128 + signal.SIGTERM, stopped.output
    for end in done:
        assert end.status == 0, end.output
    assert "resuming from step 3" in done[0].output
    assert_same_weights(workdir, whole)
    assert learned(workdir) == learned(whole)
    assert results(workdir)["eval"] == results(whole)["eval"]
