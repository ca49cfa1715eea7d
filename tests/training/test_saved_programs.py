"""Saved programs: which changes give another one, and its file. `tests/tpu/costs/test_compiled.py` saves and loads real ones."""

from __future__ import annotations

import importlib.metadata
import logging
import pathlib
import re
import types
from typing import Any

import jax
import pytest
from jax.experimental import serialize_executable

from bert_jax.errors import UserError
from bert_jax.training.compilation import compatibility, compiling, load_program, program_name, save_program


def lowered(text: str = "module") -> Any:
    return types.SimpleNamespace(as_text=lambda: text)


def device(kind: str = "TPU v5 lite", platform: str = "tpu", **place: Any) -> Any:
    return types.SimpleNamespace(device_kind=kind, platform=platform, **place)


@pytest.fixture(autouse=True)
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Sets the versions of the compilers, whether or not they are installed."""
    found = {"libtpu": "0.0.42", "jaxlib": "0.10.2"}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found[name])
    return found


def test_the_name_of_a_program_depends_on_step_compiler_and_devices(versions):
    at = [device(coords=(0, 0, 0), slice_index=0), device(coords=(1, 0, 0), slice_index=0)]
    first = program_name(lowered(), at)
    assert re.fullmatch(r"[0-9a-f]{24}\.program", first)
    others = [
        program_name(lowered("another module"), at),
        program_name(lowered(), at[:1]),
        program_name(lowered(), at[::-1]),
        program_name(lowered(), [at[0], device(coords=(1, 0, 0), slice_index=1)]),
        program_name(lowered(), [device("TPU v4", coords=one.coords) for one in at]),
    ]
    versions["libtpu"] = "0.0.43"
    others.append(program_name(lowered(), at))
    assert len({first, *others}) == len(others) + 1
    versions["libtpu"], versions["jaxlib"] = "0.0.42", "0.10.3"  # another jaxlib compiles nothing for a TPU
    assert program_name(lowered(), at) == first


def test_the_name_of_a_program_does_not_depend_on_source_lines_or_a_single_slice():
    text = 'func @main() { loc("file.py":1:2)\n  return loc(unknown)\n}\n#loc1 = loc("file.py":1:2)\n'
    alone = [device(), device(slice_index=None), device(slice_index=0)]
    assert len({program_name(lowered(text), [one]) for one in alone}) == 1
    assert program_name(lowered(text), alone) == program_name(lowered(text.replace("1:2", "3:4")), alone)


def test_the_devices_and_versions_of_a_program_are_described():
    assert compatibility([device(), device("none")]) == f"2 x TPU v5 lite, jax {jax.__version__}, libtpu 0.0.42"
    cpus = [device("cpu", "cpu"), device()]
    assert compatibility(cpus) == f"2 x cpu, jax {jax.__version__}, jaxlib 0.10.2"


def test_a_saved_program_is_one_file_with_a_header(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serialize_executable, "serialize", lambda executable: (executable.payload, None, None))
    monkeypatch.setattr(serialize_executable, "deserialize_and_load", lambda payload, *_, **__: payload)
    executable: Any = types.SimpleNamespace(payload=b"compiled\nfor a step")
    directory, devices, step = tmp_path / "programs" / "of a run", [device()], lowered()
    step.args_info, step.out_tree = ((), {}), None
    for _ in range(2):
        file = save_program(directory, step, executable, devices)
    assert list(directory.iterdir()) == [file]
    assert file == directory / program_name(step, devices)
    assert file.read_bytes() == compatibility(devices).encode() + b"\ncompiled\nfor a step"
    assert load_program(directory, step, devices) == executable.payload
    says = rf"holds programs for {compatibility(devices)}; this run needs a program of its step for 1 x TPU v4, "
    with pytest.raises(UserError, match=says):
        load_program(directory, step, [device("TPU v4")])
    with pytest.raises(UserError, match=r"^--compiled=.*none is not a directory; make it with"):
        load_program(directory / "none", step, devices)
    save_program(directory, lowered("another"), executable, [device("TPU v4")])
    with pytest.raises(
        UserError,
        match=r"for 1 x TPU v4, .*, libtpu 0\.0\.42 and for 1 x TPU v5 lite, .*, but for a different "
        r"step",
    ):
        load_program(directory, step, [device("TPU v4")])


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes 65 seconds pass between two looks at the clock."""
    moments = iter(range(1_000, 2_000, 65))
    monkeypatch.setattr("time.monotonic", lambda: next(moments))


def test_a_compilation_is_logged_with_its_time(seconds: None, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    with compiling("the evaluation", "seed-1  "):
        assert caplog.messages == ["seed-1  compiling the evaluation"]
    assert caplog.messages[1:] == ["seed-1  compiled the evaluation in 1m05s"]
