"""Reference curves. A curve has the held-out scores of an experiment over several seeds, and a run is compared with the curve.

A curve is a JSON file in the folder `curves`, which is next to the folder of the experiment file. The curve has the name of the
experiment file, followed by the argument, e.g. `experiments/curves/quickstart.json` or `laptop-more.json`.
`tests/golden/make_reference_curve.py` makes a curve from workdirs.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence

from bert_jax.configs.experiment_files import with_defaults
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.files import JsonObject, read_object
from bert_jax.interface.python_files import find_file
from bert_jax.interface.words import counted
from bert_jax.model.config import Execution
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.scores import Score
from bert_jax.runtime.workdir import METRICS, flatten, read_metrics, run_config

FOLDER = "curves"
WITHOUT_EFFECT = (
    "seed",
    "log_every",
    "log.*",
    "abort_after_skipped",
    "checkpoints.*",
    "corpus.*",
    "evaluation.every",
    "evaluation.batch_size",
    "mesh.*",
    "spikes.*",
    *(f"model.{name}" for name in Execution.within_noise()),
    "phases.*.accumulation",
)
"""A run may differ from the curve's runs in these keys, because the keys affect scores less than the seed does."""
LIKE_SIZE = 0.1
"""A run is compared with a curve if the number of tokens in its corpus differs from the curve's corpus by at most this
fraction. The fraction is not 0 because the size of the embedded corpus depends on the versions of the Python packages."""
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5 % quantiles of Student's t distribution for 1, 2, ... degrees of freedom."""


@dataclasses.dataclass(frozen=True)
class Band:
    """The scores of several seeds after one step."""

    mean: float
    low: float
    high: float
    """`low` to `high` is the 95 % prediction interval of a further run. It assumes that scores are normally distributed."""


@dataclasses.dataclass(frozen=True)
class ReferenceCurve:
    """The held-out scores of an experiment over `seeds`."""

    name: str
    seeds: tuple[int, ...]
    settings: JsonObject
    """The configuration of the curve's runs as a nested dictionary. The values of the keys in `WITHOUT_EFFECT` are from the
    first run."""
    corpus_tokens: int
    corpus_fingerprint: str
    measures: Mapping[str, Mapping[int, Band]]
    """Name of a held-out loss -> step -> band."""


def prediction_band(values: Sequence[float]) -> Band:
    """Returns the mean of the losses `values`, and the interval mean ± t s sqrt(1 + 1/n) in which another loss is expected. The
    lower end of the interval is at least 0. `values` must have two to ten losses."""
    n, mean = len(values), statistics.fmean(values)
    reach = _T_95[n - 2] * statistics.stdev(values) * math.sqrt(1 + 1 / n)
    return Band(mean, max(0.0, mean - reach), mean + reach)


