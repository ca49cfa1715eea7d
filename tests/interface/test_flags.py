"""Which values the command line accepts, and which it rejects in one sentence."""

from __future__ import annotations

import argparse
import pathlib
import sys

import pytest

from bert_jax.errors import UserError
from bert_jax.interface.flags import FlagParser, nonempty, nonempty_path


def parser() -> FlagParser:
    made = FlagParser(prog="command")
    made.add_argument("-k", "--top-k", default="5")
    made.add_argument("--lists", type=lambda text: text.split(","), default=[])
    made.add_argument("--source", action="append", default=[])
    made.add_argument("--quiet", action="store_true")
    return made


def refusal(*given: str, of: FlagParser | None = None) -> str:
    with pytest.raises(UserError) as error:
        (of or parser()).parse_args(given)
    return str(error.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--top=1"], "unknown argument --top=1: did you mean '--top-k'?"),  # abbreviations are not accepted
        (["--quite", "--sorce=a"], "unknown argument --quite: did you mean '--quiet'?"),
        (["a", "--sorce=b"], "unexpected 'a': every argument is a flag, --name=value; see command --help"),
        (["--top-k"], "argument -k/--top-k: expected one argument; write --flag=VALUE, with the equals sign; see command --help"),
        (["--quiet=1"], "argument --quiet: ignored explicit argument '1'; see command --help"),
        (["--lists=a", "--lists=b"], "--lists=a and --lists=b contradict each other; give one of them"),
        (["--top-k", "1", "-k", "2"], "--top-k=1 and -k=2 contradict each other; give one of them"),
        (["--top-k=1", "--top-k"], "--top-k=1 and --top-k contradict each other; give one of them"),
        (["--top-k=gs://b/a"], "--top-k=gs://b/a: this flag only accepts a local path; copy the file with `gcloud storage cp`"),
        (
            ["--source=a", "--source=gs://b"],
            "--source=gs://b: this flag only accepts a local path; copy the file with `gcloud storage cp`",
        ),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(given: list[str], says: str):
    assert refusal(*given) == says


def test_a_flag_without_a_value_may_be_repeated():
    flags = parser().parse_args(["--quiet", "--top-k=1", "--quiet", "--source=a"])
    assert (flags.quiet, flags.top_k, flags.source, flags.lists) == (True, "1", ["a"], [])


def test_the_hint_of_the_command_takes_precedence_over_the_nearest_flag():
    made = parser()
    made.hint_for_unknown = lambda argument: "" if argument.startswith("--s") else f"see {argument}"
    assert refusal("--config.a=1", of=made) == "unknown argument --config.a=1: see --config.a=1"
    assert refusal("--sources=1", of=made) == "unknown argument --sources=1: did you mean '--source'?"


def test_bucket_paths_are_accepted_only_by_their_flags_and_in_texts():
    made = parser()
    made.may_be_in_bucket = ("--source",)
    made.add_argument("texts", nargs="*")
    flags = made.parse_args(["--source=gs://b", "gs://is not a path"])
    assert (flags.source, flags.texts) == (["gs://b"], ["gs://is not a path"])


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOME", "/at/ada")
    return "/at/ada"


def test_a_tilde_is_the_home_directory_in_every_flag_and_in_no_text(home: str):
    made = parser()
    made.add_argument("--save", type=nonempty_path)
    made.add_argument("texts", nargs="*")
    flags = made.parse_args(["--top-k=~/a", "--source", "~", "--source=b/~", "--save=~/*.txt", "~/x"])
    assert (flags.top_k, flags.source, flags.save) == (f"{home}/a", [home, "b/~"], pathlib.Path(f"{home}/*.txt"))
    assert flags.texts == ["~/x"]


def test_a_tilde_without_a_home_directory_is_refused(monkeypatch: pytest.MonkeyPatch):
    remedy = "so ~ cannot be expanded; write the full path, or ./~no.body/m for a file of that name"
    assert refusal("--top-k=~no.body/m") == f"--top-k=~no.body/m: there is no user 'no.body', {remedy}"
    monkeypatch.setenv("HOME", "")
    assert refusal("--top-k=~/m").startswith("--top-k=~/m: HOME is not set, so ~ cannot be expanded;")


def test_arguments_default_to_those_of_the_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["command", "--top-k=3"])
    assert parser().parse_args().top_k == "3"
    flags = parser().parse_args([], argparse.Namespace(source=["b"]))
    assert (flags.top_k, flags.source) == ("5", ["b"])


def test_a_name_is_not_changed_and_a_blank_one_is_refused():
    assert (nonempty(" a"), nonempty_path("a/b")) == (" a", pathlib.Path("a/b"))
    for blank in ("", "  "):
        with pytest.raises(argparse.ArgumentTypeError, match=f"^={blank} is empty; give a name, or leave the flag out$"):
            nonempty(blank)
