"""`--config.a.b=1`: which key it sets to which value, and what is rejected."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import pytest
from annotated_types import Interval

from bert_jax.configs.experiment_files import dataclass_from_dict, override, read_value, split_overrides, suggested_flag
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Phase:
    steps: int
    rate: Annotated[float, Interval(ge=0, le=10)] = 0.5


@dataclasses.dataclass(frozen=True)
class Model:
    size: Annotated[int, Interval(ge=1, le=9)] = 4
    name: str = "base"
    note: str | None = None
    wide: bool = False
    cuts: tuple[int, ...] = (1, 2)
    rates: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    more: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Experiment:
    seed: int = 0
    model: Model = Model()
    phases: tuple[Phase, ...] = ()


def test_overrides_are_parsed_with_and_without_an_equals_sign():
    arguments = ["--config=a.py", "--config.a.b=1=2", "--workdir", "w", "--config.c[0].d", "x y", "--config.a.b=1=2"]
    assert split_overrides(arguments) == ([("a.b", "1=2"), ("c.0.d", "x y")], ["--config=a.py", "--workdir", "w"])
    assert split_overrides(["--study.a=1", "--config.a=2"], "study") == ([("a", "1")], ["--config.a=2"])
    assert split_overrides(["--config.a="]) == ([("a", "")], [])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--config.a"], "--config.a has no value; write --config.a=VALUE"),
        (["--config.a", "--config.b=1"], "--config.a has no value; write --config.a=VALUE"),
        (["--config.a=1", "--config.a", "2"], "--config.a=1 and --config.a=2 contradict each other; give one of them"),
    ],
)
def test_an_override_without_a_value_or_with_two_is_refused(arguments: list[str], says: str):
    with pytest.raises(UserError) as error:
        split_overrides(arguments)
    assert str(error.value) == says


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (bool, "True", True), (bool, "1", True), (bool, "FALSE", False), (bool, "0", False),
        (int, "12", 12), (int, "2e3", 2000), (int, "-3", -3), (int, "1E2", 100),
        (float, "3", 3.0), (float, "1e-4", 1e-4), (str, "12", "12"), (str, "none", "none"),
        (str | None, "none", None), (str | None, "null", None), (str | None, "None", None), (str | None, "nothing", "nothing"),
        (float | None, "0.5", 0.5), (int | str, "4", 4), (int | str, "auto", "auto"),
        (tuple[int, ...], "[1, 2]", [1, 2]), (tuple[int, ...], "1,2", [1, 2]), (tuple[int, ...], "3", [3]),
        (tuple[int, ...], "(1,2)", [1, 2]), (tuple[int, ...], "[]", []), (tuple[int, ...], "[1,2,]", [1, 2]),
        (tuple[int, ...], "[1e2]", [100]), (tuple[float, ...], "[1, 2.5]", [1, 2.5]), (tuple[float, ...], "1e-4", [1e-4]),
        (tuple[str, ...], "[a, b]", ["a", "b"]), (tuple[str, ...], "a,b", ["a", "b"]),
        (tuple[str, ...], "['a', 'b,c']", ["a", "b,c"]),
        (tuple[str, ...], "[1]", ["1"]), (tuple[str, ...], " [a] ", ["a"]), (tuple[str, ...], "['a', b]", ["a", "b"]),
        (list, "[1, 'a']", [1, "a"]), (list, "a,b", ["a", "b"]), (tuple, "(1, 2)", [1, 2]), (list, "7", [7]),
    ],
)  # fmt: skip
def test_a_value_is_read_by_the_type_of_its_key(hint: Any, text: str, value: Any):
    found = read_value("--config.k", text, hint)
    assert (found, type(found)) == (value, type(value))
    if isinstance(value, list):
        assert [type(item) for item in found] == [type(item) for item in value]


@pytest.mark.parametrize(
    ("hint", "text", "says"),
    [
        (bool, "yes", "wanted true or false"),
        (int, "1.5", "wanted a whole number"),
        (int, "1.5e0", "wanted a whole number"),
        (int, "1e999", "wanted a whole number"),
        (Annotated[int, Interval(ge=1, le=9)], "x", "wanted a whole number, at least 1 and at most 9"),
        (float, "x", "wanted a number"),
        (float | bool | None, "x", "wanted a number or true or false"),
        (tuple[int, ...], "[1, x]", "wanted a list as [1, 2]"),
        (tuple[int, ...], "", "wanted a list as [1, 2]"),
        (tuple[int, ...], " ", "wanted a list as [1, 2]"),
        (tuple[int, ...], "[1, 2", "wanted a list as [1, 2]"),
        (tuple[int, ...], "1, 2]", "wanted a list as [1, 2]"),
        (tuple[int, ...], "(1, 2]", "wanted a list as [1, 2]"),
        (tuple[int, ...], "[1.5]", "wanted a list as [1, 2]"),
        (tuple[str, ...], "(a]", "wanted a list as [a, b]"),
        (tuple[str, ...], "", "wanted a list as [a, b]"),
        (list, "", "wanted a list as [1, 2]"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_expected_type(hint: Any, text: str, says: str):
    with pytest.raises(UserError) as error:
        read_value("--config.k=x", text, hint, " (now 3)")
    assert str(error.value) == f"--config.k=x: {says} (now 3)"


def changed(key: str, text: str, config: dict[str, Any] | None = None, schema: Any = Experiment) -> dict[str, Any]:
    config = {"seed": 1, "phases": [{"steps": 5}, {"steps": 6, "rate": 0.25}]} if config is None else config
    override(config, schema, key, text)
    return config


def test_overrides_set_given_and_defaulted_keys():
    assert changed("seed", "4")["seed"] == 4
    assert changed("model.size", "7")["model"] == {"size": 7}
    assert changed("model.note", "x", {"model": {"size": 2}}) == {"model": {"size": 2, "note": "x"}}
    assert changed("model.size", "7", {"model": None}) == {"model": {"size": 7}}
    assert changed("phases.1.steps", "9")["phases"] == [{"steps": 5}, {"steps": 9, "rate": 0.25}]
    assert changed("phases.0.rate", "1")["phases"] == [{"steps": 5, "rate": 1.0}, {"steps": 6, "rate": 0.25}]
    assert changed("model.more.depth", "3", {"model": {"more": {"depth": 2}}}) == {"model": {"more": {"depth": 3}}}


def test_null_is_none_if_the_type_allows_it_and_otherwise_the_default():
    assert changed("model.note", "null", {"model": {"note": "x"}}) == {"model": {"note": None}}
    assert changed("model.size", "null", {"model": {"size": 2, "wide": True}}) == {"model": {"wide": True}}
    assert changed("model.size", "null", {}) == {"model": {}}
    assert changed("phases.1.rate", "null")["phases"][1] == {"steps": 6}


def test_without_a_schema_types_follow_the_file():
    given = {"a": {"b": 1, "c": [1, 2]}, "d": [{"e": 1.5}, {"e": 2.5}], "n": [1, 2]}
    assert changed("a.b", "7", given, None)["a"]["b"] == 7
    assert changed("d.1.e", "3", given, None)["d"] == [{"e": 1.5}, {"e": 3.0}]
    assert changed("a.c", "[3]", given, None)["a"]["c"] == [3]
    assert changed("n.1", "9", given, None)["n"] == [1, 9]
    for key, says in (("a.x", "there is no 'x' in config.a; valid keys: b, c"), ("a.b.x", "config.a.b is a single value")):
        with pytest.raises(UserError, match=says):
            changed(key, "1", given, None)
    with pytest.raises(UserError, match=r"there is no 'x' in config\.a; the group is empty$"):
        changed("a.x", "1", {"a": {}}, None)
    with pytest.raises(UserError, match=r"--config\.a=1: a is a group; set one of a\.b, a\.c$"):
        changed("a", "1", given, None)
    with pytest.raises(UserError, match=r"a\.b=x: wanted a whole number \(now 7\)"):
        changed("a.b", "x", given, None)


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("sed", "1", "there is no 'sed' in config; did you mean 'seed'?"),
        ("model.colour", "1",
         "there is no 'colour' in config.model; valid keys: cuts, more, name, names, note, rates, size, wide"),
        ("phases.2.steps", "1", "there is no '2' in config.phases; the list has the indices 0 to 1"),
        ("phases.x.steps", "1", "there is no 'x' in config.phases; the list has the indices 0 to 1"),
        ("phases.-1.steps", "1", "there is no '-1' in config.phases; the list has the indices 0 to 1"),
        ("phases.2", "1", "there is no '2' in config.phases; the list has the indices 0 to 1"),
        ("seed.x", "1", "there is no 'x' in config.seed; config.seed is a single value"),
        ("model.cuts.0", "1", "there is no '0' in config.model.cuts; config.model.cuts is a single value"),
        ("model", "1", "model is a group; set one of model.cuts, model.more, model.name, model.names, model.note, model.rates, "
                       "model.size, model.wide"),
        ("phases", "1", "phases is a group; set one of phases.0.rate, phases.0.steps, phases.1.rate, phases.1.steps"),
        ("phases.0", "1", "phases.0 is a group; set one of phases.0.rate, phases.0.steps"),
        ("seed", "x", "wanted a whole number (now 1)"),
        ("model.size", "x", "wanted a whole number, at least 1 and at most 9 (now 4)"),
        ("model.note", "", None),
        ("model.cuts", "", "wanted a list as [1, 2] (now (1, 2))"),
        ("phases.0.rate", "x", "wanted a number, at least 0 and at most 10 (now 0.5)"),
        ("phases.1.rate", "x", "wanted a number, at least 0 and at most 10 (now 0.25)"),
    ],
)  # fmt: skip
def test_unknown_keys_are_refused(key: str, text: str, says: str | None):
    if says is None:
        assert changed(key, text)["model"] == {"note": ""}
        return
    with pytest.raises(UserError) as error:
        changed(key, text)
    assert str(error.value) == f"--config.{key}={text}: {says}"


def test_errors_show_no_current_value_for_a_key_without_default():
    with pytest.raises(UserError) as error:
        changed("phases.0.steps", "x", {"phases": [{}]})
    assert str(error.value) == "--config.phases.0.steps=x: wanted a whole number"
    with pytest.raises(UserError, match=r"there is no '0' in config\.phases; the list is empty$"):
        changed("phases.0.steps", "1", {"phases": []})


def test_the_flag_of_a_study_is_named_in_its_errors():
    with pytest.raises(UserError, match=r"^--study\.seed=x: wanted a whole number"):
        override({}, Experiment, "seed", "x", "study")


def test_a_flag_that_is_a_key_is_suggested_as_one():
    assert suggested_flag("--size=3", Experiment) == "did you mean --config.model.size?"
    assert suggested_flag("--colour", Experiment) == suggested_flag("--size", None) == ""


# ------------------------------------------------------------------------------------------------------------------- sections
@pytest.mark.parametrize(
    ("values", "says"),
    [
        (3, "config must be a group of keys, not 3"),
        ({"sed": 1}, "there is no config.sed; did you mean 'seed'?"),
        ({"model": {"colour": 1}},
         "there is no config.model.colour; valid keys: cuts, more, name, names, note, rates, size, wide"),
        ({"model": 3}, "config.model must be a group of keys, not 3"),
        ({"phases": 3}, "config.phases must be a list of phases, not 3"),
        ({"phases": "ab"}, "config.phases must be a list of phases, not 'ab'"),
        ({"phases": [{"steps": 1}, {"rate": 1.0}]}, "config.phases.1 needs steps"),
        ({"phases": [{"steps": 1, "rate": 11}]}, "config.phases.0.rate=11.0 must be at least 0 and at most 10"),
        ({"phases": [{"steps": 1, "rate": True}]}, "config.phases.0.rate=True must be a float, like the default 0.5"),
        ({"phases": [{"steps": 1.0}]}, "config.phases.0.steps=1.0 must be an int"),
        ({"seed": True}, "config.seed=True must be an int, like the default 0"),
        ({"model": {"note": 1}}, "config.model.note=1 must be a str or none, like the default None"),
        ({"model": {"wide": 1}}, "config.model.wide=1 must be true or false, like the default False"),
        ({"model": {"cuts": "12"}}, "config.model.cuts='12' must be a list, like the default (1, 2)"),
        ({"model": {"cuts": [1, "2"]}}, "config.model.cuts.1='2' must be an int"),
        ({"model": {"more": [1]}}, "config.model.more=[1] must be a group of keys"),
    ],
)  # fmt: skip
def test_values_of_another_type_are_refused_with_the_key_and_the_default(values: Any, says: str):
    with pytest.raises(UserError) as error:
        dataclass_from_dict(Experiment, values, "config")
    assert str(error.value) == says


def test_nested_values_become_dataclasses_floats_and_tuples():
    values = {"model": {"cuts": [], "rates": [1, 0.5], "more": {"a": 1}, "note": None}, "phases": [{"steps": 1, "rate": 2}]}
    found = dataclass_from_dict(Experiment, values, "config")
    assert found == Experiment(model=Model(cuts=(), rates=(1.0, 0.5), more={"a": 1}), phases=(Phase(1, 2.0),))
    assert [type(rate) for rate in (*found.model.rates, found.phases[0].rate)] == [float] * 3
    assert found.model.more is not values["model"]["more"]  # type: ignore[index]


def test_a_number_beyond_the_largest_float_is_refused_by_its_range():
    for number in (10**300, 10**400, -(10**400)):
        with pytest.raises(UserError, match=r"config\.phases\.0\.rate=.* must be at least 0 and at most 10"):
            dataclass_from_dict(Experiment, {"phases": [{"steps": 1, "rate": number}]}, "config")
