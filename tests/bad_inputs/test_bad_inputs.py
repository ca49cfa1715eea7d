"""Runs every known bad input, one row in the table of its command. The error is one sentence that names the value, the limit and
the remedy; the exit status is 2, and no existing file changes."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import pathlib

import pytest

from tests.bad_inputs import analyse, aot, convert, corpus, doctor, finetune, predict, pretrain, study, tasks
from tests.bad_inputs.case import Case, Table
from tests.bad_inputs.places import contents, make_places, states
from tests.end_to_end import forked
from tests.end_to_end.forked import Done, Surroundings

Places = dict[str, pathlib.Path]
SECONDS = 120
"""Seconds after which a process is considered hung, with another for each of its cases."""
TOGETHER = 400
"""The number of cases that one process runs one after another. A process traces each model again."""

TABLES = [module.TABLE for module in (corpus, pretrain, finetune, study, predict, analyse, convert, aot, doctor)] + tasks.TABLES
CASES = [pytest.param(table, case, id=f"{table.command}: {case.name}") for table in TABLES for case in table.cases]


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a case ended."""

    done: Done
    before: dict[str, bytes | None]
    """The files in its directory before."""
    after: dict[str, bytes | None]
    places: Places
    touched: set[str]
    """The files of the places that were changed by this case, or by another case in its process."""


def is_alone(case: Case) -> bool:
    """Returns whether a case needs a process of its own: it starts in an environment that other cases must not see."""
    return bool(case.environment or case.closed or case.file_size is not None or case.devices != 1)


class Batches:
    """Runs the selected cases in batches, each in one process. A batch runs when the first of its tests starts."""

    def __init__(self, asked: set[str], places: Places, scratch: pathlib.Path):
        self._places, self._scratch, self._numbers = places, scratch, itertools.count()
        self._ended, self._batch = dict[str, Ended](), dict[str, list[str]]()
        self._cases: dict[str, tuple[Table, Case]] = {str(one.id): one.values for one in CASES if one.id in asked}  # type: ignore[misc]
        many = [name for name, (_, case) in self._cases.items() if not is_alone(case)]
        for start in range(0, len(many), TOGETHER):
            batch = many[start : start + TOGETHER]
            self._batch |= dict.fromkeys(batch, batch)

    def end(self, name: str) -> Ended:
        """Returns how a case ended."""
        waiting = [one for one in self._batch.get(name, [name]) if one not in self._ended]
        while name not in self._ended:
            try:
                waiting = self._run(waiting)
            except AssertionError:  # one of the cases hangs
                if waiting == [name]:
                    raise
                self._batch |= {one: [one] for one in waiting}
                waiting = [name]
        return self._ended[name]

    def _run(self, names: list[str]) -> list[str]:
        """Runs cases in one process. Returns the names of cases that did not start because an earlier one ended the
        process."""
        here = {name: self._scratch / str(next(self._numbers)) for name in names}
        places = {name: {**self._places, "here": here[name]} for name in names}
        lines, around, before = [], [], {}
        for name in names:
            table, case = self._cases[name]
            here[name].mkdir()
            case.prepare(here[name], places[name])
            before[name] = contents(here[name])
            lines.append(table.command_line(case, places[name]))
            stdin = case.stdin.encode() if isinstance(case.stdin, str) else case.stdin
            around.append(Surroundings(here[name], stdin, case.environment, case.file_size, case.closed))
        untouched = states(self._places)
        limit = SECONDS + len(names)
        ends = forked.run(self._scratch / "said", *lines, devices=case.devices, around=around, timeout=limit)
        touched = {path for path, _ in states(self._places).items() ^ untouched.items()}
        first, *others = zip(names, ends, strict=True)
        for name, done in [first, *((name, done) for name, done in others if done.output)]:
            self._ended[name] = Ended(done, before[name], contents(here[name]), places[name], touched)
        return [name for name in names if name not in self._ended]


@pytest.fixture(scope="session")
def batches(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Batches:
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and "batches" in item.fixturenames]
    asked = {item.callspec.id for item in items}
    return Batches(asked, make_places(tmp_path_factory.mktemp("places")), tmp_path_factory.mktemp("cases"))


@pytest.mark.parametrize(("table", "case"), CASES)
def test_a_bad_input_is_refused_in_one_sentence_and_changes_nothing(
    table: Table, case: Case, batches: Batches, request: pytest.FixtureRequest
):
    ended = batches.end(request.node.callspec.id)
    done = ended.done
    assert done.status == case.exit, done.output
    assert "Traceback" not in done.output
    said = done.output[done.output.find("error: ") :]
    if case.exit == 2:
        assert said.startswith("error: "), done.output
        assert f"\n{said}".count("\nerror: ") == 1
    place = 0
    for fragment in case.fragments(ended.places):
        place = said.find(fragment, place)
        assert place >= 0, f"{fragment!r} is missing in {said!r}"
    before, after = ended.before, ended.after
    changed = {name for name in before.keys() | after.keys() if before.get(name, "") != after.get(name, "")}
    assert {name for name in changed if not any(fnmatch.fnmatchcase(name, pattern) for pattern in case.leaves.split())} == set()
    assert ended.touched == set()


def test_every_case_has_a_unique_name_and_a_message():
    names = [case.id for case in CASES]
    assert len(set(names)) == len(names)
    for table in TABLES:
        for case in table.cases:
            assert case.says, case.name


def test_the_table_is_large():
    assert len(CASES) >= 300
