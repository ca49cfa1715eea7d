r"""Pairs per second of a translator's training step and beam search, compared with transformers' Marian, and its BLEU.

    python tests/benchmarks/benchmark_translation.py --corpus=runs/multi30k_corpus --peer-python=PATH --model=runs/multi30k_mean \
        --sources=test.en --references=test.de
    python tests/benchmarks/benchmark_translation.py ... --whole=0          # trains the peer to the end, seed 0: its BLEU
    python tests/benchmarks/benchmark_translation.py ... --whole=0 --config.phases.0.learning_rate=2.5e-3

PATH is a Python with torch and transformers; without it, ours runs alone. Corpus and model come from
experiments/pretrain/multi30k.py, whose keys --config.KEY=VALUE changes for both sides.

Ours is the step of `pretrain` with that experiment on the batches of `pretrain`, whose rows pack several pairs. The peer
(peer_translation.py) trains the same model from random weights, with the same optimizer, schedule, dropout and label smoothing.
Its weights are drawn from a normal distribution, ours from one truncated at two standard deviations, and both get the same
standard deviation.
Its batches have as many pairs as ours on average, with similar lengths together. The time includes making the batches on both
sides. Then both translate --sources with --model and 4 beams (length penalty 1, transformers' form), the peer in several batch
sizes, of which the fastest counts. The fraction of equal translations is printed. The peer runs as installed and with glibc's
allocator tuned. The sides alternate, every round in a fresh process. Run it on an idle machine. All figures go to --json=FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.benchmarks.figures import flag_parser, give
from tests.benchmarks.turns import AS_RUN_SH, TUNED, Side, in_turns

HERE = pathlib.Path(__file__).resolve()
EXPERIMENT = "experiments/pretrain/multi30k.py"
CUT_OFF = 0.8796
"""The standard deviation of a normal distribution truncated at two standard deviations, relative to the same distribution
without the cut. Without this factor, the peer's weights are 14 % larger and it learns to read the source much later: 17 BLEU
instead of 39."""
BEAMS, AVERAGED, BATCH_SIZES = 4, 5, (32, 128)


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--corpus", required=True, help="the corpus of experiments/pretrain/multi30k.py")
    parser.add_argument("--model", help="a translator trained on the corpus; if missing, nothing is translated")
    parser.add_argument("--sources", help="a file with one source per line")
    parser.add_argument("--references", help="a file with their translations, for BLEU")
    parser.add_argument("--peer-python", help="a Python with torch and transformers")
    parser.add_argument("--peer-device", default="cpu", help="the device for --whole: cpu or cuda")
    parser.add_argument("--steps", type=int, default=30, help="the number of timed steps per round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--whole", type=int, metavar="SEED", help="train the peer to the end with this seed, and print its BLEU")
    parser.add_argument("--ours", choices=("train", "translate"), help=argparse.SUPPRESS)
    parser.add_argument("--directory", help=argparse.SUPPRESS)
    options, options.overrides = parser.parse_known_args()
    if unknown := [flag for flag in options.overrides if not flag.startswith("--config.")]:
        parser.error(f"unknown argument {unknown[0]}; flags that change the experiment start with --config.")
    if options.ours:
        found = training(options) if options.ours == "train" else translating(options)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as directory:
        pairs = write_pairs(options, pathlib.Path(directory))
        if options.whole is not None:
            whole_peer(options, directory)
            return
        compared(options, directory, pairs)


def experiment_of(corpus: str, overrides: Sequence[str] = ()) -> Any:
    """Returns the configuration of multi30k.py on this corpus, with these flags."""
    from bert_jax.configs.command_line import parse_flags
    from bert_jax.configs.pretraining import PretrainingExperiment

    flags = [f"--config={HERE.parents[2] / EXPERIMENT}", "--workdir=unused", f"--config.corpus.directory={corpus}"]
    flags += overrides
    return PretrainingExperiment.from_dict(parse_flags("benchmark", __doc__ or "", flags, PretrainingExperiment).config)


def write_pairs(options: argparse.Namespace, directory: pathlib.Path) -> float:
    """Writes the peer's inputs: the pairs of the corpus with their end tokens, the sources, the model's shape and the training
    settings. Returns the mean number of pairs in our batches."""
    import numpy as np

    from bert_jax.data.batches import BatchSource
    from bert_jax.data.corpus.store import open_corpus
    from bert_jax.interop.families.marian import MARIAN

    experiment, corpus = experiment_of(options.corpus, options.overrides), open_corpus(options.corpus)
    phase, tokenizer = experiment.phases[0], corpus.tokenizer
    source = BatchSource(corpus, experiment.example_config(0), phase.batch_size, seed=0)
    pairs = statistics.mean(int(source.at(step)["sequence_ids"].max(axis=1).sum()) for step in range(20))
    sentences, documents = corpus.joined_offsets()
    texts: dict[str, list[list[int]]] = {"source": [], "target": [], "test_source": []}
    for first in documents[:-1].tolist():
        for side, name in enumerate(("source", "target")):
            ids = corpus.tokens[sentences[first + side] : sentences[first + side + 1]].tolist()
            texts[name].append([*ids, tokenizer.sep_id])
    if options.sources:
        lines = pathlib.Path(options.sources).read_text().splitlines()
        texts["test_source"] = [[*tokenizer.encode(line), tokenizer.sep_id] for line in lines]
    arrays = {name: np.array([token for text in some for token in text], np.int32) for name, some in texts.items()}
    arrays |= {f"{name}_ends": np.cumsum([len(text) for text in some]) for name, some in texts.items()}
    np.savez(directory / "pairs.npz", **arrays)
    model = experiment.model
    ids = {"pad": tokenizer.pad_id, "sep": tokenizer.sep_id}
    training = {
        "learning_rate": phase.learning_rate, "warmup_steps": phase.warmup_steps, "pairs": round(pairs), "label_smoothing": 0.1,
        "betas": [experiment.optimizer.b1, experiment.optimizer.b2], "epsilon": experiment.optimizer.epsilon,
        "every": experiment.checkpoints.every, "averaged": AVERAGED,
    }  # fmt: skip
    config = MARIAN.write(sized(model, corpus), ids, {})
    config["init_std"] *= CUT_OFF
    settings = {"config": config, "training": training, "steps": phase.steps, "longest": model.max_position - 1}
    (directory / "settings.json").write_text(json.dumps(settings))
    return pairs


def sized(model: Any, corpus: Any) -> Any:
    """Returns the shape of the model with the size of the corpus's vocabulary."""
    import dataclasses

    return dataclasses.replace(model, vocab_size=corpus.vocabulary.size)


