"""Every number that a user can set has a range; a value outside of it is rejected with an error that names the range."""

from __future__ import annotations

import math
import pathlib
import typing
from typing import Any

import pytest
from annotated_types import Interval

from bert_jax import corpus
from bert_jax.analysis import flags as analyse_flags
from bert_jax.configs.command_line import flag_parser
from bert_jax.configs.experiment_files import leaf_keys, read_experiment
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.configs.study import StudyExperiment
from bert_jax.errors import UserError
from bert_jax.interface import ranges
from bert_jax.interface.flags import FlagParser, nonempty, nonempty_path
from bert_jax.interface.ranges import COUNT, SEED, InRange, OneOf, check_value, intervals, range_error, range_text, value_types
from bert_jax.interop import flags as convert_flags
from bert_jax.interop.huggingface_config import config_from_json
from bert_jax.prediction.commands import COMMANDS as PREDICT_COMMANDS
from bert_jax.prediction.commands import command_parser
from bert_jax.tpu.costs import flags as aot_flags
from bert_jax.tpu.diagnosis import flags as doctor_flags
from tests.flags import replacing

ODD = ("nan", "inf", "-1", "0", "10000000000000", "")

# ------------------------------------------------------------------------------------------------------------------------- flags


def parser() -> FlagParser:
    made = FlagParser(prog="command")
    made.add_argument("--top-k", type=InRange(int, Interval(ge=1, le=9)), default=5)
    made.add_argument("--price", type=InRange(float, Interval(ge=0)))
    made.add_argument("--margin", type=InRange(float, Interval()))
    made.add_argument("--source", action="append", default=[])
    made.add_argument("--words", action="store_true")
    made.add_argument("texts", nargs="*")
    return made


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--top-k=0", "--top-k=0 must be at least 1 and at most 9; see command --help"),
        ("--top-k=10", "--top-k=10 must be at least 1 and at most 9"),
        ("--top-k=", "--top-k= must be a whole number, at least 1 and at most 9"),
        ("--top-k=1.5", "--top-k=1.5 must be a whole number, at least 1"),
        ("--top-k=10000000000000", "--top-k=10000000000000 must be at least 1 and at most 9"),
        ("--price=-1", "--price=-1 must be at least 0"),
        ("--price=nan", "--price=nan must be a finite number, at least 0"),
        ("--price=inf", "--price=inf must be a finite number, at least 0"),
        ("--margin=-inf", "--margin=-inf must be a finite number; see"),
        ("--margin=wide", "--margin=wide must be a number; see"),
    ],
)
def test_a_flag_outside_its_range_is_refused_with_the_range(argument: str, says: str):
    with pytest.raises(UserError) as error:
        parser().parse_args([argument])
    assert str(error.value).startswith(says)


def test_a_flag_inside_its_range_is_accepted():
    assert parser().parse_args(["--top-k=9", "--price=0", "--margin=-1e3"]).top_k == 9


@pytest.mark.parametrize("given", [["--top-k=1", "--top-k=2"], ["--top-k", "1", "a text", "--top-k=2"]])
def test_a_flag_given_twice_with_different_values_is_refused(given: list[str]):
    with pytest.raises(UserError, match=r"^--top-k=1 and --top-k=2 contradict each other; give one of them$"):
        parser().parse_args(given)


def test_a_flag_may_be_repeated_with_the_same_value_and_a_list_flag_with_others():
    flags = parser().parse_args(["--top-k=1", "--top-k=1", "--source=a", "--source=b", "--words", "--words", "--", "--top-k=2"])
    assert (flags.top_k, flags.source, flags.texts) == (1, ["a", "b"], ["--top-k=2"])


