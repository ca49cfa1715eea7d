"""Every module that is a program runs its command, and reports errors in one line."""

from __future__ import annotations

import pathlib
import runpy

import pytest

import bert_jax

PACKAGE = pathlib.Path(bert_jax.__file__).parent
PROGRAMS = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if "\n    run_command(" in path.read_text())


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_module_runs_its_command_as_a_program_and_nothing_when_imported(program: str, monkeypatch: pytest.MonkeyPatch):
    run: list[str] = []
    monkeypatch.setattr("bert_jax.interface.command.run_command", lambda module, **how: run.append(module))
    runpy.run_path(str(PACKAGE / program))
    assert run == []
    runpy.run_path(str(PACKAGE / program), run_name="__main__")
    assert run == ["bert_jax." + program.removesuffix(".py").replace("/", ".")]


def test_every_command_is_a_program():
    assert {f"{command}.py" for command in ("pretrain", "finetune", "predict", "convert", "aot", "analyse", "study")} <= {
        *PROGRAMS
    }