def training(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the seconds of each of our steps, including making its batch, without compilation."""
    import dataclasses
    import functools

    import flax.linen as nn
    import jax

    from bert_jax.data.batches import BatchSource, to_device
    from bert_jax.data.corpus.store import open_corpus
    from bert_jax.data.prefetch import prefetch
    from bert_jax.pretraining.program import pretraining_program, step_scalars
    from bert_jax.pretraining.start import initial_parameters
    from bert_jax.sharding.mesh import make_mesh
    from bert_jax.sharding.rules import ACTIVATION_RULES, BATCH

    experiment, corpus, steps = experiment_of(options.corpus, options.overrides), open_corpus(options.corpus), options.steps
    experiment = dataclasses.replace(experiment, model=sized(experiment.model, corpus))
    mesh = make_mesh(experiment.mesh, jax.devices()[:1])
    program, phase = pretraining_program(experiment, mesh), experiment.phases[0]
    source = BatchSource(corpus, experiment.example_config(0), phase.batch_size, experiment.phase_seed(0))
    seconds = []
    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        state, scalars = program.init_state(functools.partial(initial_parameters, experiment)), step_scalars(experiment)
        step = program.training_step(phase.accumulation)
        batches = prefetch(source.at, 0, steps + 3)
        for _ in range(steps + 3):
            started = time.perf_counter()
            state, sums = step(state, to_device(next(batches), mesh, BATCH), scalars)
            jax.block_until_ready((state, sums))
            seconds.append(time.perf_counter() - started)
    return {"seconds": seconds[1:]}


def translating(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the seconds of translating all sources with --model, from ids to ids, twice, and the ids of the first time."""
    import numpy as np

    from bert_jax.prediction.engine import Engine
    from bert_jax.prediction.translating import translate

    directory = pathlib.Path(options.directory)
    pairs = np.load(directory / "pairs.npz")
    sources = [row.tolist() for row in np.split(pairs["test_source"], pairs["test_source_ends"][:-1])]
    longest, engine = json.loads((directory / "settings.json").read_text())["longest"], Engine.load(options.model)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        found = translate(engine, sources, BEAMS, 1.0, "transformers", max_length=longest)
        seconds.append(time.perf_counter() - started)
    return {"translation_seconds": seconds[1:], "translations": [list(best.ids) for best in found]}


def bleu(options: argparse.Namespace, translations: list[list[int]]) -> float | None:
    """Returns the BLEU of translations given as ids; None without references."""
    from bert_jax.data.corpus.store import open_corpus
    from bert_jax.prediction.translating import translation_scores

    if not options.references or not translations:
        return None
    tokenizer = open_corpus(options.corpus).tokenizer
    references = pathlib.Path(options.references).read_text().splitlines()
    return float(translation_scores([tokenizer.decode(ids) for ids in translations], references)["bleu"])


def whole_peer(options: argparse.Namespace, directory: str) -> None:
    """Trains the peer for as many steps as ours, and prints the BLEU of the mean of its last weights."""
    steps = json.loads(pathlib.Path(directory, "settings.json").read_text())["steps"]
    command = [options.peer_python, str(HERE.with_name("peer_translation.py")), f"--directory={directory}", f"--steps={steps}"]
    command += [f"--seed={options.whole}", f"--device={options.peer_device}", f"--threads={os.cpu_count()}", "--batch-size=128"]
    found = in_turns([Side("peer", [*command, f"--beams={BEAMS}"], TUNED)], 1, lambda _: [])["peer"][0]
    score, seconds = bleu(options, found["translations"]), sum(found["seconds"])
    columns = ["side", "seed", "steps", "seconds of training", "BLEU"]
    row = ["peer", f"{options.whole}", f"{steps:,}", f"{seconds:,.0f}", "-" if score is None else f"{score:.2f}"]
    give(columns, [row], {**found, "bleu": score}, options.json)


def compared(options: argparse.Namespace, directory: str, pairs: float) -> None:
    """Times both sides and prints both tables."""
    mine = [sys.executable, str(HERE), f"--corpus={options.corpus}", f"--directory={directory}", f"--steps={options.steps}"]
    mine += options.overrides
    environment = {"PYTHONPATH": str(HERE.parents[2]), "JAX_PLATFORMS": "cpu", **AS_RUN_SH}
    theirs = [options.peer_python, str(HERE.with_name("peer_translation.py")), f"--directory={directory}"]
    theirs += [f"--threads={os.cpu_count()}"]
    hows = {"peer as installed": {}, "peer, allocator tuned": TUNED} if options.peer_python else {}
    trains = [Side("ours", [*mine, "--ours=train"], environment)]
    trains += [Side(how, [*theirs, f"--steps={options.steps + 2}", "--batch-size=1", "--beams=0"], e) for how, e in hows.items()]
    trained = in_turns(trains, options.rounds, lambda _: [])
    searched: dict[str, list[dict[str, Any]]] = {}
    if options.model:
        search = [Side("ours", [*mine, "--ours=translate", f"--model={options.model}"], environment)]
        exported = exported_model(options.model, directory)
        for size in BATCH_SIZES:
            flags = ["--steps=0", f"--batch-size={size}", f"--beams={BEAMS}", f"--model={exported}", "--repeats=2"]
            search += [Side(f"{how}, batch {size}", [*theirs, *flags], e) for how, e in hows.items()]
        searched = in_turns(search, options.rounds, lambda _: [])
    scores = {who: bleu(options, runs[0]["translations"]) for who, runs in searched.items()}
    report(trained, searched, pairs, scores, options.json)


def report(
    trained: dict[str, list[dict[str, Any]]],
    searched: dict[str, list[dict[str, Any]]],
    pairs: float,
    scores: dict[str, float | None],
    file: pathlib.Path | None,
) -> None:
    """Prints a table of pairs per second in training and in beam search, and the factor by which ours is faster."""
    figures: dict[str, Any] = {"cores": os.cpu_count(), "load": os.getloadavg(), "pairs_of_a_batch": pairs, "bleu": scores}
    steps = {who: statistics.median([s for run in runs for s in run["seconds"][2:]]) for who, runs in trained.items()}
    calls = {who: statistics.median([s for run in runs for s in run["translation_seconds"]]) for who, runs in searched.items()}
    rows = [["training", who, f"{pairs / s:,.1f}", f"{s / steps['ours']:.2f}", "-", "-"] for who, s in steps.items()]
    for who, seconds in calls.items():
        answers = searched[who][0]["translations"]
        same = statistics.mean(a == b for a, b in zip(answers, searched["ours"][0]["translations"], strict=True))
        cells = [f"{len(answers) / seconds:,.1f}", f"{seconds / calls['ours']:.2f}", f"{100 * same:.1f} %"]
        score = scores[who]
        rows.append(["beam search", who, *cells, "-" if score is None else f"{score:.2f}"])
    columns = ["of", "side", "pairs/s, median", "ours is times faster", "same translations", "BLEU"]
    give(columns, rows, figures | {"training": steps, "search": calls}, file)


def exported_model(model: str, directory: str) -> str:
    """Returns the directory of the model in the form that transformers reads."""
    from bert_jax.interop.huggingface import export_model, import_model

    target = f"{directory}/marian"
    export_model(target, import_model(model))
    return target


if __name__ == "__main__":
    main()
