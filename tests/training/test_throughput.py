from __future__ import annotations

import math

import pytest

from bert_jax.hardware import peak_flops
from bert_jax.runtime.goodput import GoodputRecorder, TimeCategory
from bert_jax.training.log import Throughput, training_line


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("kind", "tera"),
    [
        ("TPU v2", 22.5),
        ("TPU v3", 61.5),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5e", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("TPU v6e", 918),
        ("TPU7x", 1153.5),  # one of a chip's two cores
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),  # a part of a GPU
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA L40", None),  # neither an L4 nor an L40S
        ("NVIDIA A10G", None),
        ("cpu", None),
    ],
)
def test_peaks_equal_the_data_sheets_and_match_whole_device_names(kind: str, tera: float | None):
    assert peak_flops(kind) == (None if tera is None else tera * 1e12)


def test_throughput_excludes_pauses_and_restarts_after_each_report():
    clock = Clock()
    goodput = GoodputRecorder(clock)
    throughput = Throughput(goodput, clock)
    for _ in range(4):
        clock.now += 0.5
        throughput.add(10, tokens=1000, flops=5e9)
    with throughput.pause(TimeCategory.SAVING):
        clock.now += 60
    first = throughput.report(flops_left=100e9)
    assert first == {"rows_per_second": 20, "tokens_per_second": 2000, "flops_per_second": 10e9, "seconds_left": 10}
    clock.now += 1
    throughput.add(1, tokens=2, flops=3)
    second = {"rows_per_second": 1, "tokens_per_second": 2, "flops_per_second": 3, "seconds_left": 2}
    assert throughput.report(flops_left=6) == second
    clock.now += 1
    assert throughput.report(flops_left=6)["seconds_left"] == math.inf  # if nothing was done
    throughput.add(3, tokens=2, flops=1)
    assert throughput.report(flops_left=6)["rows_per_second"] == 3e9  # no division by 0, although the clock has not moved


def test_training_line_shows_utilisation_or_flops_without_a_known_peak():
    scores = ["MLM loss 6.213", "MLM accuracy 18.4 %", "NSP accuracy 62.0 %"]
    rates = {"rows_per_second": 4310.4, "tokens_per_second": 478_100.0, "flops_per_second": 902e12, "seconds_left": 3722.0}
    line = "step  1,200/10,000  MLM loss 6.213  MLM accuracy 18.4 %  NSP accuracy 62.0 %  4,310 rows/s  478 k tokens/s"
    assert training_line(1200, 10_000, scores, rates, "TPU v4", 8) == line + "  41 % of peak  ETA 1h02m"
    assert training_line(1200, 10_000, scores, rates, "cpu", 1) == line + "  902 TFLOP/s  ETA 1h02m"


def test_training_line_without_nsp_and_at_the_last_step():
    rates = {"rows_per_second": 30.2, "tokens_per_second": 3400.0, "flops_per_second": 107e9, "seconds_left": 0.0}
    line = training_line(500, 500, ["MLM loss 5.000", "MLM accuracy 20.0 %"], rates, "cpu", 1)
    assert line == "step 500/500  MLM loss 5.000  MLM accuracy 20.0 %  30.2 rows/s  3,400 tokens/s  107 GFLOP/s"


def test_training_line_of_a_task_has_its_accuracy_and_no_eta_if_unknown():
    rates = {"examples_per_second": 30.2, "tokens_per_second": 3400.0, "flops_per_second": 107e9, "seconds_left": math.inf}
    line = training_line(5, 500, ["loss 5.000", "accuracy 25.0 %"], rates, "cpu", 1)
    assert line == "step   5/500  loss 5.000  accuracy 25.0 %  30.2 examples/s  3,400 tokens/s  107 GFLOP/s"
