"""Runs every known bad input, one row in the table of its command. The error is one sentence that names the value, the limit and
the remedy; the exit status is 2, and no existing file changes."""

from __future__ import annotations

import fnmatch
import pathlib

import pytest

from tests.bad_inputs import analyse, aot, convert, corpus, doctor, finetune, predict, pretrain, study, tasks
from tests.bad_inputs.case import Case, Table
from tests.bad_inputs.places import contents, make_places, states
from tests.end_to_end import forked
from tests.end_to_end.forked import Surroundings

Places = dict[str, pathlib.Path]
SECONDS = 120
"""Seconds after which a case is considered hung."""


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    return make_places(tmp_path_factory.mktemp("places"))


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the directories for outputs and compiled programs."""
    return tmp_path_factory.mktemp("outputs")


TABLES = [module.TABLE for module in (corpus, pretrain, finetune, study, predict, analyse, convert, aot, doctor)] + tasks.TABLES
CASES = [pytest.param(table, case, id=f"{table.command}: {case.name}") for table in TABLES for case in table.cases]


@pytest.mark.parametrize(("table", "case"), CASES)
def test_a_bad_input_is_refused_in_one_sentence_and_changes_nothing(
    table: Table, case: Case, places: Places, scratch: pathlib.Path, tmp_path: pathlib.Path
):
    places = {**places, "here": tmp_path}
    case.prepare(tmp_path, places)
    before, beside = contents(tmp_path), states(places)
    around = Surroundings(
        directory=tmp_path,
        stdin=case.stdin.encode() if isinstance(case.stdin, str) else case.stdin,
        environment=case.environment,
        file_size=case.file_size,
        closed=case.closed,
    )
    (done,) = forked.run(scratch, table.command_line(case, places), devices=case.devices, around=around, timeout=SECONDS)
    assert done.status == case.exit, done.output
    assert "Traceback" not in done.output
    said = done.output[done.output.find("error: ") :]
    if case.exit == 2:
        assert said.startswith("error: "), done.output
        assert f"\n{said}".count("\nerror: ") == 1
    place = 0
    for fragment in case.fragments(places):
        place = said.find(fragment, place)
        assert place >= 0, f"{fragment!r} is missing in {said!r}"
    after = contents(tmp_path)
    changed = {name for name in before.keys() | after.keys() if before.get(name, "") != after.get(name, "")}
    assert {name for name in changed if not any(fnmatch.fnmatchcase(name, pattern) for pattern in case.leaves.split())} == set()
    assert states(places) == beside


def test_every_case_has_a_unique_name_and_a_message():
    names = [case.id for case in CASES]
    assert len(set(names)) == len(names)
    for table in TABLES:
        for case in table.cases:
            assert case.says, case.name


def test_the_table_is_large():
    assert len(CASES) >= 300
