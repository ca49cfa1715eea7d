"""What a command answers before it has imported what it computes with: its help, and what is wrong with its flags."""

from __future__ import annotations

import ast
import functools
import importlib
import os
import pathlib
import subprocess
import sys

import pytest

from bert_jax import analyse, predict
from bert_jax.configs.command_line import check_flags
from bert_jax.errors import UserError
from bert_jax.interface import early_flags
from bert_jax.interface.early_flags import LIBRARIES, checked_early

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
WITH_STAND_INS = ("analyse", "predict", "convert", "aot", "doctor", "tasks.texts")
HELPS = [
    *((name, "--help") for name in (*WITH_STAND_INS, "pretrain", "finetune", "study")),
    *(("analyse", verb, "--help") for verb in analyse.VERBS),
    *(("predict", verb, "--help") for verb in predict.VERBS),
]

EACH = """
import contextlib, io, sys
from bert_jax.interface.early_flags import LIBRARIES, checked_early
for line in sys.stdin.read().splitlines():
    name, *sys.argv[1:] = line.split()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            if name in ("pretrain", "finetune", "study"):
                from bert_jax.configs.command_line import check_flags
                check_flags(name, f"The help of {name}.")
            else:
                checked_early(f"bert_jax.{name}", "parse_flags")
            said = io.StringIO("not answered")
        except SystemExit as end:
            assert end.code == 0
    print(repr((line, sorted(LIBRARIES & {module.partition(".")[0] for module in sys.modules}), said.getvalue())))
"""


def test_every_help_comes_without_the_libraries_and_is_the_one_that_comes_with_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    lines = "".join(f"{' '.join(help)}\n" for help in HELPS)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-c", EACH], input=lines, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("COLUMNS", "100")
    for line in done.stdout.splitlines():
        asked, libraries, said = ast.literal_eval(line)
        name, *arguments = asked.split()
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        trains = name in ("pretrain", "finetune", "study")
        parse = functools.partial(check_flags, name, f"The help of {name}.") if trains else None
        with pytest.raises(SystemExit):
            (parse or importlib.import_module(f"bert_jax.{name}").parse_flags)()
        assert said == capsys.readouterr().out, asked
        assert libraries == [], asked
    assert len(done.stdout.splitlines()) == len(HELPS)


def test_a_mistake_in_the_flags_is_told_early_and_afterwards_all_is_imported_as_ever(monkeypatch: pytest.MonkeyPatch):
    jax, module = sys.modules["jax"], sys.modules["bert_jax.predict"]
    monkeypatch.setattr(sys, "argv", ["predict", "classify", "--model=m", "--modle=n"])
    with pytest.raises(UserError, match="unknown argument --modle=n: did you mean '--model'"):
        checked_early("bert_jax.predict", "parse_flags")
    assert (sys.modules["jax"], sys.modules["bert_jax.predict"]) == (jax, module)


def test_a_module_that_needs_a_library_as_it_is_imported_checks_its_flags_later(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(early_flags, "LIBRARIES", frozenset({"heavy"}))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "command.py").write_text("import heavy.part\nassert heavy.part.count(3) == 2\ndef parse(): raise SystemExit(0)")
    checked_early("command", "parse")
    assert "heavy" not in sys.modules
    assert {"jax", "flax", "matplotlib"} <= LIBRARIES
