"""The tables and figures of probes for made-up results."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest
from matplotlib.figure import Figure

from bert_jax.analysis.folder import Folder
from bert_jax.analysis.named_array import NamedArray
from bert_jax.analysis.probe.command import _read, print_found
from bert_jax.analysis.probe.figures import labels_figure, parsers_figure, structure_figure, write_probes
from bert_jax.analysis.probe.measure import SCORES, LabelProbes, ParserProbes, Probes, StructureProbes
from tests.looked_at import assert_as_looked_at

PROBES, SEEDS = [0, 1, "mix"], range(2)


def labels_of(names: tuple[str, ...] = ("upos", "relation")) -> LabelProbes:
    """Returns accuracies of 0.9, 0.7 and 0.8 by probe: lower for the second label and the control task, higher with the second
    seed."""
    label, task, probe, seed = np.ix_(range(len(names)), range(2), range(3), range(2))
    accuracy = np.array([0.9, 0.7, 0.8])[probe] - 0.25 * label - 0.5 * task + 0.02 * seed * (probe + 1)
    mix = np.array([[0.75, 0.25], [0.5, 0.5]])[: len(names), :, None] + np.array([0.0, 0.125])
    own = {"label": names}
    return LabelProbes(
        NamedArray(accuracy, {**own, "task": ("label", "control"), "probe": PROBES, "seed": SEEDS}),
        NamedArray(mix, {**own, "layer": [0, 1], "seed": SEEDS}),
        NamedArray(np.array([0.875, 0.5])[: len(names)], own),
        NamedArray(np.array([1_073, 70])[: len(names)], own),
        NamedArray(np.array([193, 190])[: len(names)], own),
        NamedArray(np.zeros(len(names), int), own),
    )


LABELS = labels_of()
STRUCTURE = StructureProbes(
    NamedArray(
        np.arange(24).reshape(4, 3, 2) / 32 + np.array([0.0, 0.25, 0.125])[None, :, None],
        {"score": SCORES, "probe": PROBES, "seed": SEEDS},
    ),
    NamedArray(np.array([1.0, 0.5, 0.25, 0.125]), {"score": SCORES}),
    NamedArray(np.array([53, 10, 11, 12]), {"score": SCORES}),
    40,
)
PARSERS = ParserProbes(
    NamedArray(np.array([0.5, 0.875, 0.25]), {"parser": ["attention", "distance", "right-branching"]}), 1_053, -1, 160
)
FOUND = Probes(LABELS, STRUCTURE, PARSERS, (1_193, 1_073), 2, 3_456_789)

TABLES = {
    "labels.tsv": """\
label probe accuracy deviation control control_deviation selectivity selectivity_deviation majority seeds n_training n
upos 0 0.91 0.0141421 0.41 0.0141421 0.5 0 0.875 2 193 1073
upos 1 0.72 0.0282843 0.22 0.0282843 0.5 0 0.875 2 193 1073
upos mix 0.83 0.0424264 0.33 0.0424264 0.5 0 0.875 2 193 1073
relation 0 0.66 0.0141421 0.16 0.0141421 0.5 0 0.5 2 190 70
relation 1 0.47 0.0282843 -0.03 0.0282843 0.5 0 0.5 2 190 70
relation mix 0.58 0.0424264 0.08 0.0424264 0.5 0 0.5 2 190 70
""",
    "mix.tsv": """\
label layer weight deviation seeds n
upos 0 0.8125 0.0883883 2 193
upos 1 0.3125 0.0883883 2 193
relation 0 0.5625 0.0883883 2 190
relation 1 0.5625 0.0883883 2 190
""",
    "structure.tsv": """\
score probe value deviation right-branching seeds n_training n
uuas 0 0.015625 0.0220971 1 2 40 53
uuas 1 0.328125 0.0220971 1 2 40 53
uuas mix 0.265625 0.0220971 1 2 40 53
distance_correlation 0 0.203125 0.0220971 0.5 2 40 10
distance_correlation 1 0.515625 0.0220971 0.5 2 40 10
distance_correlation mix 0.453125 0.0220971 0.5 2 40 10
root_accuracy 0 0.390625 0.0220971 0.25 2 40 11
root_accuracy 1 0.703125 0.0220971 0.25 2 40 11
root_accuracy mix 0.640625 0.0220971 0.25 2 40 11
depth_correlation 0 0.578125 0.0220971 0.125 2 40 12
depth_correlation 1 0.890625 0.0220971 0.125 2 40 12
depth_correlation mix 0.828125 0.0220971 0.125 2 40 12
""",
    "parsers.tsv": """\
