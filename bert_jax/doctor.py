"""Examines the machines of a run before it starts, and reports problems with remedies.

    tpu_scripts/run.sh doctor
    tpu_scripts/run.sh doctor --config=experiments/pretrain/bert_base.py --workdir=gs://my-bucket/base

It runs on one machine, or on all hosts of a slice at once. It checks that versions and code are the same everywhere and that
the expected chips were found, and it checks memory, clocks and disks. On each device it measures the FLOP/s of a matrix product
and the bandwidth of memory and links, compares them with published figures, and names a slow device. It also compares each
kernel with the plain path. With --workdir it tries a run's file operations in that directory. With --config it compiles the
steps of the experiment and reports whether they fit and how long they take. The exit status is 0 if all is well, and 1 if there
is a fault."""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.doctor", check="bert_jax.tpu.diagnosis.flags:check_flags")

import argparse
import contextlib
import logging

import jax

from bert_jax.configs.experiment_files import read_experiment
from bert_jax.errors import UserError
from bert_jax.files import JsonObject, write_json
from bert_jax.interface.command import require_stdout
from bert_jax.interface.output import checked_target, writing
from bert_jax.interface.words import counted
from bert_jax.model.kernels.self_test import KERNELS, compare_kernels_once, verdicts
from bert_jax.runtime.environment import enable_compilation_cache, quiet_libraries, start_logging
from bert_jax.runtime.hosts import find_hosts
from bert_jax.runtime.processes import Processes, meet
from bert_jax.storage.objects import as_path
from bert_jax.storage.paths import AnyPath, checked
from bert_jax.tpu.diagnosis import machine, speed
from bert_jax.tpu.diagnosis.experiment import corpus_check, fit_checks, workdir_check
from bert_jax.tpu.diagnosis.flags import Overrides, parse_flags
from bert_jax.tpu.diagnosis.judgement import Check, as_json, judge, report
from bert_jax.tpu.programs import experiment_class

log = logging.getLogger("bert_jax.doctor")  # __name__ would be __main__ when this file runs as a command

FAULT = 1
"""The exit status if there are faults."""


def main() -> int:
    """Runs the command."""
    flags, overrides = parse_flags(__doc__)
    require_stdout("open it, or redirect it to a file with >FILE")
    quiet_libraries()
    if overrides and not flags.config:
        raise UserError(f"--config.{overrides[0][0]} needs an experiment file; add --config=FILE")
    target = checked_target(flags.json, flag="--json") if flags.json else None
    values = read_experiment(flags.config, overrides, experiment_class) if flags.config else {}
    workdir = as_path(checked(flags.workdir, "--workdir")) if flags.workdir else None
    enable_compilation_cache()
    hosts = find_hosts(flags.coordinator, flags.processes, flags.process)
    start_logging(hosts.index if hosts else 0)
    records: list[JsonObject] = []
    with contextlib.ExitStack() as stack:
        try:
            processes = stack.enter_context(meet(hosts, values, timeout=flags.start_timeout, patience=flags.start_timeout))
            if hosts:
                processes.join_jax(flags.start_timeout)
        except UserError as error:
            checks = [Check("processes", "they cannot run together", (str(error),))]
        else:
            checks, records = _examine(processes, flags, overrides, values, workdir)
    if not hosts or hosts.index == 0:
        print("\n".join(report(checks)))
        if target:
            with writing(f"--json={flags.json}", "--json"):
                write_json(target, as_json(checks, records))
    return FAULT if any(check.faults for check in checks) else 0


def _examine(
    processes: Processes, flags: argparse.Namespace, overrides: Overrides, values: JsonObject, workdir: AnyPath | None
) -> tuple[list[Check], list[JsonObject]]:
    """Returns (all checks, the records of all processes)."""
    try:
        here = counted(jax.local_device_count(), "device")
    except RuntimeError as error:
        return [Check("devices", "JAX finds none", (_without_devices(error),))], []
    log.info("examining %s in %s ...", here, counted(jax.process_count(), "process"))
    records = gathered(processes, values)
    return [*judge(records, flags.chips), *_run_checks(processes, flags, overrides, values, workdir, records)], records


def gathered(processes: Processes, values: JsonObject) -> list[JsonObject]:
    """Returns the records of all processes, in every process. `values` is the configuration of the experiment."""
    own, devices = machine.record(), jax.local_devices()
    operations = KERNELS.get(devices[0].platform, ())
    if operations:
        log.info("comparing kernels with the plain path ...")
        own["kernels"] = verdicts(devices, operations, anew=True)
        compare_kernels_once(values.get("model"), processes.gather)
    own["links"] = speed.links(devices)
    own["links_of_all"] = speed.links(jax.devices()) if jax.process_count() > 1 else None
    processes.gather({})  # waits for all processes, so that they read their clocks at the same time
    return processes.gather(own | {"clock": machine.clock()})


def _run_checks(
    processes: Processes,
    flags: argparse.Namespace,
    overrides: Overrides,
    values: JsonObject,
    workdir: AnyPath | None,
    records: list[JsonObject],
) -> list[Check]:
    """Runs the checks of the workdir and of the experiment, if the flags name them."""
    checks = []
    if workdir is not None:
        checks.append(workdir_check(processes, workdir))
    if not flags.config:
        return checks
    corpus = values.get("corpus")
    if isinstance(corpus, dict) and corpus.get("directory"):
        checks.append(corpus_check(processes, str(corpus["directory"])))
        if checks[-1].faults and processes.count > 1:  # without the corpus, a process would compile steps of another size
            return checks
    log.info("compiling the steps of %s ...", flags.config)
    rates = [device["flops"] for record in records for device in record["devices"] if device["flops"]]
    together = min(rates, default=1.0) * (1 if jax.default_backend() == "cpu" else jax.device_count())
    compared = [record.get("kernels", {}) for record in records]
    rejected = {operation for of_process in compared for operation, verdict in of_process.items() if verdict["reason"]}
    estimated = not flags.no_estimate
    checks += fit_checks(processes, flags.config, overrides, together, workdir, estimated=estimated, rejected=rejected)
    return checks


def _without_devices(error: RuntimeError) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"JAX finds no device ({first}); end other programs that use the chips, or check which packages are installed"
