from __future__ import annotations

import argparse
import contextlib
import logging
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from bert_jax.errors import UserError
from bert_jax.interface.flags import steps_to_profile
from bert_jax.runtime.goodput import GoodputRecorder, TimeCategory
from bert_jax.runtime.profile import Profile
from tests.profiles import host_events, profiled_steps

STEP = jax.jit(lambda x: jnp.tanh(x @ x))


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns the begins and ends of profiles and the steps in them, instead of profiles: these hold every program that the
    process has compiled, which takes seconds after many tests."""
    events: list[Any] = []

    def annotated(name: str, step_num: int) -> contextlib.nullcontext[None]:
        events.append(step_num)
        return contextlib.nullcontext()

    monkeypatch.setattr(jax.profiler, "start_trace", lambda place, **_: events.append("begin"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: events.append("end"))
    monkeypatch.setattr(jax.profiler, "StepTraceAnnotation", annotated)
    return events


def loop(profile: Profile, first: int, last: int, waits: list[int] | None = None) -> int:
    """Runs a loop over this many steps. Returns the last step that it did."""
    x, goodput = jnp.ones((8, 8)), GoodputRecorder()
    for step in profile.trace_steps(iter(range(first, last)), first, (waits if waits is not None else []).append):
        x = STEP(x)
        if step == 3:
            with goodput.during(TimeCategory.EVALUATING):
                x.block_until_ready()
    return step


def test_a_profile_has_the_requested_steps_with_named_events(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    waits: list[int] = []
    with Profile(range(2, 5), tmp_path) as profile:
        assert loop(profile, 0, 8, waits) == 7
    assert profile.was_taken
    assert profiled_steps(tmp_path) == [2, 3, 4]
    names = [name for name, _ in host_events(tmp_path)]
    assert names.count("evaluating") == 1
    assert not [name for name in names if name.startswith("$")], "every call of a Python function is an event"
    assert waits == [5]  # for the devices, before the profile ends
    assert not [record for record in caplog.records if record.levelname == "WARNING"], "it ends once"
    assert [path.name for path in (tmp_path / "plugins" / "profile").iterdir()] == ["steps-2-5"]


@pytest.mark.parametrize(
    ("first", "last", "profiled"), [(3, 8, [3, 4]), (0, 4, [2, 3]), (5, 8, []), (0, 2, []), (2, 3, [2]), (4, 5, [4])]
)
def test_a_loop_is_profiled_in_its_part_of_the_range(
    tmp_path: pathlib.Path, profiler: list[Any], first: int, last: int, profiled: list[int]
):
    directory = tmp_path / "workdir" / "profile"
    with Profile(range(2, 5), directory) as profile:
        loop(profile, first, last)
    assert profile.was_taken == bool(profiled)
    assert directory.exists() == bool(profiled)
    assert profiler == (["begin", *profiled, "end"] if profiled else [])


def test_a_start_after_the_steps_of_its_profile_says_so_once(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    told = "no profile: this start continues after step 5; name later steps than --profile=2:5"
    with Profile(range(2, 5), tmp_path) as profile:
        loop(profile, 5, 8)
        loop(profile, 8, 9)
    assert caplog.messages == [told]


def test_a_profile_continues_into_the_next_phase(
    tmp_path: pathlib.Path, profiler: list[Any], caplog: pytest.LogCaptureFixture
):
    with Profile(range(2, 5), tmp_path) as profile:
        loop(profile, 0, 3)
        loop(profile, 3, 8)
        loop(profile, 8, 9)
    assert profiler == ["begin", 2, 3, 4, "end"]
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]


def test_a_profile_is_written_when_the_loop_fails(tmp_path: pathlib.Path, profiler: list[Any]):
    def fail() -> None:
        with Profile(range(1, 5), tmp_path) as profile:
            for step in profile.trace_steps(iter(range(8)), 0, lambda step: None):
                if step == 3:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert profiler == ["begin", 1, 2, 3, "end"]


def test_without_a_profile_batches_are_not_changed():
    batches = iter([1, 2])
    assert Profile().trace_steps(batches, 0, lambda step: None) is batches


def test_an_unwritable_profile_is_reported_and_the_loop_continues(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "profile").write_text("in the way")
    monkeypatch.setattr(jax.profiler, "start_trace", lambda *_, **__: pytest.fail("a profile is begun that cannot be written"))
    with Profile(range(2, 5), tmp_path / "profile") as profile:
        assert loop(profile, 0, 8) == 7
    (message,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert message.startswith(f"the profile in {tmp_path / 'profile'} could not be written (")


def test_several_processes_write_their_own_files_into_one_session(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    def write(place: pathlib.Path, profiler_options: Any) -> None:
        """Writes a file where JAX does, as the first test shows: each process of a host has the same name for it."""
        session = place / "plugins" / "profile" / profiler_options.session_id
        session.mkdir(parents=True)
        (session / "host.of.lab.xplane.pb").write_text(f"of {place.name}")

    monkeypatch.setattr(jax.profiler, "start_trace", write)
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: None)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for index in range(2):
        monkeypatch.setattr(jax, "process_index", lambda index=index: index)
        with Profile(range(2, 4), tmp_path) as profile:
            loop(profile, 0, 6)
    session = tmp_path / "plugins" / "profile" / "steps-2-4"
    written = {path.name: path.read_text() for path in session.iterdir()}
    assert written == {f"process-{index}.xplane.pb": f"of .process-{index}" for index in range(2)}
    assert [path.name for path in tmp_path.iterdir()] == ["plugins"]


@pytest.mark.parametrize("text", ["10", "15:10", "10:10", "-1:3", "3:-1", "1:2:3", ":5", "5:", "", "1.0:2", "1:99999999999"])
def test_invalid_step_ranges_are_refused(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match=f"={text} must be FIRST:LAST, two whole numbers"):
        steps_to_profile(text)


def test_step_ranges_are_parsed():
    assert steps_to_profile("10:15") == range(10, 15)


def test_a_single_run_must_reach_the_last_step_of_its_profile(tmp_path: pathlib.Path):
    profile = Profile(range(10, 15), tmp_path)
    with pytest.raises(UserError, match="--profile=10:15 ends after the last step of this run, 14; name earlier steps"):
        profile.for_run(14, alone=True)
    assert profile.for_run(15, alone=True) is profile


def test_the_first_long_enough_run_of_a_sweep_is_profiled(tmp_path: pathlib.Path):
    profile = Profile(range(10, 15), tmp_path)
    runs = [profile.for_run(last_step, alone=False) for last_step in (14, 15, 16)]
    assert [run is profile for run in runs] == [False, True, False]
    assert [run.steps for run in runs] == [None, range(10, 15), None]