def test_ranges_are_described_in_plain_words():
    assert range_text(COUNT) == "at least 1 and at most 2,147,483,647"
    assert range_text(Interval(gt=0, lt=0.5)) == "above 0 and below 0.5"
    assert range_text(Interval()) == ""


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (ranges.Count, "at least 1 and at most 2,147,483,647"),
        (ranges.CountOrZero, "at least 0 and at most 2,147,483,647"),
        (ranges.Seed, "at least 0 and at most 4,294,967,295"),
        (ranges.BatchSize, "at least 1 and at most 1,048,576"),
        (ranges.Fraction, "at least 0 and at most 1"),
        (ranges.Dropout, "at least 0 and below 1"),
        (ranges.LearningRate, "at least 0 and at most 1e+30"),
        (ranges.Epsilon, "at least 1e-37 and at most 1"),
    ],
)
def test_shared_ranges_have_the_limits_of_their_kind(hint: Any, text: str):
    (interval,) = intervals(hint)
    assert range_text(interval) == text


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        (Interval(ge=1), (1, 2), (0, 0.999)),
        (Interval(gt=1), (1.001, 2), (1, 0)),
        (Interval(le=1), (1, 0), (1.001, 2)),
        (Interval(lt=1), (0.999, 0), (1, 2)),
        (Interval(gt=0, lt=1), (0.5,), (0, 1, -1, 2)),
        (SEED, (0, 2**32 - 1), (-1, 2**32)),
        (Interval(), (0, -1e300, 10**400), (math.inf, -math.inf, math.nan)),
    ],
)
def test_range_ends_are_inclusive_as_described(interval: Interval, inside: tuple[float, ...], outside: tuple[float, ...]):
    assert [range_error(value, interval) for value in inside] == [""] * len(inside)
    for value in outside:
        said = f"must be {range_text(interval)}" if math.isfinite(value) else "must be a finite number"
        assert range_error(value, interval) == said


@pytest.mark.parametrize(
    ("value", "hint", "says"),
    [
        (None, ranges.Count, ""),
        (0, ranges.Count, "k=0 must be at least 1 and at most 2,147,483,647"),
        (2, ranges.Count | None, ""),
        ((0.5, 1), tuple[ranges.Fraction, ...], ""),
        ((0.5, 2), tuple[ranges.Fraction, ...], "k.1=2 must be at least 0 and at most 1"),
        (((1,), (0,)), tuple[tuple[ranges.Count, ...], ...], "k.1.0=0 must be at least 1 and at most 2,147,483,647"),
        ((3,), typing.Annotated[tuple[ranges.Fraction, ...], "a remark"] | None, "k.0=3 must be at least 0 and at most 1"),
        ("a", ranges.Name, ""),
        ("", ranges.Name, "k='' must not be empty; give a value, or leave the key out for the default"),
        ("one", typing.Annotated[str, OneOf(("one", ""))], ""),
        ("on", typing.Annotated[str, OneOf(("one", ""))], "k='on' is not one of one, nothing; did you mean 'one'?"),
        ("zzz", typing.Annotated[str, OneOf(("one", ""))], "k='zzz' is not one of one, nothing"),
    ],
)
def test_nested_ranges_apply_to_their_part_of_a_value(value: Any, hint: Any, says: str):
    try:
        check_value("k", value, hint)
        said = ""
    except UserError as error:
        said = str(error)
    assert said == says


COMMANDS = {
    "pretrain": flag_parser("pretrain", ""),
    "study": flag_parser("study", ""),
    "finetune": flag_parser("finetune", ""),
    "aot": aot_flags.flag_parser(""),
    "doctor": doctor_flags.flag_parser(""),
    "convert": convert_flags.flag_parser(""),
    "corpus": corpus._parser(),
    **{f"predict {name}": command_parser(name, command) for name, command in PREDICT_COMMANDS.items()},
    **{f"analyse {name}": analyse_flags.flag_parser(name) for name in analyse_flags.COMMANDS},
}