parser attachment n_training n
attention 0.5 160 1053
distance 0.875 160 1053
right-branching 0.25 160 1053
""",
}
SAID = """\
label                    layer  accuracy  control  selectivity    mix  word type
upos                         0    0.910    0.410        0.500  0.830      0.875
relation                     0    0.660    0.160        0.500  0.580      0.500
structure                layer     value                           mix  right-branching
uuas                         1     0.328                        0.266            1.000
distance correlation         1     0.516                        0.453            0.500
root accuracy                1     0.703                        0.641            0.250
depth correlation            1     0.891                        0.828            0.125
parser                   heads found
attention                      0.500
distance                       0.875
right-branching                0.250
"""


@pytest.mark.usefixtures("figures")
def test_the_tables_have_every_number_and_the_terminal_the_best_layers(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    write_probes(folder := Folder(tmp_path), FOUND)
    written = {path.name: path.read_text().replace(" ", "_").replace("\t", " ") for path in tmp_path.glob("*.tsv")}
    assert written == TABLES
    assert [path.name for path in folder.written if path.suffix == ".png"] == ["labels.png", "structure.png", "parsers.png"]
    print_found(FOUND)
    assert capsys.readouterr().out == SAID
    assert _read(FOUND) == "trained on 1,193 words, scored on 1,073; their vectors are 3 MB; read in windows: 2 sentences"
    assert _read(dataclasses.replace(FOUND, size=0, cut=0)) == "trained on 1,193 words, scored on 1,073"


def test_labels_that_no_training_word_has_are_reported(capsys: pytest.CaptureFixture[str]):
    labels = dataclasses.replace(LABELS, unseen=NamedArray(np.array([0, 3]), LABELS.unseen.axes))
    print_found(dataclasses.replace(FOUND, labels=labels, structure=None, parsers=None))
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WARNING")]
    assert said == ["WARNING: 3 of the 70 scored words have a label (relation) that no training word has"]


@pytest.mark.usefixtures("figures")
def test_untrained_probes_have_no_table_and_no_line(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    none = Probes(None, None, None, (1, 1), 0, 0)
    for field, table in (("labels", {"labels.tsv", "mix.tsv"}), ("structure", {"structure.tsv"}), ("parsers", {"parsers.tsv"})):
        write_probes(folder := Folder(tmp_path / field), dataclasses.replace(none, **{field: getattr(FOUND, field)}))
        assert {path.name for path in folder.path.glob("*.tsv")} == table
    print_found(none)
    assert capsys.readouterr().out == ""


def test_the_best_layer_has_a_finite_value(capsys: pytest.CaptureFixture[str]):
    values = STRUCTURE.scores.values.copy()
    values[:, 1] = np.nan
    turned = NamedArray(LABELS.accuracy.values[:, :, [1, 0, 2]], LABELS.accuracy.axes)
    print_found(dataclasses.replace(FOUND, labels=dataclasses.replace(LABELS, accuracy=turned), structure=None, parsers=None))
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["upos", "1", "0.910"]
    print_found(dataclasses.replace(FOUND, labels=None, parsers=None, structure=dataclasses.replace(
        STRUCTURE, scores=NamedArray(values, STRUCTURE.scores.axes))))  # fmt: skip
    assert capsys.readouterr().out.splitlines()[1].split() == ["uuas", "0", "0.016", "0.266", "1.000"]


def tall(found: NamedArray, probes: int) -> NamedArray:
    """Returns as many probes as a model with many layers has; the last one is the mix."""
    axis = list(found.axes).index("probe")
    values = np.take(found.values, [*range(probes - 1), -1], axis=axis, mode="wrap")
    return NamedArray(values, {**found.axes, "probe": [*range(probes - 1), "mix"]})


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("probe_labels", lambda: labels_figure(LABELS)),
        ("probe_labels_of_15_probes", lambda: labels_figure(deep(15))),
        ("probe_labels_of_16_probes", lambda: labels_figure(deep(16))),
        ("probe_structure", lambda: structure_figure(STRUCTURE)),
        ("probe_parsers", lambda: parsers_figure(PARSERS)),
    ],
)
def test_every_figure_equals_its_golden_description(name: str, figure: type[Figure]):
    assert_as_looked_at(figure(), name)


def deep(probes: int) -> LabelProbes:
    """Returns one kind of label, whose control task is easier than the label."""
    one = labels_of(("upos",))
    return dataclasses.replace(one, accuracy=tall(NamedArray(one.accuracy.values[:, ::-1], one.accuracy.axes), probes))
