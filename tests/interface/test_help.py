"""What a command prints before it imports its heavy libraries: its help, and errors in its flags."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from bert_jax.analysis.flags import COMMANDS as ANALYSES
from bert_jax.analysis.flags import flag_parser as analyse_parser
from bert_jax.interface.flags import FlagParser, filled
from bert_jax.prediction.commands import COMMANDS as PREDICTIONS
from bert_jax.prediction.commands import command_parser as predict_parser

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
RUN = re.compile(r'^    run_command\("bert_jax\.([\w.]+)"(?:, check="([\w.]+:\w+)")?\)', re.M)
COMMANDS = dict(match.groups() for path in (REPOSITORY / "bert_jax").rglob("*.py") for match in RUN.finditer(path.read_text()))
"""Command -> the function that checks its flags; None if the command itself imports nothing slow."""
DOCSTRINGS = {
    name: ast.get_docstring(ast.parse((REPOSITORY / "bert_jax" / f"{name.replace('.', '/')}.py").read_text()))
    for name in COMMANDS
}
WRONG = {
    "analyse heads": "--model=m --output=d --modle=n",
    "predict embed": "--model=m --poling=mean",
    "convert": "--from=a --to=b --activaton=gelu",
    "aot": "--config=c --topology=v5e:1x1 --step=trian",
    "doctor": "--learning_rate=1",
    "corpus": "--source=embedded --output=o --vocb=v",
    "pretrain": "--learning_rate=1",
    "finetune": "--learning_rate=1",
    "study": "--start-timeout=0",
    "tasks.texts": "--task=t --output=o --data_dir=d",
}
"""Command -> flags, one of which is wrong."""
LINES = [
    *(f"{name} --help" for name in COMMANDS if name != "runtime.restarts"),  # it has no flags
    *(f"analyse {command} --help" for command in ANALYSES),
    *(f"predict {command} --help" for command in PREDICTIONS),
    *(f"{name} {flags}" for name, flags in WRONG.items()),
]
LIBRARIES = (
    "jax", "jaxlib", "flax", "optax", "orbax", "chex", "grain", "matplotlib", "scipy", "tensorboardX", "tokenizers",
    "safetensors", "tensorflow_datasets",
)  # fmt: skip
"""The libraries that take long to import."""
EACH = f"""
import contextlib, importlib, io, sys
from bert_jax.errors import UserError
for line in sys.stdin.read().splitlines():
    name, *sys.argv[1:] = line.split()
    checking, _, function = (({COMMANDS!r}[name]) or f"bert_jax.{{name}}:main").partition(":")
    check = getattr(importlib.import_module(checking), function)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            check(name, {DOCSTRINGS!r}[name]) if {COMMANDS!r}[name] else check()
        except UserError as error:
            said = io.StringIO(f"error: {{error}}")
        except SystemExit as end:
            assert end.code == 0
    print(repr((line, sorted({{*{LIBRARIES!r}}} & {{module.partition(".")[0] for module in sys.modules}}), said.getvalue())))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[list[str], str]]:
    """Returns command line -> (the libraries that are imported, the answer)."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"}
    command, asked = [sys.executable, "-c", EACH], "\n".join(LINES)
    done = subprocess.run(command, input=asked, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return {line: (libraries, said) for line, libraries, said in map(ast.literal_eval, done.stdout.splitlines())}


@pytest.mark.parametrize("line", LINES)
def test_help_and_flag_errors_import_no_heavy_libraries(answers: dict[str, tuple[list[str], str]], line: str):
    libraries, said = answers[line]
    assert libraries == []
    if line in {f"{name} {flags}" for name, flags in WRONG.items()}:
        wrong = line.split()[-1].partition("=")[0]
        assert said.startswith("error: ")
        assert wrong in said
    else:
        assert said.startswith(f"usage: python -m bert_jax.{line.removesuffix(' --help')} ")
        assert "--help" in said


HELPS = [line for line in LINES if line.endswith("--help")]


@pytest.mark.parametrize("line", HELPS)
def test_help_has_short_lines_an_example_and_grouped_flags_with_defaults(answers: dict[str, tuple[list[str], str]], line: str):
    said, command = answers[line][1], line.removesuffix(" --help")
    assert [long for long in said.splitlines() if len(long) > 100] == []
    if command not in ("analyse", "predict"):  # these two list their own commands
        flags = {title: re.findall(r"^  (--[\w.-]+)", part, re.M) for title, part in groups(said).items()}
        assert [title for title, names in flags.items() if names or title == "help"][-1] == "help", "after its own flags"
        assert flags.pop("help") == []  # only --help, which starts with -h
        assert sum(map(len, flags.values())) > 0
    assert re.findall(r"\(-?\d[\d.,]*\)$", said, re.M) == []  # a default is "(default: 5)"
    assert re.search(rf"^  (?:python -m bert_jax\.|tpu_scripts/run\.sh ){re.escape(command)}\b", said, re.M)


def groups(said: str) -> dict[str, str]:
    """Returns title -> flags for each group in a help text."""
    parts = re.split(r"^(\S.*):$", said, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", [*PREDICTIONS, *ANALYSES])
def test_the_examples_in_help_texts_parse(name: str):
    arguments = PREDICTIONS[name].example if name in PREDICTIONS else f"--output=DIR {ANALYSES[name][1]}"
    parser = predict_parser(name, PREDICTIONS[name]) if name in PREDICTIONS else analyse_parser(name)
    assert parser.parse_args(["--model=MODEL", *shlex.split(arguments)]).model == "MODEL"


@pytest.mark.parametrize("script", ["run.sh", "pod.sh"])
def test_the_help_of_a_script_has_short_lines_and_an_example(script: str):
    said = help_of_script(script)
    assert [line for line in said.splitlines() if len(line) > 100] == []
    assert "for example" in said.lower()


def help_of_script(script: str) -> str:
    return subprocess.run([REPOSITORY / "tpu_scripts" / script, "--help"], capture_output=True, text=True, check=True).stdout


def test_the_help_of_run_sh_lists_every_command():
    listed = re.findall(r"^  (\w+) ", help_of_script("run.sh").partition("Commands:\n")[2], re.M)
    assert sorted(listed) == sorted(name for name in COMMANDS if "." not in name)


def test_paragraphs_are_wrapped_and_commands_are_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "20")
    text = "one two three four five six\nseven\n\n    a command \\\n        of two lines\n\neight"
    assert filled(text) == "one two three four\nfive six seven\n\n  a command \\\n      of two lines\n\neight"
    assert filled("some well-known-names-of-files of gs://bucket/a_long_path_of_it") == (
        "some\nwell-known-names-of-files\nof\ngs://bucket/a_long_path_of_it"
    )


def test_names_of_flags_and_their_values_are_not_broken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "60")
    parser = FlagParser(prog="command", usage=f"command {'--a-flag-with-hyphens=N ' * 9}")
    parser.add_argument("--of", help="it may be one of the-first, the-second-one, the-third-one, or the-fourth-one")
    said = parser.format_help()
    assert "the-second-one" in said
    names = {word.strip(",") for word in said.split() if word.startswith(("the-", "--a"))}
    assert names == {"the-first", "the-second-one", "the-third-one", "the-fourth-one", "--a-flag-with-hyphens=N"}
