"""Every benchmark ends with a table for people, and writes its figures to a file for programs."""

from __future__ import annotations

import ast
import importlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.figures import flag_parser, give, table

BENCHMARKS = sorted(path.stem for path in pathlib.Path(__file__).parent.glob("benchmark_*.py"))


def test_a_table_is_aligned_with_its_numbers_to_the_right():
    rows = [["ours", "1,024.5", "128"], ["peer, tuned", "9.1", "128, packed"]]
    assert table(["side", "rows/s", "length"], rows).splitlines() == [
        "| side        |  rows/s | length      |",
        "| ----------- | ------: | ----------- |",
        "| ours        | 1,024.5 | 128         |",
        "| peer, tuned |     9.1 | 128, packed |",
    ]


def test_only_the_table_is_printed_and_the_figures_are_in_the_file(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    figures = {"seconds": [0.125] * 1_000}
    give(["side"], [["ours"]], figures, tmp_path / "figures.json")
    assert capsys.readouterr().out == "| side |\n| ---- |\n| ours |\n"
    assert json.loads((tmp_path / "figures.json").read_text()) == figures
    give(["side"], [["ours"]], figures)
    assert len(capsys.readouterr().out) < 30


def test_an_unwritable_file_is_refused_before_measuring(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    assert flag_parser("").parse_args([f"--json={tmp_path / 'new.json'}"]).json == tmp_path / "new.json"
    for place in (tmp_path, tmp_path / "missing" / "new.json"):
        with pytest.raises(SystemExit):
            flag_parser("").parse_args([f"--json={place}"])
        assert "is not a path for a file; name a file in an existing directory" in capsys.readouterr().err


def _module(name: str) -> Any:
    return importlib.import_module(f"tests.benchmarks.benchmark_{name}")


def _gpu_figure(who: str) -> dict[str, Any]:
    rest = {"waiting_for_input": 0.0, "peak_bytes": 2**30, "matmul": 8e14}
    return {"who": who, "size": "large", "length": 512, "rows": 64, "seconds": [0.25], **rest}


def _tpu_results() -> list[Any]:
    kept = (0.5, 0.9, 1.5, {"compute": 1.0}, 3.0, [("update", 0.5)])
    return [_module("tpu_programs").Result("v5e-512", who, 16, ms, *kept) for who, ms in (("plain", 40.0), ("ours", 20.0))]


CURVES = np.linspace([9.0, 9.1], [3.0, 3.2], 40, axis=1)
OTHERS = CURVES + np.sin(np.outer([1.0, 2.5], np.arange(40)))
RUN = {"sentences": 100, "seconds": [0.5, 0.25], "peak_mb": 512.0, "rows_per_second": 40.0}
REPORTS: dict[str, Callable[[pathlib.Path], None]] = {
    "attention_kernel": lambda file: _module("attention_kernel").report(
        [{"topology": "v5e:2x2", "length": 128, "dropout": 0.1, "forward": 200.0, "backward": 600.0}], file
    ),
    "batches": lambda file: _module("batches").report(
        [
            {"who": who, "length": length, "how": "bare", "use": use, "batch_size": 64, "rows_per_second": rate}
            for length in ("128", "512")
            for who, use, rate in (("ours", None, 4e5), ("peer", "as documented", 2e4), ("peer", "bare", 5e4))
        ],
        file,
    ),
    "bilm": lambda file: _module("bilm").report(
        {(who, shape): [0.5, 0.6] for shape in ("projected", "plain") for who in ("ours", "peer as installed")}, file
    ),
    "dependencies": lambda file: _module("dependencies").report(
        {"ours": [RUN | {"cpu": [1.0], "first": 2.0}], "peer": [RUN | {"cpu": [2.0], "first": 3.0}]}, [(0, 900)], file
    ),
    "embed": lambda file: _module("embed").report({"ours": [RUN], "peer": [RUN]}, 1e-7, file),
    "finetune": lambda file: _module("finetune").report({("mrpc", "ours"): [RUN], ("mrpc", "peer"): [RUN]}, file),
    "generate": lambda file: _module("generate").report(
        {(who, 8): [{"seconds": [0.5], "tokens": [[7]]}] for who in ("ours", "peer")}, 64, file
    ),
    "gpu_step": lambda file: _module("gpu_step").report([_gpu_figure("ours"), _gpu_figure("peer, mask")], file),
    "gradient_rounding": lambda file: _module("gradient_rounding").report(
        [{"devices": 16, "rows": 4, "rounding": 0.0044, "noise": 0.51}], file
    ),
    "long_attention": lambda file: _module("long_attention").report(
        [
            {"length": 8_192, "layer": "full", "block": block, "kernel": ms, "other": 0.25}
            for block, ms in ((0, 6.0), (512, 12.0))
        ],
        {"topology": "v5e:2x2", "libtpu": "1.0"},
        file,
    ),
    "loss_curves": lambda file: _module("loss_curves").report(CURVES, OTHERS, {"overrides": []}, file),
    "plans": lambda file: _module("plans").report(
        [{"tokens": 10**9, "rows": 10**7, "first": 3.5, "middle": 7.0, "mib": 900.0}], file
    ),
    "saving": lambda file: _module("saving").report(
        {
            "bytes": 2**30,
            "copy": [0.5],
            "digests": [0.2],
            "bookkeeping": {"bare": 90.0, "run": 100.0},
            "saves": {"disk": [{"stopped": 1.0, "complete": 3.0}]},
        },
        file,
    ),
    "scaling": lambda file: _module("scaling").report(
        [_module("scaling").Point("base", 128, 4, 64, 19.3, 2.7, 397.0, 2.6, 0.506)], "v5p", file
    ),
    "step": lambda file: _module("step").report({("ours", "bert-128"): [0.5], ("peer", "bert-128"): [1.0]}, file),
    "tpu_programs": lambda file: _module("tpu_programs").compare(_tpu_results(), file),
    "translation": lambda file: _module("translation").report(
        {who: [{"seconds": [9.0, 1.0, 0.5, 0.6]}] for who in ("ours", "peer")},
        {who: [{"translation_seconds": [2.0], "translations": [[7]]}] for who in ("ours", "peer, batch 32")},
        242.0,
        {"ours": 38.5, "peer, batch 32": None},
        file,
    ),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_prints_a_table_and_writes_its_figures(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("importlib.metadata.version", lambda package: "1.0")  # made by the TPU compiler, which may be missing
    REPORTS[name.removeprefix("benchmark_")](tmp_path / "figures.json")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("| ")
    assert lines[-1].endswith(" |")
    assert all(len(line) <= 160 for line in lines)
    assert json.loads((tmp_path / "figures.json").read_text())


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_accepts_the_json_flag(name: str):
    tree = ast.parse((pathlib.Path(__file__).parent / f"{name}.py").read_text())
    calls = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert {"flag_parser", "give"} <= set(calls)
    assert "--json=FILE" in (ast.get_docstring(tree) or "")
