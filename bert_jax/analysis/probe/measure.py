"""Trains and scores all probes of a model."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float64

from bert_jax.analysis.named_array import Label, NamedArray
from bert_jax.analysis.probe.annotated import (
    NONE,
    Annotated,
    AnnotatedFile,
    Labels,
    control_task,
    majority_accuracy,
    numbered,
    spread,
)
from bert_jax.analysis.probe.flags import PROBES, Probing
from bert_jax.analysis.probe.linear import Probe, linear_accuracy, mix_shares, train_linear
from bert_jax.analysis.probe.parser import PARSERS, offset_counts, parser_accuracy, train_parsers
from bert_jax.analysis.probe.structural import chain_scores, structural_scores, train_structural, tree_sentences
from bert_jax.analysis.probe.word_vectors import Say, fit_scale, read_features, silent
from bert_jax.analysis.windows import word_windows
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.prediction.engine import Engine

MIX = "mix"
"""The name of the probe on the learned weighted average of all hidden states (ELMo's scalar mix). A probe on one hidden state is
named by its layer, 0 for the embeddings."""
TASKS = ("label", "control")
SCORES = ("uuas", "distance correlation", "root accuracy", "depth correlation")
RIGHT_BRANCHING, FIXED = "right-branching", "best fixed distance"
Progress = Callable[[str, str], Say]
"""Called with the name of a stage and the unit of its counts, such as "words". Returns a function that shows the progress of
the stage."""


def silent_stage(stage: str, unit: str) -> Say:
    """Ignores progress."""
    return silent


@dataclasses.dataclass(frozen=True, eq=False)
class LabelProbes:
    """Linear probes of labels."""

    accuracy: NamedArray
    """[label, task, probe, seed]: the accuracy on the label and on its control task. The difference of the two is the
    selectivity."""
    mix: NamedArray
    """[label, layer, seed]: the weight of each hidden state in the learned mix."""
    majority: NamedArray
    """[label]: the accuracy of predicting each word type's most frequent label."""
    n: NamedArray
    """[label]: the number of scored words."""
    n_training: NamedArray
    """[label]: the number of training words."""
    unseen: NamedArray
    """[label]: the number of scored words whose label does not occur in the training part, so no probe can find it."""


@dataclasses.dataclass(frozen=True, eq=False)
class StructureProbes:
    """Structural probes."""

    scores: NamedArray
    """[score, probe, seed] of SCORES."""
    right_branching: NamedArray
    """[score]: the scores of trees in which the head of each word is the word before it."""
    n: NamedArray
    """[score]: the number of edges for "uuas", otherwise the number of sentences."""
    n_training: int
    """The number of training sentences."""


@dataclasses.dataclass(frozen=True, eq=False)
class ParserProbes:
    """Parsers on attention and on distance."""

    accuracy: NamedArray
    """[parser]: the fraction of words whose head is found, for each of PARSERS and for two baselines without weights."""
    n: int
    """The number of words, without roots and punctuation."""
    distance: int
    """The distance that the baseline FIXED always predicts. It is the most frequent distance to a head in the training part; -1
    is the word before."""
    n_training: int
    """The number of training words."""


@dataclasses.dataclass(frozen=True, eq=False)
class Probes:
    """All probes of a model. Probes that were not trained are None."""

    labels: LabelProbes | None
    structure: StructureProbes | None
    parsers: ParserProbes | None
    words: tuple[int, int]
    """The number of words of the training part and of the evaluation part."""
    cut: int
    """The number of sentences longer than the position table. They were read in windows, and their trees are left out."""
    size: int
    """The size in bytes of the stored vectors."""


def measure_probes(
    engine: Engine,
    training: AnnotatedFile,
    evaluation: AnnotatedFile,
    options: Probing,
    progress: Progress = silent_stage,
) -> Probes:
    """Trains probes on `training` and scores them on `evaluation`.

    Parsers are left out if the model has no attention. Raises UserError if both files are the same, if they lack the annotation
    for a probe that `options` names, if `options` names parsers but the model has no attention, or if the model returns numbers
    that are not finite."""
    engine.require_encoder()
    if os.path.samestat(training.file, evaluation.file):
        raise UserError(f"{evaluation.path} is also the training file; give another file to score the probes on")
    parts = tuple(list(spread(file, options.words)) for file in (training, evaluation))
    words = tuple(sum(len(sentence.words) for sentence in part) for part in parts)
    kinds = label_kinds(*parts)
    chosen = _possible(engine, options, (training, evaluation), parts, kinds)
    labels = structure = parsers = None
    size = cut = 0

    def each_seed(what: str, unit: str) -> Iterator[tuple[int, Say]]:
        """Yields every seed together with a function that shows its progress."""
        for i in range(options.seeds):
            yield options.seed + i, progress(f"training {what} {i + 1} of {options.seeds}", unit)

    if "labels" in chosen or "structure" in chosen:
        stages = ("reading the training words", "reading the evaluation words")
        first, second = (
            read_features(engine, part, n, progress(stage, "words")) for part, n, stage in zip(parts, words, stages, strict=True)
        )
        size, cut, scale = first.size + second.size, sum(first.cut) + sum(second.cut), fit_scale(first.vectors)
        layers: list[Label] = list(range(first.vectors.shape[1]))
        axes = {"probe": [*layers, MIX], "seed": range(options.seed, options.seed + options.seeds)}
    if "labels" in chosen:
        accuracy, mix = [], []
        known: Mapping[str, Probe] = {}
        for seed, say in each_seed("probes of labels", "probes"):
            controls = [control_task(own, first.types, second.types, seed) for own in kinds]
            every = [*kinds, *controls]
            probes = train_linear(first.vectors, every, scale, options.epochs, seed, say, known)
            known = known or {own.name: probes[own.name] for own in kinds}
            found = linear_accuracy(probes, second.vectors, every, scale)
            accuracy.append([[found[a.name], found[b.name]] for a, b in zip(kinds, controls, strict=True)])
            mix.append([mix_shares(probes[own.name]["mix"]) for own in kinds])
        names = {"label": [own.name for own in kinds]}
        majority = [majority_accuracy(own, first.types, second.types) for own in kinds]
        labels = LabelProbes(
            NamedArray(_seeds_last(accuracy), {**names, "task": TASKS, **axes}),
            NamedArray(_seeds_last(mix), {**names, "layer": layers, "seed": axes["seed"]}),
            NamedArray(np.array(majority), names),
            NamedArray(np.array([own.n for own in kinds]), names),
            NamedArray(np.array([(own.training != NONE).sum() for own in kinds]), names),
            NamedArray(np.array([own.unseen for own in kinds]), names),
        )
    if "structure" in chosen:
        by_seed = []
        for seed, say in each_seed("structural probes", "sentences"):
            probe = train_structural(first, scale, options.rank, options.epochs, seed, say)
            results = structural_scores(probe, second, scale).results()
            by_seed.append([results[score][0] for score in SCORES])
        chain = chain_scores(second).results()
        structure = StructureProbes(
            NamedArray(_seeds_last(by_seed), {"score": SCORES, **axes}),
            NamedArray(np.array([chain[score][0][0] for score in SCORES]), {"score": SCORES}),
            NamedArray(np.array([chain[score][1] for score in SCORES]), {"score": SCORES}),
            len(tree_sentences(first)),
        )
    if "parsers" in chosen:
        trained, scored = (offset_counts(engine, part) for part in parts)
        weights = train_parsers(engine, parts[0], options.passes, options.seed, progress("training parsers", "words"))
        attached, n = parser_accuracy(engine, weights, parts[1], progress("scoring parsers", "words"))
        distance = trained.most_common(1)[0][0] if trained else -1
        attached |= {name: scored[at] / n if n else float("nan") for name, at in ((FIXED, distance), (RIGHT_BRANCHING, -1))}
        parsers_there = [*PARSERS, FIXED, RIGHT_BRANCHING]
        shares = NamedArray(np.array([attached[name] for name in parsers_there]), {"parser": parsers_there})
        parsers = ParserProbes(shares, n, distance, trained.total())
    return Probes(labels, structure, parsers, (words[0], words[1]), cut, size)


def label_kinds(training: Sequence[Annotated], evaluation: Sequence[Annotated]) -> list[Labels]:
    """Returns the kinds of labels that both parts have, with at least two different labels in the training part."""
    names = training[0].labels if training and evaluation else {}
    found = [numbered(name, training, evaluation) for name in names if name in evaluation[0].labels]
    return [labels for labels in found if len(labels.classes) > 1 and labels.n]


def _possible(
    engine: Engine,
    options: Probing,
    files: Sequence[AnnotatedFile],
    parts: Sequence[Sequence[Annotated]],
    kinds: Sequence[Labels],
) -> tuple[str, ...]:
    """Returns the probes named in `options`, or all probes that the files and the model support."""
    if "parsers" in options.probes:
        engine.require_attention("that parsers can read", "leave parsers out of --probes")
    for file, part in zip(files, parts, strict=True):
        if not part:
            raise UserError(
                f"the limit of {counted(options.words, 'word')} is too low for a sentence of {file.path}; raise it (--words), or "
                "end its sentences with empty lines"
            )
    trees = [any(_has_tree(engine, own) for own in part) for part in parts]
    there = {"labels": bool(kinds), "structure": all(trees), "parsers": all(trees) and engine.has_attention}
    if "labels" in options.probes and not kinds:
        raise UserError(
            f"no kind of label has two or more labels in {files[0].path} and also occurs in {files[1].path}; "
            "give two files of the same format"
        )
    for probe in ("structure", "parsers"):
        if probe in options.probes and not all(trees):
            without = files[trees.index(False)].path
            raise UserError(
                f"{without} has no tree with one root and two or more words to train {probe} on; give a treebank in CoNLL-U with "
                f"sentences that fit into the {counted(engine.config.max_position, 'position')} of the model"
            )
    if not any(there.values()):
        raise UserError(
            f"{files[0].path} and {files[1].path} have no annotation in common; give two files of the same format, with two or "
            f"more labels, or with trees of sentences that fit into the {counted(engine.config.max_position, 'position')} of the "
            "model"
        )
    return options.probes or tuple(probe for probe in PROBES if there[probe])


def _has_tree(engine: Engine, sentence: Annotated) -> bool:
    """Returns whether a sentence has a tree of two or more words, which are not all punctuation, and is read as a whole."""
    return len(sentence.heads) > 1 and not all(sentence.punctuation) and len(list(word_windows(engine, sentence.words))) == 1


def _seeds_last(by_seed: Sequence[object]) -> Float64[np.ndarray, "*shape"]:
    return np.moveaxis(np.array(by_seed, np.float64), 0, -1)
