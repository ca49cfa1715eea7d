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

from bert_jax import analyse
from bert_jax.errors import UserError
from bert_jax.interface import early_flags
from bert_jax.interface.early_flags import LIBRARIES, checked_early
from bert_jax.prediction.verbs import VERBS

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
WITH_STAND_INS = ("analyse", "convert", "aot", "doctor")
CHECKS = {
    **dict.fromkeys(("pretrain", "finetune", "study"), "bert_jax.configs.command_line"),
    "predict": "bert_jax.prediction.verbs",
}
"""Command -> the module whose `check_flags` knows its flags without what it computes with."""
HELPS = [
    *((name, "--help") for name in (*WITH_STAND_INS, *CHECKS, "tasks.texts")),
    *(("analyse", verb, "--help") for verb in analyse.VERBS),
    *(("predict", verb, "--help") for verb in VERBS),
]

EACH = f"""
import contextlib, importlib, io, sys
from bert_jax.interface.early_flags import LIBRARIES, checked_early
for line in sys.stdin.read().splitlines():
    name, *sys.argv[1:] = line.split()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            if name in {CHECKS!r}:
                importlib.import_module({CHECKS!r}[name]).check_flags(name, "The help of " + name)
            elif name == "tasks.texts":
                importlib.import_module("bert_jax.tasks.texts").parse_flags()
            else:
                checked_early("bert_jax." + name, "parse_flags")
            said = io.StringIO("not answered")
        except SystemExit as end:
            assert end.code == 0
    print(repr((line, sorted(LIBRARIES & {{module.partition(".")[0] for module in sys.modules}}), said.getvalue())))
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
        check = importlib.import_module(CHECKS[name]).check_flags if name in CHECKS else None
        parse = functools.partial(check, name, f"The help of {name}") if check else None
        with pytest.raises(SystemExit):
            (parse or importlib.import_module(f"bert_jax.{name}").parse_flags)()
        assert said == capsys.readouterr().out, asked
        assert libraries == [], asked
    assert len(done.stdout.splitlines()) == len(HELPS)


def test_a_mistake_in_the_flags_is_told_early_and_afterwards_all_is_imported_as_ever(monkeypatch: pytest.MonkeyPatch):
    jax, module = sys.modules["jax"], sys.modules["bert_jax.analyse"]
    monkeypatch.setattr(sys, "argv", ["analyse", "heads", "--output=d", "--model=m", "--modle=n"])
    with pytest.raises(UserError, match="unknown argument --modle=n: did you mean '--model'"):
        checked_early("bert_jax.analyse", "parse_flags")
    assert (sys.modules["jax"], sys.modules["bert_jax.analyse"]) == (jax, module)


def test_a_module_that_needs_a_library_as_it_is_imported_checks_its_flags_later(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(early_flags, "LIBRARIES", frozenset({"heavy"}))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "command.py").write_text("import heavy.part\nassert heavy.part.count(3) == 2\ndef parse(): raise SystemExit(0)")
    checked_early("command", "parse")
    assert "heavy" not in sys.modules
    assert {"jax", "flax", "matplotlib"} <= LIBRARIES
