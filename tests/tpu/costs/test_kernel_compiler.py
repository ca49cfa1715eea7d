"""The process that compiles kernels alone: its input for the compiler, and the dumps that it reads."""

from __future__ import annotations

import io
import json
import pathlib
import runpy
import sys
from typing import Any

import jax
import pytest

from bert_jax.tpu.costs import kernel_compiler

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
CALL = {"config": "{}", "operands": [["bf16", [8, 128]], ["s32", []]], "results": [["f32", [8, 128]]]}


class Jit:
    """Replaces `jax.jit`: compiling writes `dumps` to `directory`, or fails."""

    def __init__(self, directory: pathlib.Path, dumps: dict[str, str] | None):
        self._directory, self._dumps = directory, dumps
        self.arguments: list[Any] = []

    def __call__(self, function: Any) -> Jit:
        self._function = function
        return self

    def lower(self, *arguments: jax.ShapeDtypeStruct) -> Jit:
        assert [str(x) for x in jax.eval_shape(self._function, *arguments)] == ["ShapeDtypeStruct(shape=(8, 128), dtype=float32)"]
        self.arguments += arguments
        return self

    def compile(self) -> None:
        if self._dumps is None:
            raise jax.errors.JaxRuntimeError("INTERNAL: no such kernel\nmore")
        for name, text in self._dumps.items():
            (self._directory / name).write_text(text)


def schedule(dumps: dict[str, str] | None, directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    jit = Jit(directory, dumps)
    with monkeypatch.context() as patch:
        patch.setattr(kernel_compiler.jax, "jit", jit)
        found = kernel_compiler.schedule_text(CALL, jax.devices(), directory)
    assert [(x.shape, x.dtype.name, len(x.sharding.device_set)) for x in jit.arguments] == [
        ((8, 128), "bfloat16", 1),
        ((), "int32", 1),
    ]
    return found


def test_the_schedule_of_the_kernel_is_selected_from_all_dumps(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    assert schedule(DUMPS, tmp_path, monkeypatch) == "the schedule"
    assert schedule({}, tmp_path, monkeypatch) is None, "and never a dump of the previous kernel"
    assert schedule({name: text for name, text in DUMPS.items() if "12" not in name}, tmp_path, monkeypatch) is None
    assert (
        schedule({name: text for name, text in DUMPS.items() if name != "12-k-72-final_bundles.txt"}, tmp_path, monkeypatch)
        is None
    )


def test_a_refused_kernel_is_named_and_has_no_schedule(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert schedule(None, tmp_path, monkeypatch) is None
    assert capsys.readouterr().err == "INTERNAL: no such kernel\n"


def test_the_answer_is_one_line_with_a_schedule_for_each_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    prepared: list[str] = []
    monkeypatch.setattr(kernel_compiler, "prepare_compiler", prepared.append)
    monkeypatch.setattr(kernel_compiler, "topology_devices", lambda topology: [topology.name])

    def found(call: Any, devices: Any, dumps: pathlib.Path) -> str:
        assert [str(dumps)] == prepared
        assert dumps.is_dir()
        return f"{call} on {devices[0]}"

    monkeypatch.setattr(kernel_compiler, "schedule_text", found)
    monkeypatch.setattr(sys, "argv", ["kernel_compiler", "v5e:2x2"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(["a", "b"])))
    cached = jax.config.jax_enable_compilation_cache
    try:
        kernel_compiler.main()
    finally:
        jax.config.update("jax_enable_compilation_cache", cached)
    assert json.loads(capsys.readouterr().out) == ["a on v5e:2x2", "b on v5e:2x2"]


def test_the_kernel_compiler_is_a_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("bert_jax.tpu.costs.topologies.prepare_compiler", lambda dumps: None)
    monkeypatch.setattr("bert_jax.tpu.costs.topologies.topology_devices", lambda topology: [])
    monkeypatch.setattr(sys, "argv", ["kernel_compiler", "v5e:2x2"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("[]"))
    cached = jax.config.jax_enable_compilation_cache
    try:
        runpy.run_path(kernel_compiler.__file__, run_name="__main__")
    finally:
        jax.config.update("jax_enable_compilation_cache", cached)
    assert capsys.readouterr().out == "[]\n"
