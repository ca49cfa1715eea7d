from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import os
import pathlib
import sys
import textwrap
import time
import types
from typing import Annotated, NoReturn

import jax
import pytest
from annotated_types import Interval

from bert_jax.configs.command_line import Flags, parse_flags
from bert_jax.errors import UserError
from bert_jax.runtime.environment import enable_compilation_cache, quiet_libraries, start_logging
from bert_jax.runtime.launch import start_run
from bert_jax.sharding.device_errors import OutOfMemory
from bert_jax.storage.fetching import downloading


@dataclasses.dataclass(frozen=True)
class Optimizer:
    learning_rate: Annotated[float, Interval(ge=0)] = 1e-4
    beta1: float = 0.9


@dataclasses.dataclass(frozen=True)
class Phase:
    steps: int = 0
    warmup: int = 0


@dataclasses.dataclass(frozen=True)
class Schema:
    """The keys that an experiment of these tests may have."""

    seed: Annotated[int, Interval(ge=0, le=9)] = 0
    name: str = ""
    init_from: str | None = None
    model: str = "runs/default"
    clip: float | None = 1.0
    packed: bool = False
    optimizer: Optimizer = Optimizer()
    betas: tuple[float, ...] = (0.9, 0.999)
    labels: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()


@pytest.fixture
def experiment(tmp_path: pathlib.Path) -> pathlib.Path:
    file = tmp_path / "experiment.py"
    file.write_text(
        textwrap.dedent("""
        from ml_collections import ConfigDict

        def get_config(size="small"):
            return ConfigDict({
                "name": size,
                "seed": 1,
                "clip": 1,
                "optimizer": {"learning_rate": 1e-3},
                "phases": ({"steps": 10}, {"steps": 5}),
            })
        """)
    )
    return file


def parse(experiment: pathlib.Path, *arguments: str, suffix: str = "") -> Flags:
    return parse_flags("pretrain", "", [f"--config={experiment}{suffix}", "--workdir=here", *arguments], Schema)


def test_a_failed_save_prints_no_message_about_closed_event_loops(monkeypatch: pytest.MonkeyPatch):
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: said.append(unraisable.exc_value))
    quiet_libraries()
    quiet_libraries()
    other = RuntimeError("another")
    for error in (RuntimeError("Event loop is closed"), other):
        sys.unraisablehook(types.SimpleNamespace(exc_value=error))
    assert said == [other]


def test_the_experiment_file_gets_its_argument(experiment: pathlib.Path):
    flags = parse(experiment, suffix=":large")
    assert flags.config == {
        "name": "large",
        "seed": 1,
        "clip": 1,
        "optimizer": {"learning_rate": 1e-3},
        "phases": [{"steps": 10}, {"steps": 5}],
    }
    assert parse(experiment).config["name"] == "small"
    assert flags.workdir == pathlib.Path("here")


@pytest.mark.parametrize(
    ("argument", "path", "value"),
    [
        ("--config.seed=7", ("seed",), 7),
        ("--config.seed=1e6", ("seed",), 1_000_000),
        ("--config.optimizer.learning_rate=3", ("optimizer", "learning_rate"), 3.0),
        ("--config.optimizer.beta1=.8", ("optimizer", "beta1"), 0.8),  # not in the file, but a key of experiments
        ("--config.packed=true", ("packed",), True),
        ("--config.packed=0", ("packed",), False),
        ("--config.name=7", ("name",), "7"),
        ("--config.name=a=b", ("name",), "a=b"),
        ("--config.clip=2", ("clip",), 2.0),  # an integer in the file, a float by its default
        ("--config.clip=none", ("clip",), None),
        ("--config.betas=[0.8, 0.9]", ("betas",), [0.8, 0.9]),
        ("--config.init_from=runs/a", ("init_from",), "runs/a"),
        ("--config.phases.1.steps=20", ("phases", 1, "steps"), 20),
        ("--config.phases[1].warmup=2", ("phases", 1, "warmup"), 2),
    ],
)
def test_an_override_sets_one_key_with_its_type(
    experiment: pathlib.Path, argument: str, path: tuple[str | int, ...], value: object
):
    node = parse(experiment, argument).config
    for name in path:
        node = node[name]  # type: ignore[index]
    assert node == value
    assert type(node) is type(value)