def read_curve(path: pathlib.Path) -> ReferenceCurve:
    """Reads a curve that `as_json` has written. Raises UserError if the file is not a curve."""
    values = read_object(path, "restore it from the repository, or remove it")
    try:
        measures = {name: {int(step): Band(**band) for step, band in bands.items()} for name, bands in values["measures"].items()}
        return ReferenceCurve(
            path.stem, tuple(values["seeds"]), values["config"], values["corpus_tokens"], values["corpus_fingerprint"], measures
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a reference curve ({error!r}); restore it from the repository, or remove it") from error


def as_json(curve: ReferenceCurve) -> str:
    """Returns the text of a curve's file."""
    measures = {
        name: {str(step): {key: round(x, 5) for key, x in dataclasses.asdict(band).items()} for step, band in bands.items()}
        for name, bands in curve.measures.items()
    }
    values = {
        "seeds": curve.seeds,
        "corpus_tokens": curve.corpus_tokens,
        "corpus_fingerprint": curve.corpus_fingerprint,
        "measures": measures,
        "config": curve.settings,
    }
    return json.dumps(values, indent=1) + "\n"


def reference_curve(workdirs: Sequence[pathlib.Path], name: str, corpus_tokens: int, fingerprint_key: str) -> ReferenceCurve:
    """Returns the curve of the runs in `workdirs`, which differ only in their seeds. Raises UserError if there are fewer than
    two or more than ten runs, if the runs have different settings or corpora, if two runs have the same seed, or if the runs
    have no evaluation in common."""
    if not 2 <= len(workdirs) <= len(_T_95) + 1:
        raise UserError(f"{counted(len(workdirs), 'run')} given; a band needs 2 to {len(_T_95) + 1} runs of different seeds")
    stored = [run_config(workdir, "pretrain") for workdir in workdirs]
    prints = [values.pop(fingerprint_key, "") for values in stored]
    experiments = [PretrainingExperiment.from_dict(values) for values in stored]
    for workdir, experiment, fingerprint in zip(workdirs, experiments, prints, strict=True):
        if unlike := _differences(experiments[0], experiment):
            raise UserError(f"{workdir} differs from {workdirs[0]} in config.{unlike[0][0]}; give runs of one experiment")
        if fingerprint != prints[0]:
            raise UserError(f"{workdir} was trained on a different corpus than {workdirs[0]}; give runs of one experiment")
    seeds = tuple(experiment.seed for experiment in experiments)
    if len(set(seeds)) < len(seeds):
        raise UserError(f"the seeds are {', '.join(map(str, seeds))}; give runs of different seeds")
    scores = [_eval(workdir) for workdir in workdirs]
    steps = sorted(set.intersection(*(set(one) for one in scores)))
    measures = {
        measure: {step: prediction_band([one[step][measure] for one in scores]) for step in steps}
        for measure in losses(experiments[0].trained_objective)
        if steps and all(measure in one[step] for one in scores for step in steps)
    }
    if not measures:
        raise UserError("the runs have no evaluation in common; give finished runs")
    return ReferenceCurve(name, seeds, stored[0], corpus_tokens, prints[0], measures)


def losses(objective: Objective) -> dict[str, str]:
    """Returns {name: title in log lines} for the held-out scores that are compared."""
    scores = objective.named_scores().items()
    return {name: score.title for name, score in scores if isinstance(score, Score) and not score.is_share}


def _eval(workdir: pathlib.Path) -> dict[int, dict[str, float]]:
    """Returns {step: held-out scores} of a run."""
    found = {}
    for record in read_metrics(workdir / METRICS):
        scores = {name.removeprefix("eval/"): value for name, value in record.items() if name.startswith("eval/")}
        if scores:
            found[int(record["step"])] = scores
    return found


def find_curve(
    config: str, experiment: PretrainingExperiment, corpus_tokens: int, fingerprint: str
) -> tuple[ReferenceCurve | None, str]:
    """Returns (the curve for a run of `--config=config`, a log line). If the settings or the corpus of the run differ from the
    curve's, returns (None, a log line with the reason). If the experiment has no curve, returns (None, "")."""
    path, argument = find_file(config)
    path = path.parent.parent / FOLDER / ("-".join(filter(None, (path.stem, argument))) + ".json")
    if not path.is_file():
        return None, ""
    curve = read_curve(path)
    stored = with_defaults(PretrainingExperiment, curve.settings, extra_key="")
    stored.pop("", None)
    unlike = _differences(PretrainingExperiment.from_dict(stored), experiment)
    begin = f"not compared with the reference curve of {curve.name}"
    if unlike:
        key, there, here = unlike[0]
        differ = "differs" if len(unlike) == 1 else f"and {counted(len(unlike) - 1, 'other key')} differ"
        return None, f"{begin}: config.{key} ({there} there, {here} here) {differ}"
    if curve.corpus_fingerprint != fingerprint and abs(corpus_tokens / curve.corpus_tokens - 1) > LIKE_SIZE:
        return None, f"{begin}: its corpus has {curve.corpus_tokens:,} tokens, this corpus {corpus_tokens:,}"
    same = "the same corpus" if curve.corpus_fingerprint == fingerprint else "another corpus of about the same size"
    return curve, f"compared with the reference curve of {curve.name} ({counted(len(curve.seeds), 'seed')}, {same})"


def _differences(one: PretrainingExperiment, other: PretrainingExperiment) -> list[tuple[str, object, object]]:
    """Returns (key, value of `one`, value of `other`) for every key that differs and is not in `WITHOUT_EFFECT`."""
    ours, theirs = (dict(flatten(experiment.to_dict())) for experiment in (one, other))
    return [
        (key, ours.get(key), theirs.get(key))
        for key in sorted({*ours, *theirs})
        if ours.get(key) != theirs.get(key) and not any(fnmatch.fnmatchcase(key, pattern) for pattern in WITHOUT_EFFECT)
    ]


def comparison(
    curve: ReferenceCurve, step: int, scores: Mapping[str, float], titles: Mapping[str, str]
) -> tuple[bool, str]:
    """Returns two values. The first is whether the held-out `scores` after `step` are within the band, and the second is a
    sentence that reports this. If the curve has no band for this step, returns (True, ""). `titles` are the `losses` of the
    run."""
    there = [name for name in titles if step in curve.measures.get(name, {}) and name in scores]
    if not there:
        return True, ""
    outside = []
    for name in there:
        band, value = curve.measures[name][step], scores[name]
        if not band.low <= value <= band.high:
            side = "below" if value < band.low else "above"
            outside.append(f"{titles[name]} {value:.3f} is {side} the band {band.low:.3f} to {band.high:.3f}")
    seeds = counted(len(curve.seeds), "seed")
    if outside:
        return False, f"{' and '.join(outside)} of {seeds} of {curve.name}"
    spans = (f"{titles[name]} {curve.measures[name][step].low:.3f} to {curve.measures[name][step].high:.3f}" for name in there)
    return True, f"in the band of {seeds} of {curve.name} ({', '.join(spans)})"


def usual_causes(
    curve: ReferenceCurve,
    step: int,
    scores: Mapping[str, float],
    experiment: PretrainingExperiment,
    *,
    fingerprint: str,
    skipped: int,
) -> str:
    """Returns a sentence that lists the usual causes of scores outside the band. The causes for which this run has evidence
    come first. These are `skipped` steps, a different dtype, and a different `fingerprint` of the corpus. All other settings
    are the same as the curve's (`find_curve`)."""
    causes = []
    if skipped:
        causes.append(f"{counted(skipped, 'skipped step')} (see the warnings above)")
    if experiment.model.dtype != curve.settings["model"]["dtype"]:
        causes.append(f"config.model.dtype={experiment.model.dtype}, not {curve.settings['model']['dtype']}")
    better = all(scores[name] < curve.measures[name][step].mean for name in curve.measures if step in curve.measures[name])
    if fingerprint != curve.corpus_fingerprint:
        causes.append("a different text: its language, casing, cleaning and repeated lines (report.txt of the corpus)")
        if better:
            causes.append("held-out text that is also in the training text")
    elif not better and any(
        scores.get(name, 1.0) <= 1.05 * scores.get("unigram_accuracy", 0.0)
        for name, score in experiment.trained_objective.shown_scores().items()
        if score.baseline == "unigram_accuracy"
    ):
        causes.append("a plateau at word frequencies, which some runs leave late: see the next evaluation")
    causes.append("a change of the code or of the packages since the curve was made (run tpu_scripts/test.sh)")
    causes.append("chance: each score of an evaluation is outside the band in 1 of 20 runs")
    return "usual causes: " + "; ".join(causes)
