"""Every module that is a program runs its command, and reports errors in one line."""

from __future__ import annotations

import ast
import pathlib

import pytest

import bert_jax

PACKAGE = pathlib.Path(bert_jax.__file__).parent
PROGRAMS = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if "\n    run_command(" in path.read_text())


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs_its_own_command_before_its_imports(program: str):
    _, _, first, *_ = ast.parse((PACKAGE / program).read_text()).body
    assert isinstance(first, ast.If)
    assert ast.unparse(first.test) == "__name__ == '__main__'"
    command = program.removesuffix(".py").replace("/", ".")
    assert ast.unparse(first.body[-1]).startswith(f"run_command('bert_jax.{command}'")


def test_every_command_is_a_program():
    assert {f"{command}.py" for command in ("pretrain", "finetune", "predict", "convert", "aot", "analyse", "study")} <= {
        *PROGRAMS
    }
