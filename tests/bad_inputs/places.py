"""Creates the inputs of the cases: a corpus, models with every head, tables, a finished run. No command may change any of
them."""

from __future__ import annotations

import functools
import json
import pathlib
import random
import shutil
import string
from collections.abc import Mapping
from typing import Any

from bert_jax.interop.huggingface import export_model
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.mention import MentionHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.model.heads.token import TokenHead
from tests.end_to_end import forked
from tests.end_to_end.runs import VOCABULARY, write_experiment, write_text
from tests.end_to_end.toy_tasks import WRITERS, own_texts, write_model, write_vocabulary
from tests.interop.tiny import make_translator

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
ONE_LAYER = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "max_position": 64}
TWO_LAYERS = {"num_layers": 1, "decoder_layers": 2, "hidden_size": 8, "num_heads": 2, "intermediate_size": 8}
TRANSLATORS: dict[str, dict[str, Any]] = {
    "translator": {},
    "pre_norm": {"norm_placement": "pre", "final_norm": True},
    "rotary": {"positions": "rotary"},
}
"""Encoder-decoders: one that Marian has, and two that it does not have."""
HEADS = {
    "classifier": SequenceHead(labels=("good", "poor")),
    "tagger": TokenHead(labels=("B-PER", "O")),
    "reader": SpanHead(),
    "chooser": ChoiceHead(),
    "resolver": MentionHead(labels=("A", "B", "neither")),
}
OFFICIAL = {
    "sst2": "glue/sst2",
    "swag": "swag",
    "gap": "gap",
    "conll": "conll2003",
    "squad1": "squad/v1.1",
    "squad2": "squad/v2.0",
}
"""The tasks whose official files are available."""
FINETUNE = (
    "--config=$repository/experiments/finetune/own_text.py --workdir=run --config.init_from=$model "
    "--config.task.own.train=$train --config.task.own.dev=$dev --config.task.length=16 --config.training.batch_size=16 "
    "--config.training.epochs=1 --config.model.hidden_dropout=0 --config.model.attention_dropout=0"
)
"""A valid fine-tuning run."""
GOOD = "text,label\nit was fine,good\nit was bad,poor\n"
"""Valid training data."""
TRAIN = "--config.task.own.train=train.csv"
LINES = "--config.task.own.train=train.jsonl"
OFFICIAL_DATA = "--config.task.data_dir=data"


def modern(**fields: object) -> dict[str, str | bytes]:
    """Creates a ModernBERT for 8,192 tokens in the directory m, with `fields` changed in config.json."""
    golden = REPOSITORY / "tests" / "golden" / "families" / "modernbert_masked"
    kept = json.loads((golden / "config.json").read_text()) | {"max_position_embeddings": 8_192}
    weights = (golden / "model.safetensors").read_bytes()
    return {"m/config.json": json.dumps(kept | fields), "m/model.safetensors": weights}


def train(text: str | bytes) -> dict[str, str | bytes]:
    """Returns a training file."""
    return {"train.csv": text}


def make_places(root: pathlib.Path) -> dict[str, pathlib.Path]:
    """Creates everything in `root`, and returns the paths by name."""
    places = {
        "repository": REPOSITORY,
        "vocabulary": VOCABULARY,
        "text": root / "text.txt",
        "corpus": root / "corpus",
        "experiment": root / "experiment.py",
        "tf1": REPOSITORY / "tests" / "golden" / "tf1" / "bert",
        "model": root / "model",
        "run": root / "run",
        "tables": root / "tables",
        "noise": root / "noise.bin",
        "train": root / "tables" / "train.csv",
        "dev": root / "tables" / "dev.csv",
        **{name: root / name for name in (*HEADS, *OFFICIAL, *TRANSLATORS)},
    }
    write_text(places["text"])
    places["noise"].write_bytes(random.Random(0).randbytes(3_000))
    places["tables"].mkdir()
    own_texts(places["tables"])
    for name, task in OFFICIAL.items():
        WRITERS[task](places[name])
    commands = [
        "corpus --source=text:$text --vocab=$vocabulary --lowercase --output=$corpus --eval-fraction=0.2 --shards=2 --workers=1",
        "finetune " + FINETUNE.replace("=run", "=$run"),
    ]
    lines = ([string.Template(word).substitute(places) for word in line.split()] for line in commands)
    for done in forked.run(root / "scratch", *lines, prepare=functools.partial(write_models, root)):
        assert done.status == 0, done.output
    write_experiment(places["experiment"], places["corpus"])
    shutil.rmtree(root / "scratch")
    return places


def write_models(root: pathlib.Path) -> None:
    """Writes the models, in the process that then fine-tunes one of them: it has then traced their shapes."""
    write_model(root / "model", **ONE_LAYER)
    for name, head in HEADS.items():
        write_model(root / name, head=head, **ONE_LAYER)
    vocabulary = write_vocabulary(root / "translators-vocabulary")
    for name, fields in TRANSLATORS.items():
        export_model(root / name, make_translator(vocabulary, **TWO_LAYERS | fields))


def contents(directory: pathlib.Path) -> dict[str, bytes | None]:
    """Returns every file below `directory` with its bytes; for a directory, None."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
        if not path.is_fifo()
    }


def states(places: Mapping[str, pathlib.Path]) -> dict[str, tuple[int, int]]:
    """Returns the size and modification time of every file of the places, which change whenever its bytes are written."""
    root = places["text"].parent
    found = ((path, path.stat()) for path in root.rglob("*"))
    return {str(path): (state.st_size, state.st_ctime_ns) for path, state in found}
