"""The flags of `predict` that need no model: ranges of numbers, and names of outputs."""

from __future__ import annotations

import contextlib
import pathlib

import pytest

from bert_jax import predict
from bert_jax.errors import UserError
from bert_jax.predict import main
from bert_jax.prediction.commands import COMMANDS, command_parser


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("generate", ("--temperature=0.5", "--temperature=1000", "!--temperature=0", "!--temperature=1001")),
        ("generate", ("--top-p=0.5", "--top-p=1", "!--top-p=0", "!--top-p=1.5", "--beams=64", "!--beams=65", "!--beams=0")),
        ("answer", ("--length=8", "!--length=7")),
        ("translate", ("--beams=1", "--beams=64", "!--beams=0", "!--beams=65")),
        ("translate", ("--length-penalty=0", "--length-penalty=10", "!--length-penalty=-0.1", "!--length-penalty=10.1")),
        ("fill-mask", ("--pieces=1", "--pieces=8", "!--pieces=0", "!--pieces=9")),
    ],
)
def test_numbers_at_their_limits_are_accepted_and_beyond_refused(command, flags):
    for flag in flags:
        with pytest.raises(UserError) if flag.startswith("!") else contextlib.nullcontext():
            command_parser(command, COMMANDS[command]).parse_args(["--model=m", flag.removeprefix("!")])


def test_the_profile_of_terminal_output_is_in_the_current_directory():
    beside = [predict._directory(output) for output in (None, "-", "x.jsonl", "a/b/x.jsonl")]
    assert beside == [pathlib.Path(), pathlib.Path(), pathlib.Path(), pathlib.Path("a/b")]


def test_vectors_of_words_are_written_only_as_json_lines():
    with pytest.raises(UserError, match=r"cannot be written as \.txt; give a name that ends in \.jsonl \(JSON lines\)$"):
        main(["embed", "--model=nowhere/at/all", "--words", "--output=x.txt", "the"])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_lists_its_flags(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0
    assert COMMANDS[command].summary[1:] in " ".join(shown.split())
    flags = {"--model", "--input", "--jsonl", "--output", "--json"}
    own = {f"--{name.replace('_', '-')}" for name in COMMANDS[command].question.__dataclass_fields__}
    assert all(flag in shown for flag in flags | own)


def test_help_lists_the_commands(capsys):
    for arguments in ([], ["--help"]):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        shown = capsys.readouterr().out
        assert end.value.code == 0
        assert all(f"  {command} " in shown for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_is_required(command):
    with pytest.raises(UserError, match="--model"):
        command_parser(command, COMMANDS[command]).parse_args(["the"])


@pytest.mark.parametrize("flag", ["--model", "--input", "--output"])
def test_an_empty_name_is_refused(flag):
    with pytest.raises(UserError, match=rf"^{flag}= is empty; give a name, or leave the flag out; see .* --help"):
        main(["embed", f"{flag}=", *([] if flag == "--model" else ["--model=m"]), "the"])


def test_every_option_of_a_question_is_a_flag_with_the_same_default():
    for name, command in COMMANDS.items():
        flags = vars(command_parser(name, command).parse_args(["--model=m"]))
        question = command.question()
        for option in question.__dataclass_fields__:
            assert flags[option] == getattr(question, option), (name, option)