def test_an_override_may_be_repeated_and_a_space_separates_as_well(experiment: pathlib.Path):
    assert parse(experiment, "--config.seed", "3", "--config.seed=3").config["seed"] == 3


def test_two_values_for_one_key_are_refused(experiment: pathlib.Path):
    says = "^--config.phases.1.steps=20 and --config.phases.1.steps=30 contradict each other; give one of them$"
    with pytest.raises(UserError, match=says):
        parse(experiment, "--config.phases.1.steps=20", "--config.seed=3", "--config.phases[1].steps", "30")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.optimiser.beta1=1", "there is no 'optimiser' in config; did you mean 'optimizer.beta1'?"),
        ("--config.optimizer.learning_rat=1", "did you mean 'optimizer.learning_rate'?"),
        ("--config.phases.2.steps=1", "there is no '2' in config.phases"),
        ("--config.phases.0.step=1", "did you mean 'phases.0.steps'?"),
        ("--config.seed.x=1", "config.seed is a single value"),
        ("--config.optimizer=adam", "optimizer is a group; set one of optimizer.beta1, optimizer.learning_rate"),
        ("--config.seed=1.5", "--config.seed=1.5: wanted a whole number, at least 0 and at most 9 (now 1)"),
        ("--config.packed=2", "wanted true or false (now False)"),
        ("--config.packed=maybe", "wanted true or false"),
        ("--config.optimizer.learning_rate=fast", "wanted a number"),
        ("--config.betas=[0.9,", "wanted a list as [1, 2] (now (0.9, 0.999))"),
        ("--config.seed", "has no value"),
        ("--wrkdir=x", "unknown argument --wrkdir=x: did you mean '--workdir'?"),
        ("--processes=two", "--processes=two must be a whole number, at least 1"),
        ("--processes=0", "--processes=0 must be at least 1 and at most 65,536"),
        ("--workdir=there", "--workdir=here and --workdir=there contradict each other; give one of them"),
    ],
)
def test_a_mistaken_argument_is_refused_with_a_remedy(experiment: pathlib.Path, argument: str, message: str):
    with pytest.raises(UserError) as error:
        parse(experiment, argument)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--processes=65537", "--processes=65537 must be at least 1 and at most 65,536"),
        ("--process=65536", "--process=65536 must be"),
        ("--start-timeout=0", "--start-timeout=0 must be"),
        ("--hang-seconds=2e9", "--hang-seconds=2e9 must be"),
        ("--replay=0", "--replay=0 must be at least 1"),
    ],
)
def test_a_number_beyond_its_range_is_refused(experiment: pathlib.Path, argument: str, message: str):
    with pytest.raises(UserError, match=message):
        parse(experiment, argument)


