"""The process that compiles kernels alone: its input for the compiler, and the dumps that it reads."""

from __future__ import annotations

import io
import json
import os
import pathlib
import re
import runpy
import sys
from typing import Any

import jax
import pytest

from bert_jax.tpu.costs import kernel_compiler
from tests.tpu.costs.devices import Executable, install_compiler

DUMPS = {
    "10-other-71-schedule-analysis_final_bundles.txt": "of a copy",
    "10-other-72-final_bundles.txt": "of a copy",
    "11-TLP-k-71-schedule-analysis_final_bundles.txt": '"tpu_custom_call"',
    "11-TLP-k-72-final_bundles.txt": "of the whole program",
    "12-k-71-schedule-analysis_final_bundles.txt": 'of "tpu_custom_call"',
    "12-k-72-final_bundles.txt": "the schedule",
    "13-k-72-final_bundles.txt": "of something later",
}
"""The compiler's dumps for one kernel, by their names."""
WITHOUT_SCHEDULE = {name: text for name, text in DUMPS.items() if name != "12-k-72-final_bundles.txt"}
WITHOUT_KERNEL = {name: text for name, text in DUMPS.items() if "12" not in name}
CALL = {"config": "{}", "operands": [["bf16", [8, 128]], ["s32", []]], "results": [["f32", [8, 128]]]}


class Jit:
    """Replaces `jax.jit`, which cannot lower a kernel of a TPU for the CPU."""

    def __init__(self) -> None:
        self.arguments: list[Any] = []

    def __call__(self, function: Any) -> Jit:
        self._function = function
        return self

    def lower(self, *arguments: jax.ShapeDtypeStruct) -> Any:
        assert [str(x) for x in jax.eval_shape(self._function, *arguments)] == ["ShapeDtypeStruct(shape=(8, 128), dtype=float32)"]
        self.arguments.append([(x.shape, x.dtype.name, len(x.sharding.device_set)) for x in arguments])
        return LOWERED


LOWERED = jax.jit(lambda: 0).lower()


def test_every_kernel_gets_the_schedule_among_its_own_dumps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """A kernel that the compiler refuses has none, and neither has one for which the compiler writes nothing."""
    answers: list[dict[str, str] | None] = [DUMPS, {}, WITHOUT_KERNEL, WITHOUT_SCHEDULE, None, DUMPS]

    def compile(lowered: jax.stages.Lowered) -> Executable:
        (directory,) = re.findall(r"--xla_jf_dump_to=(\S+)", os.environ["LIBTPU_INIT_ARGS"])
        dumps = answers.pop(0)
        if dumps is None:
            raise jax.errors.JaxRuntimeError("INTERNAL: no such kernel\nmore")
        for name, text in dumps.items():
            (pathlib.Path(directory) / name).write_text(text)
        return Executable("")

    jit = Jit()
    install_compiler(monkeypatch, compile)
    monkeypatch.setattr(sys, "argv", ["kernel_compiler", "v5e:2x2"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps([CALL] * len(answers))))
    monkeypatch.setattr(jax, "jit", jit)
    cached = jax.config.jax_enable_compilation_cache
    try:
        runpy.run_path(kernel_compiler.__file__, run_name="__main__")
    finally:
        jax.config.update("jax_enable_compilation_cache", cached)
    said = capsys.readouterr()
    assert json.loads(said.out) == ["the schedule", None, None, None, None, "the schedule"]
    assert said.err == "INTERNAL: no such kernel\n"
    assert jit.arguments == [[((8, 128), "bfloat16", 1), ((), "int32", 1)]] * 6
