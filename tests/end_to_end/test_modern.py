"""A tiny ModernBERT with a byte-level vocabulary through every command, with training: unlike layers in a scan as prefix, period
and remainder, windows, texts near the length limit. `tests/test_commands_and_kinds.py` has each command on each kind of model."""

from __future__ import annotations

import json
import pathlib
import shlex

import pytest

from tests.end_to_end import forked
from tests.end_to_end.forked import Commands, Surroundings
from tests.end_to_end.runs import REPOSITORY, results, write_text
from tests.end_to_end.toy_tasks import pronouns
from tests.test_commands_and_kinds import FILES

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
LONG = "the river of paris " * 9
TASKS = {"sequence": "class", "token": "tag", "span": "span", "choice": "choice"}
TUNE = (
    f"finetune --config={REPOSITORY}/experiments/finetune/own_text.py --config.init_from=run --config.task.length=64 "
    "--config.training.batch_size=2 --config.training.epochs=1"
)
ASK = {
    "sequence": f"predict classify --model=sequence 'the river' '{LONG}'",
    "token": f"predict tag --model=token 'the river' '{LONG}'",
    "span": "predict answer --model=span --length=64 --input=span.jsonl",
    "choice": "predict choose --model=choice --input=choice.jsonl",
    "gap": "predict resolve --model=gap --input=asked.jsonl",
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    base = tmp_path_factory.mktemp("modern")
    write_text(base / "corpus.txt", documents=40)
    (base / "modern.py").write_text(EXPERIMENT)
    for name, content in FILES.items():
        (base / name).write_text(content)
        if name.endswith(".jsonl"):
            (base / name.replace(".", "-dev.")).write_text(content + content)
    (base / "pronouns").mkdir()
    pronouns(base / "pronouns")
    lines = {
        "corpus": "corpus --source=text:corpus.txt --train-vocab=bpe --vocab-size=320 --output=corpus --eval-fraction=0.2 "
        "--shards=2 --workers=1",
        "pretrain": "pretrain --config=modern.py --workdir=run",
        "taught": "pretrain --config=modern.py --workdir=taught --config.teacher=run --config.model.scan_layers=false",
        **{
            f"tune {kind}": f"{TUNE} --workdir={kind} --config.task.name=own/{kind} --config.task.own.train={file}.jsonl "
            f"--config.task.own.dev={file}-dev.jsonl"
            for kind, file in TASKS.items()
        },
        "tune gap": f"finetune --config={REPOSITORY}/experiments/finetune/gap.py --workdir=gap --config.init_from=run "
        "--config.task.data_dir=pronouns --config.task.length=64 --config.training.epochs=1",
        **{f"ask {kind}": line for kind, line in ASK.items()},
        "fill": f"predict fill-mask --model=run 'the [MASK] of' '{LONG} [MASK]'",
        "score": f"predict score --model=run 'the river' '{LONG}'",
        "embed": f"predict embed --model=run 'the river' '{LONG}'",
        "too long": f"predict embed --model=run '{LONG * 3}'",
        "heads": "analyse heads --model=run --output=heads --input=text.txt",
        "dependencies": "analyse dependencies --model=run --output=dependencies --input=one.conllu --replicates=100 --least=1",
        "wider": "convert --from=run --to=wider --max-position=128 --rope-theta=80000,20000 --window=8",
        "embed wider": f"predict embed --model=wider '{LONG * 2}'",
    }
    around = Surroundings(directory=base)
    ends = forked.run(base / "said", *(shlex.split(line) for line in lines.values()), around=around, timeout=1_200)
    return Commands(base, dict(zip(lines, ends, strict=True)))


def table(path: pathlib.Path) -> list[dict[str, str]]:
    header, *rows = (line.split("\t") for line in path.read_text().splitlines() if not line.startswith("#"))
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_every_command_does_its_work(done: Commands):
    failed = {name: end.output for name, end in done.ends.items() if end.status != 0}
    assert failed.keys() == {"too long"}, failed
    assert "64" in failed["too long"]
    assert "Traceback" not in failed["too long"]


def test_the_perplexity_of_words_is_reported_for_a_byte_level_vocabulary(done: Commands):
    scores = results(done.base / "run")
    assert "word_perplexity" in json.dumps(scores)


def test_each_head_is_listed_with_the_tokens_that_it_sees(done: Commands):
    assert "the heads of layers 2, 3, 5, 6, 8 see 2 tokens on each side, 5 in all" in done.ends["heads"].output
    rows = table(done.base / "heads" / "windows.tsv")
    assert len(rows) == 16
    assert {(row["layer"], row["attention"], row["tokens"]) for row in rows if row["layer"] in "12"} == {
        ("1", "full", "all"), ("2", "sliding", "5"),
    }  # fmt: skip


def test_the_relations_that_fit_into_a_window_are_counted(done: Commands):
    """ "the", two words before its head, is one word from it: within two tokens unless "river" has several pieces."""
    rows = {row["relation"]: row for row in table(done.base / "dependencies" / "dependency_windows.tsv")}
    assert 0 <= int(rows["all"]["within_window"]) <= int(rows["all"]["n"])
    assert int(rows["all"]["within_window"]) > 0
    assert "dependents whose heads are within the window: all " in done.ends["dependencies"].output