def required(command: str) -> list[str]:
    """Returns the arguments without which a command line is rejected."""
    if command == "corpus":
        return ["--source=embedded", "--output=a"]
    needed = [action.option_strings for action in COMMANDS[command]._actions if action.required]
    one_of = [group._group_actions[0].option_strings for group in COMMANDS[command]._mutually_exclusive_groups if group.required]
    return [f"{names[0]}=a" if names else "a" for names in [*needed, *one_of]]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_number_flag_shows_its_range_and_refuses_values_outside(command: str):
    for action in COMMANDS[command]._actions:
        assert action.type not in (int, float), f"{command} {action.option_strings} has no range"
        if not isinstance(action.type, InRange):
            continue
        for text in ODD:
            given = f"{action.option_strings[0]}={text}"
            arguments = [given, *required(command)]
            if text and not range_error(float(text), action.type.interval) and math.isfinite(float(text)):
                found = getattr(COMMANDS[command].parse_args(arguments), action.dest)
                assert (found[-1] if isinstance(found, list) else found) == float(text)
                continue
            with pytest.raises(UserError) as error:
                COMMANDS[command].parse_args(arguments)
            assert str(error.value).startswith(f"{given} must be ")
            assert range_text(action.type.interval) in str(error.value)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_tilde_is_the_home_directory_in_every_flag_of_every_command(command: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/at/ada")
    actions = [action for action in COMMANDS[command]._actions if action.option_strings and action.nargs is None]
    paths = [action for action in actions if action.type in (None, nonempty, nonempty_path) and action.choices is None]
    assert len(paths) >= 2
    for action in paths:
        flag = action.option_strings[0]
        found = getattr(COMMANDS[command].parse_args(replacing(required(command), f"{flag}=~/x")), action.dest)
        assert str(found[-1] if isinstance(found, list) else found) == "/at/ada/x", flag


REFUSED_LATER = {
    *("--config", "--workdir", "--config.KEY", "--against.KEY", "--topology", "--source", "--eval-source", "--vocab", "--keep"),
    *("--format", "--dtype", "--activation", "--problem", "--new-positions", "--function", "--pooling"),
}
"""Flags whose empty value is rejected by the command itself, with its own error (tests/bad_inputs)."""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_with_a_value_refuses_an_empty_value(command: str):
    for action in COMMANDS[command]._actions:
        if not action.option_strings or action.nargs == 0 or action.option_strings[0] in REFUSED_LATER:
            continue
        flag = action.option_strings[0]
        others = [one for one in required(command) if not one.startswith(f"{flag}=")]
        with pytest.raises(UserError, match=flag):
            COMMANDS[command].parse_args([f"{flag}=", *others])


# ---------------------------------------------------------------------------------------------------------------- configurations

MAY_BE_EMPTY = {
    *("init_from", "init_new", "init_drop", "task.data_dir", "distillation.teacher", "teacher"),
    "distillation.teacher_sha256",
    *("setting", "reference", "paper", "arms.0.label", "arms.0.shares", "arms.0.continues", "tasks.0.data_dir", "tasks.0.metric"),
}
"""Strings that are neither one of a declared set of words nor names that have to exist; and keys that may be None."""


def constraints(hint: Any) -> list[Any]:
    """Returns all constraints that an annotation puts on values, at any depth."""
    inside = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Annotated:
        return [*inside[1:], *constraints(inside[0])]
    return [found for part in inside for found in constraints(part)]


def plain(kinds: tuple[Any, ...]) -> set[Any]:
    """Returns the types of a value and of its items; a group with arbitrary keys has no known ones."""
    kinds = tuple(kind for kind in kinds if typing.get_origin(kind) is not dict)
    return {one for kind in kinds for one in (typing.get_args(kind)[:1] and value_types(typing.get_args(kind)[0])) or (kind,)}


EXPERIMENTS = {
    PretrainingExperiment: {"phases": [{"steps": 20}]},
    FinetuningExperiment: {"init_from": "model", "task": {"name": "glue/mrpc"}},
    StudyExperiment: {
        "title": "t",
        "arms": [{"name": "a"}, {"name": "c"}],
        "tasks": [{"name": "b", "experiment": "c"}],
        "expected": [{"order": "a > c"}],
    },
}
KEYS = [(kind, key) for kind in EXPERIMENTS for key, _ in leaf_keys(kind)]


@pytest.mark.parametrize("kind", EXPERIMENTS)
def test_every_number_or_choice_key_shows_its_range(kind: Any):
    without = []
    for key, hint in leaf_keys(kind):
        stated, kinds = constraints(hint), plain(value_types(hint))
        if kinds & {int, float} and not intervals(hint):
            without.append(key)
        if str in kinds and type(None) not in kinds and not stated and key not in MAY_BE_EMPTY:
            without.append(key)
    assert without == []


@pytest.mark.parametrize(("kind", "key"), KEYS, ids=[f"{kind.__name__}-{key}" for kind, key in KEYS])
def test_unusual_values_of_any_key_are_accepted_or_refused_in_one_sentence(kind: Any, key: str, tmp_path: pathlib.Path):
    hint = dict(leaf_keys(kind))[key]
    kinds = plain(value_types(hint))
    file = tmp_path / "experiment.py"
    file.write_text(f"def get_config(): return {EXPERIMENTS[kind]!r}")
    ranges = intervals(hint)
    for text in ODD:
        made, said = outcome(kind, file, key, text)
        assert "\n" not in said
        if not kinds & {int, float}:
            continue
        odd = (text in ("", "nan", "inf") and float not in kinds) or text == ""
        if odd:
            assert said.startswith(f"--config.{key}={text}: wanted a "), said
        elif wrong := [found for one in ranges if (found := range_error(float(text), one))]:
            assert said.startswith(f"config.{key}"), said
            assert said.endswith(wrong[0]), said
        elif not said:  # otherwise a rule between two keys has rejected it
            for name in key.split("."):
                made = made[int(name)] if name.isdecimal() else getattr(made, name)
            assert made == (float(text),) if isinstance(made, tuple) else made == float(text)


def outcome(kind: Any, file: pathlib.Path, key: str, text: str) -> tuple[Any, str]:
    """Returns the experiment with `--config.KEY=TEXT`, or the error about it."""
    try:
        return kind.from_dict(read_experiment(str(file), [(key, text)], kind)), ""
    except UserError as error:
        return None, str(error)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model": {"hidden_size": 10**9}}, "config.model.hidden_size=1000000000 must be at least 1 and at most 65,536"),
        ({"model": {"num_layers": 10**400}}, "must be at least 0 and at most 10,000"),
        ({"optimizer": {"weight_decay": 10**400}}, "must be at least 0 and at most 1,000"),
        ({"optimizer": {"epsilon": 0.0}}, "config.optimizer.epsilon=0.0 must be at least 1e-37 and at most 1"),
        ({"model": {"layer_norm_epsilon": float("nan")}}, "layer_norm_epsilon=nan must be a finite number, at least 1e-37"),
        ({"phases": [{"steps": 10**13}]}, "config.phases.0.steps=10000000000000 must be at least 0 and at most 2,147,483,647"),
        ({"phases": [{"steps": 2**30}] * 3}, "config.phases have 3,221,225,472 steps in total, above the limit 2,147,483,647"),
        ({"corpus": {"directory": ""}}, "config.corpus.directory='' must not be empty"),
        ({"phases": [{"steps": "ten"}]}, "config.phases.0.steps='ten' must be an int"),
    ],
)
def test_impossible_sizes_are_refused_by_their_range(values: dict[str, Any], says: str):
    with pytest.raises(UserError) as error:
        PretrainingExperiment.from_dict(EXPERIMENTS[PretrainingExperiment] | values)
    assert says in str(error.value)


def test_a_model_file_with_an_impossible_size_is_refused_by_name():
    there = {"vocab_size": 99, "hidden_size": 10**9, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    with pytest.raises(UserError, match=r"^config\.json: model\.hidden_size=1000000000 must be at least 1 and at most 65,536"):
        config_from_json(there | {"max_position_embeddings": 8}, "config.json")
