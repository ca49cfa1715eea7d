"""Every shipped experiment fits the hardware that its docstring names. Its step is compiled for that hardware by the functions of
`aot`.

A docstring says `Hardware: v5e:4x4 ...` or `Hardware: 2 CPU cores, 1 GiB ...`; the miniatures have a table with a slice for each
size.
Layers are compiled in a loop (`scan_layers=True`), which is several times faster and takes about the memory of the unrolled step.
Fine-tuning is compiled with BERT-Base. All programs but the last one of the quickstart are slow, a minute or two each:
`pytest -m slow tests/tpu/costs`.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re

import jax
import pytest

from bert_jax.configs.experiment_files import read_experiment
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.sharding.mesh import mesh_shape
from bert_jax.tpu.costs.compiler import Compiler
from bert_jax.tpu.costs.memory import used_bytes
from bert_jax.tpu.costs.topologies import parse_topology
from bert_jax.tpu.programs import finetuning_step, model_config_to_finetune, pretraining_step, with_overrides

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
FILES = sorted(file for kind in ("pretrain", "finetune") for file in (REPOSITORY / "experiments" / kind).glob("*.py"))
NAMED = re.compile(r"^Hardware: ((?:\d+x)?v\d\w?:\d+(?:x\d+)+|\d+ CPU cores, \d+ GiB)\b", re.MULTILINE)
OF_SIZE = re.compile(r"^ +(\S+) .* (v\d\w?:\d+(?:x\d+)+) ", re.MULTILINE)
LAYERS_IN_A_LOOP = {"model.scan_layers": True}


def named(file: pathlib.Path) -> list[tuple[str, str]]:
    """Returns (experiment in the form of --config, its hardware) for a file: one, or one for each size of a table."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    path = file.relative_to(REPOSITORY).as_posix()
    if found := NAMED.search(text):
        argument = re.search(rf"--config={path}(:\S+)", text)
        return [(path + (argument[1] if argument else ""), found[1])]
    return [(f"{path}:{size}", hardware) for size, hardware in OF_SIZE.findall(text)]


SHIPPED = [one for file in FILES for one in named(file)]
ON_TPU = [(config, hardware) for config, hardware in SHIPPED if "CPU" not in hardware]
ON_CPU = [(config, hardware) for config, hardware in SHIPPED if "CPU" in hardware]


def load(config: str) -> PretrainingExperiment | FinetuningExperiment:
    kind = FinetuningExperiment if "/finetune/" in config else PretrainingExperiment
    values = read_experiment(config, [("init_from", "model")] if kind is FinetuningExperiment else [], kind)
    return kind.from_dict(values)


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_every_experiment_names_its_hardware_in_a_parsable_form(file: pathlib.Path):
    assert named(file), f"{file.name}: no `Hardware: v5e:4x4 ...` or `Hardware: 2 CPU cores, 1 GiB ...`"


@pytest.mark.parametrize(("config", "hardware"), ON_TPU)
def test_mesh_and_batches_divide_over_the_named_chips(config: str, hardware: str):
    devices = parse_topology(hardware).devices
    experiment = load(config)
    shape = mesh_shape(experiment.mesh, devices)
    parts = shape["data"] * shape["fsdp"]
    if isinstance(experiment, PretrainingExperiment):
        assert [p.batch_size % (parts * p.accumulation) for p in experiment.phases] == [0] * len(experiment.phases)
        assert experiment.evaluation.batch_size % parts == 0


@functools.cache
def compiler(hardware: str) -> Compiler:
    return Compiler(parse_topology(hardware))


@pytest.mark.slow
@pytest.mark.tpu_compiler
@pytest.mark.parametrize(("config", "hardware"), ON_TPU)
def test_the_steps_fit_the_named_chips(config: str, hardware: str):
    experiment, target = load(config), compiler(hardware)
    if isinstance(experiment, PretrainingExperiment):
        changed = with_overrides(experiment, LAYERS_IN_A_LOOP)
        steps = [pretraining_step(changed, phase, target.devices) for phase in range(len(experiment.phases))]
    else:
        steps = [finetuning_step(with_overrides(experiment, LAYERS_IN_A_LOOP), model_config_to_finetune("base"), target.devices)]
    for step in steps:
        compiled = target.compile(step.lowered)  # raises DoesNotFit, with the figures
        print(f"{config} {hardware}: {used_bytes(compiled.memory) / 2**30:.2f} GiB, compiled in {compiled.seconds:.0f} s")
        assert used_bytes(compiled.memory) <= target.topology.device_memory


def assert_fits(config: str, hardware: str, phases: slice) -> None:
    experiment = load(config)
    assert isinstance(experiment, PretrainingExperiment)
    (gib,) = re.findall(r"(\d+) GiB", hardware)
    for phase in range(len(experiment.phases))[phases]:
        program = pretraining_step(with_overrides(experiment, LAYERS_IN_A_LOOP), phase, jax.devices()[:1]).lowered.compile()
        used = used_bytes(program.memory_analysis())
        print(f"{config} {phase} {hardware}: {used / 2**30:.2f} GiB")
        assert 0 < used <= float(gib) * 2**30 / 2  # the rest is for Python, libraries and the corpus


@pytest.mark.slow
@pytest.mark.parametrize(("config", "hardware"), ON_CPU)
def test_the_steps_fit_the_named_memory(config: str, hardware: str):
    assert_fits(config, hardware, slice(None))


def test_the_last_step_of_the_quickstart_fits_the_named_memory():
    config = "experiments/pretrain/quickstart.py"
    assert_fits(config, dict(ON_CPU)[config], slice(-1, None))
