"""A tiny ModernBERT with a byte-level vocabulary, from text to answers: layers of different types in a scan (prefix, period,
remainder), windows, packed rows, texts near the length limit. A larger model starts as a tiling of it.
`tests/test_commands_and_kinds.py` has each command on each kind of model."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

from bert_jax.interop.huggingface import import_model
from bert_jax.interop.tiling import tiled
from tests.end_to_end import forked
from tests.end_to_end.forked import Commands, Surroundings
from tests.end_to_end.runs import REPOSITORY, records, results, write_text

EXPERIMENT = """
from bert_jax.model.config import modern_block

def get_config():
    types = ("full", "sliding") * 3
    row = {"length": 64, "batch_size": 4, "max_predictions": 24, "masked_fraction": 0.3, "learning_rate": 1e-3}
    return {
        "corpus": {"directory": "corpus"}, "examples": {"pairs": "none", "masking": "whole_words"},
        "model": modern_block(6, radius=2) | {"layer_types": types, "num_layers": 6, "hidden_size": 8, "num_heads": 2,
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
LARGE = """pretrain --config=modern.py --config.init_from=run --config.model.hidden_size=16 --config.model.intermediate_size=20
    --config.model.num_layers=8"""
TYPES = """'--config.model.layer_types=["full","full","sliding","full","sliding","full","sliding","sliding"]'"""
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
    "large": f"{LARGE} --workdir=large --config.model.num_heads=4 {TYPES} --config.init_tiled=true",
    "unasked": f"{LARGE} --workdir=unasked --config.model.num_heads=4 {TYPES}",
    "heads": f"{LARGE} --workdir=heads --config.model.num_heads=2 {TYPES} --config.init_tiled=true",
    "smaller": "pretrain --config=modern.py --workdir=smaller --config.init_from=run --config.init_tiled=true "
    """--config.model.num_layers=2 '--config.model.layer_types=["full","sliding"]'""",
    "types": f"{LARGE} --workdir=types --config.model.num_heads=4 --config.init_tiled=true",
    "tag": "predict tag --model=token --json 'the river'",
    "classify": "predict classify --model=sequence --json 'the river'",
}
REFUSED = {
    "too long": "more than the 64",
    "unasked": "to initialise a larger model by tiling, give --config.init_tiled=True",
    "heads": "are 8 wide, but the heads of",
    "smaller": "config.model.num_layers=2 is smaller than the 6 of",
    "types": "model.layer_types lists 6 layers, but model.num_layers=8",
}
"""Commands -> a part of the error."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    base = tmp_path_factory.mktemp("modern")
    write_text(base / "corpus.txt", documents=40)
    (base / "modern.py").write_text(EXPERIMENT)
    for name, row in ROWS.items():
        (base / f"{name}.jsonl").write_text(4 * (json.dumps(row) + "\n") + json.dumps(row).replace("water", "land") + "\n")
    ends = forked.run(base / "said", *(shlex.split(line) for line in LINES.values()), around=Surroundings(directory=base))
    return Commands(base, dict(zip(LINES, ends, strict=True)))


def test_a_modern_model_is_trained_queried_widened_and_tiled(done: Commands):
    failed = {name: end.output for name, end in done.ends.items() if end.status != 0}
    assert failed.keys() == REFUSED.keys(), failed


@pytest.mark.parametrize("name", REFUSED)
def test_texts_beyond_the_rows_and_models_that_cannot_be_tiled_are_refused_in_one_sentence(done: Commands, name: str):
    end = done.ends[name]
    assert end.status == (1 if name == "too long" else 2)
    assert REFUSED[name] in end.output.splitlines()[-1]
    assert "Traceback" not in end.output


def test_training_starts_from_the_tiled_model(done: Commands):
    output = done.ends["large"].output
    assert "tiling" in output
    assert "6 layers, 8 wide, 2 heads, to 8 layers, 16 wide, 4 heads" in output
    large = import_model(done.base / "large")
    begun = tiled(import_model(done.base / "run"), large.config)
    found, first = (model.params["encoder"]["layers"]["feed_forward"]["gate"]["kernel"] for model in (large, begun))
    assert found.shape == first.shape == (8, 16, 20)
    moved = np.abs(found - first)
    assert 0 < moved.max() < 0.02  # two steps of at most 3.2e-3, not random weights
    assert {record["step"] for record in records(done.base / "large")} >= {1, 2}
    assert large.config.layer_types == ("full", *("full", "sliding") * 3, "sliding")


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
