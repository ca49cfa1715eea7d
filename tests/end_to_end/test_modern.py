"""A tiny ModernBERT with a byte-level vocabulary, from text to answers: layers of different types in a scan (prefix, period,
remainder), windows, packed rows, texts near the length limit. `tests/test_commands_and_kinds.py` has each command on each kind of
model."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.end_to_end import forked
from tests.end_to_end.forked import Commands, Surroundings
from tests.end_to_end.runs import REPOSITORY, results, write_text

EXPERIMENT = """
from bert_jax.model.config import modern_block

def get_config():
    types = ("full", "sliding", "sliding", "full", "sliding", "sliding", "full", "sliding")
    row = {"length": 64, "batch_size": 4, "max_predictions": 24, "masked_fraction": 0.3, "learning_rate": 1e-3}
    return {
        "corpus": {"directory": "corpus"}, "examples": {"pairs": "none", "masking": "whole_words"},
        "model": modern_block(8, radius=2) | {"layer_types": types, "num_layers": 8, "hidden_size": 8, "num_heads": 2,
            "intermediate_size": 12, "max_position": 64, "scan_layers": True},
        "phases": [{"steps": 2, "packed_examples": 3, **row}], "evaluation": {"rows": 8, "batch_size": 8}, "log_every": 1,
    }
"""
ROWS = {
    "token": {"words": ["The", "river", "of", "paris"], "labels": ["O", "B-X", "O", "B-Y"]},
    "sequence": {"text": "the river", "label": "water"},
}
TUNE = f"""finetune --config={REPOSITORY}/experiments/finetune/own_text.py --config.init_from=two --config.task.length=16
    --config.training.batch_size=2 --config.training.epochs=1"""
LONG = "the river of paris " * 9
LINES = {
    "corpus": "corpus --source=text:corpus.txt --train-vocab=bpe --vocab-size=320 --output=corpus --eval-fraction=0.2 --shards=1",
    "pretrain": "pretrain --config=modern.py --workdir=run",
    "score": f"predict score --model=run 'the river' '{LONG}'",
    "too long": f"predict embed --model=run '{LONG * 3}'",
    "wider": "convert --from=run --to=wider --max-position=128 --rope-theta=80000,20000 --window=8",
    "embed": f"predict embed --model=wider '{LONG * 2}'",
    "two": "convert --from=run --to=two --layers=2",
    **{
        name: f"{TUNE} --workdir={name} --config.task.name=own/{name} --config.task.own.train={name}.jsonl "
        f"--config.task.own.dev={name}.jsonl"
        for name in ROWS
    },
    "tag": "predict tag --model=token --json 'the river'",
    "classify": "predict classify --model=sequence --json 'the river'",
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    base = tmp_path_factory.mktemp("modern")
    write_text(base / "corpus.txt", documents=40)
    (base / "modern.py").write_text(EXPERIMENT)
    for name, row in ROWS.items():
        (base / f"{name}.jsonl").write_text(4 * (json.dumps(row) + "\n") + json.dumps(row).replace("water", "land") + "\n")
    ends = forked.run(base / "said", *(shlex.split(line) for line in LINES.values()), around=Surroundings(directory=base))
    return Commands(base, dict(zip(LINES, ends, strict=True)))


def test_a_modern_model_is_trained_queried_and_widened_and_refuses_texts_beyond_its_rows(done: Commands):
    failed = {name: end.output for name, end in done.ends.items() if end.status != 0}
    assert failed.keys() == {"too long"}, failed
    assert "more than the 64" in failed["too long"]
    assert "Traceback" not in failed["too long"]


def test_word_perplexity_is_reported_for_a_byte_level_vocabulary(done: Commands):
    assert "word_perplexity" in str(results(done.base / "run"))


def test_a_modern_model_is_fine_tuned_on_words_and_on_texts_and_asked(done: Commands):
    heads = {"token": "TokenClassification", "sequence": "SequenceClassification"}
    for name, kind in heads.items():
        fields = json.loads((done.base / name / "model" / "config.json").read_text())
        assert fields["architectures"] == [f"ModernBertFor{kind}"]
        assert fields["layer_types"] == ["full_attention", "sliding_attention"]
    assert "the layers before the classifier are initialised from the MLM head" in done.ends["sequence"].output
    tagged, classified = (json.loads(done.ends[name].output.splitlines()[-1]) for name in ("tag", "classify"))
    assert [word["word"] for word in tagged["tags"]] == ["the", "river"]
    assert classified["label"] in ("water", "land")