def test_every_flag_is_parsed_into_its_field(experiment: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    given = ["--coordinator=a:1", "--processes=65536", "--process=65535", "--start-timeout=1e9", "--hang-seconds=0.5"]
    given += ["--profile=3:5", "--compiled=there", "--verify", "--config.seed=3", "--config.init_from=unset"]
    flags = parse(experiment, *given)
    assert (flags.coordinator, flags.processes, flags.process) == ("a:1", 65_536, 65_535)
    assert (flags.start_timeout, flags.hang_seconds, flags.profile) == (1e9, 0.5, range(3, 5))
    assert (flags.compiled, flags.verify, flags.replay) == (pathlib.Path("there"), True, None)
    assert (flags.experiment, flags.workdir) == (str(experiment), pathlib.Path("here"))
    assert dict(flags.overrides) == {"seed": "3", "init_from": "unset"}
    few = parse(experiment)
    assert (few.coordinator, few.processes, few.process, few.profile, few.compiled) == (None,) * 5
    assert (few.start_timeout, few.hang_seconds, few.verify, few.overrides) == (300, 600, False, ())
    assert (few.figure_formats, few.changed_files) == (("png",), False)
    assert parse(experiment, "--process=0").process == 0
    assert parse(experiment, "--format=svg,png", "--changed-files").figure_formats == ("svg", "png")
    monkeypatch.setattr(sys, "argv", ["pretrain", f"--config={experiment}", "--workdir=there"])
    assert parse_flags("pretrain", "").workdir == pathlib.Path("there")
    assert parse_flags("finetune", "", [f"--config={experiment}", "--workdir=x", "--profile=1:2"]).verify is False
    for command, flag in (("finetune", "--verify"), ("finetune", "--replay=1"), ("study", "--profile=1:2")):
        with pytest.raises(UserError, match=f"unknown argument {flag}"):
            parse_flags(command, "", [f"--config={experiment}", "--workdir=x", flag])


def test_a_step_is_replayed_with_the_experiment_of_the_workdir(experiment: pathlib.Path):
    flags = parse_flags("pretrain", "", ["--workdir=here", "--replay=7"], Schema)
    assert (flags.replay, flags.config, flags.experiment) == (7, {}, "")
    with pytest.raises(UserError, match=f"--replay=7 uses the experiment of the workdir; leave --config={experiment} out"):
        parse(experiment, "--replay=7")
    with pytest.raises(UserError, match="--workdir is missing"):
        parse_flags("pretrain", "", ["--replay=7"], Schema)


def test_help_shows_the_command(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parse_flags("finetune", "What it is for.", ["--help"], Schema)
    said = capsys.readouterr().out
    assert "python -m bert_jax.finetune" in said
    assert "What it is for." in said


def test_a_missing_flag_is_refused_with_an_example(experiment: pathlib.Path):
    with pytest.raises(UserError, match="--workdir is missing, for example --workdir=runs/mine"):
        parse_flags("pretrain", "", [f"--config={experiment}"])
    with pytest.raises(UserError, match="--workdir is missing, for example"):
        parse_flags("pretrain", "", [f"--config={experiment}", "--workdir="])
    with pytest.raises(UserError, match=r"--workdir=gs:/bucket/run: .*; did you mean gs://bucket/run\?"):
        parse_flags("pretrain", "", [f"--config={experiment}", "--workdir=gs:/bucket/run"])
    with pytest.raises(UserError, match="--config is missing"):
        parse_flags("pretrain", "", ["--workdir=x"])


@pytest.mark.parametrize("given", ["experiments/pretrain/bert_bas.py", "bert_base.py", "bert_base"])
def test_a_missing_file_names_the_nearest_experiment(given: str):
    with pytest.raises(UserError, match=r"did you mean 'experiments/pretrain/bert_base\.py'\?"):
        parse_flags("pretrain", "", [f"--config={given}", "--workdir=x"])


def test_a_file_is_found_from_any_directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config = parse_flags("pretrain", "", ["--config=experiments/pretrain/quickstart.py", "--workdir=x"]).config
    assert config["corpus"]["directory"] == "runs/embedded_corpus"


@pytest.mark.parametrize(
    ("text", "suffix", "message"),
    [
        ("x = 1", "", r"has no function get_config\(\)"),
        ("def get_config(:", "", "line 1: "),
        ("def get_config(): return {}", ":base", "does not take an argument; leave `:base` out"),
        ("def get_config(size): return {'tiny': {}}[size]", ":base", r"does not accept 'base'; known: tiny"),
        ("def get_config(task): return {}", "", r"needs an argument, --config=\S+broken\.py:ARG; its docstring lists the arg"),
        ('"""broken.py:mrpc for MRPC"""\ndef get_config(task): return {}', "", r"broken\.py:ARG; for example \S+broken\.py:mrpc"),
        ("import sys\nsys.exit(0)", "", r"ended the program \(sys\.exit\(0\)\)"),
        ("def get_config(): raise SystemExit", "", r"ended the program \(sys\.exit\(None\)\)"),
        ("def get_config(size): raise SystemExit(3)", ":a", r"ended the program \(sys\.exit\(3\)\)"),
        ("def get_config(): return 3", "", "its get_config returns 3; it must return a ConfigDict or a dict"),
    ],
)
def test_a_file_without_an_experiment_is_refused(tmp_path: pathlib.Path, text: str, suffix: str, message: str):
    file = tmp_path / "broken.py"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        parse(file, suffix=suffix)


def test_an_exception_in_an_experiment_shows_only_its_own_lines(tmp_path: pathlib.Path):
    file = tmp_path / "broken.py"
    file.write_text("def width():\n    return 1 / 0\n\ndef get_config():\n    return {'name': width()}\n")
    with pytest.raises(UserError) as error:
        parse(file)
    first, *lines = str(error.value).splitlines()
    assert first == f"--config={file} raises ZeroDivisionError; correct the file here:"
    assert [line.strip() for line in lines if line.startswith("  File")] == [
        f'File "{file}", line 5, in get_config',
        f'File "{file}", line 2, in width',
    ]
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_a_run_logs_as_the_first_process_and_starting_it_leaves_nothing_behind(
    experiment: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    flags = parse_flags("pretrain", "", [f"--config={experiment}", f"--workdir={tmp_path / 'run'}"])
    with start_run("pretrain", flags, flags.config) as run:
        assert run.is_first
        assert (run.workdir / "config.json").exists()
        assert not run.preemption.requested()
        (run.workdir / "metrics.jsonl").touch()
        with downloading():  # data of a task, for example
            time.sleep(0.01)
        assert run.goodput.totals()["seconds"]["downloading"] >= 0.01
        logging.getLogger("bert_jax.training").info("progress")
    assert capsys.readouterr().err == "progress\n"
    with pytest.raises(UserError, match="holds a run with a different configuration"), start_run("pretrain", flags, {"seed": 2}):
        pass


def test_a_process_that_trains_alone_keeps_the_tpu_slice_of_its_host(
    experiment: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "first,second")
    flags = parse_flags("finetune", "", [f"--config={experiment}", f"--workdir={tmp_path / 'run'}"])
    with start_run("finetune", flags, flags.config, independent=True):
        assert os.environ["TPU_WORKER_HOSTNAMES"] == "first,second"


def test_running_out_of_memory_is_one_sentence(experiment: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """With several processes each one reports it: tests/runtime/test_processes.py."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    flags = parse_flags("pretrain", "", [f"--config={experiment}", f"--workdir={tmp_path / 'run'}"])
    sentence = "this run does not fit in memory: it asks for 4.44 GiB of memory at once"
    with pytest.raises(OutOfMemory, match=sentence), start_run("pretrain", flags, flags.config):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes.")


def test_compiled_programs_are_cached_in_the_chosen_directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    before = jax.config.jax_compilation_cache_dir
    try:
        monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        enable_compilation_cache()
        directory = pathlib.Path(jax.config.jax_compilation_cache_dir)
        assert directory.parent == tmp_path / "bert_jax"
        assert directory.name.startswith("xla-")
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
        jax.config.update("jax_compilation_cache_dir", before)
        enable_compilation_cache()
        assert jax.config.jax_compilation_cache_dir == before
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_only_the_first_process_logs_and_all_warn(capsys: pytest.CaptureFixture[str]):
    log = logging.getLogger("bert_jax.somewhere")
    for index in (0, 3):
        start_logging(index)
        log.info("progress")
        log.warning("trouble")
    assert capsys.readouterr().err == "progress\ntrouble\n[process 3] trouble\n"


def test_a_failed_save_leaves_no_traceback_of_its_other_writes(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """The first write that fails is reported. The results of the others are never read, as with Orbax's writes."""
    for name in ("jax", "orbax", "etils", "tensorflow_datasets", "grain", "matplotlib", "absl", "asyncio"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.WARNING)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)

    async def write() -> NoReturn:
        raise OSError("disk full")

    async def save() -> None:
        others = asyncio.ensure_future(write())
        await asyncio.sleep(0)
        del others
        await write()

    quiet_libraries()
    with pytest.raises(OSError, match="disk full"):
        asyncio.run(save())
    gc.collect()
    assert caplog.text == ""
