"""Makes checks from the records of all processes. They report differences between processes, slow devices and missing parts."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from bert_jax.files import JsonObject
from bert_jax.hardware import link_bandwidth, memory_bandwidth, peak_flops
from bert_jax.interface.words import counted, prefixed


# -------------------------------------------------------------------------------------------------------------------- the report
@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    text: str
    """The figures that were found, as text."""
    faults: tuple[str, ...] = ()
    """Sentences with remedies. Empty if there are no faults."""


def report(checks: Sequence[Check]) -> list[str]:
    """Returns the lines of the report. All checks come first, followed by a numbered list of the faults."""
    lines = [f"{'FAULT' if check.faults else 'ok':5}  {check.name:11}  {check.text}" for check in checks]
    faults = [fault for check in checks for fault in check.faults]
    if not faults:
        return [*lines, "", "all is well"]
    return [*lines, "", f"{counted(len(faults), 'fault')}:", *(f"  {i}. {fault}" for i, fault in enumerate(faults, 1))]


def as_json(checks: Sequence[Check], processes: Sequence[JsonObject]) -> JsonObject:
    """Returns the report as JSON values, with the records of all processes."""
    return {
        "well": not any(check.faults for check in checks),
        "checks": [dataclasses.asdict(check) for check in checks],
        "processes": list(processes),
    }


# ----------------------------------------------------------------------------------------------------------------- the judgement
SLOWER, SLOWER_CPU = 0.85, 0.5
"""A device is slow if its rate is below this fraction of the median of the other devices. The fraction for CPUs is lower,
because they share their cores with other programs."""
OF_PUBLISHED = {"flops": 0.5, "bandwidth": 0.5, "links": 0.1}
"""A device is slow if its rate is below this fraction of the published figure. Good devices reach over 0.8 with the products
and additions that are measured here."""
CLOCK_SECONDS = 2.0
"""The largest accepted difference of a clock from the median, in seconds. The duration of a small collective limits the
accuracy of the comparison."""
LEAST_DISK = 2 << 30
"""The number of free bytes needed for package caches and compiled programs."""

Processes = Sequence[JsonObject]


def judge(processes: Processes, chips: int | None = None) -> list[Check]:
    """Returns the checks of all processes. `chips` is the number of chips that the user expects, or None."""
    return [
        versions(processes),
        devices(processes, chips),
        rates(processes, "flops", "matmul", "FLOP/s"),
        rates(processes, "bandwidth", "bandwidth", "B/s"),
        *links(processes),
        memory(processes),
        *kernels(processes),
        *clocks(processes),
        disks(processes),
    ]


def versions(processes: Processes) -> Check:
    """Reports processes whose package versions or code differ from the majority."""
    faults = []
    names = dict.fromkeys(name for process in processes for name in process["facts"])
    for name in names:
        values = [process["facts"].get(name, "absent") for process in processes]
        usual = statistics.mode(values)
        odd = [_name(processes, i) for i, value in enumerate(values) if value != usual]
        if odd:
            theirs = ", ".join(sorted({value for value in values if value != usual}))
            faults.append(
                f"{name} is {theirs} in {_listed(odd)}, and {usual} elsewhere; copy the same checkout to all hosts and let "
                "tpu_scripts/run.sh install there"
            )
    mine = processes[0]["facts"].items()
    shown = ", ".join(f"{name} {value}" for name, value in mine if value != "absent" and not name.startswith("config."))
    equal = f"; equal in {counted(len(processes), 'process')}" if len(processes) > 1 and not faults else ""
    return Check("versions", f"{shown}{equal}", tuple(faults))


def devices(processes: Processes, chips: int | None = None) -> Check:
    """Compares the chips that JAX sees with the chips that each machine has, and with the number of chips that the user
    expects."""
    seen = [process["seen"] for process in processes]
    kinds = sorted({device["kind"] for process in processes for device in process["devices"]})
    faults = []
    for i, process in enumerate(processes):
        expected, platform = process["expected"], process["devices"][0]["platform"]
        if expected and platform == "cpu":
            faults.append(
                f"{_name(processes, i)} has {counted(expected, 'accelerator')}, but JAX runs on the CPU; install JAX for them: "
                "BERT_JAX_DEVICE=tpu (or cuda13, cuda12) tpu_scripts/run.sh doctor"
            )
        elif expected and process["seen"] < expected:
            faults.append(
                f"{_name(processes, i)} has {counted(expected, 'chip')}, but JAX sees {process['seen']}; end other programs that "
                "use them, and restart the host if that does not help"
            )
        faults += [
            f"device {device['id']} of {_name(processes, i)} cannot be measured: {device['error']}; end other programs that "
            "use it, or take another host"
            for device in process["devices"]
            if device["error"]
        ]
    if len(kinds) > 1:
        faults.append(f"the devices are of {len(kinds)} kinds ({', '.join(kinds)}); a run needs devices of one kind")
    usual = statistics.mode(seen)
    odd = [f"{_name(processes, i)} has {count}" for i, count in enumerate(seen) if count != usual]
    if odd:
        faults.append(
            f"most processes see {counted(usual, 'chip')}, but {_listed(odd)}; a mesh needs the same number in every process"
        )
    if chips is not None and sum(seen) != chips:
        faults.append(f"{counted(sum(seen), 'chip')} seen, but --chips={chips}; look for hosts that are missing or degraded")
    cores = f" ({processes[0]['cores']} cores)" if processes[0]["devices"][0]["platform"] == "cpu" else ""
    text = f"{sum(seen)} x {' and '.join(kinds)}{cores} in {counted(len(processes), 'process')}"
    return Check("devices", text, tuple(faults))


def rates(processes: Processes, key: str, name: str, unit: str) -> Check:
    """Checks a rate that was measured on each device alone. Reports devices that are slower than the other devices, or much
    slower than the published figure."""
    measured = {
        f"device {device['id']} of {_name(processes, i)}": (device[key], device["kind"], device["platform"])
        for i, process in enumerate(processes)
        for device in process["devices"]
        if not device["error"]
    }
    if not measured:
        return Check(name, "not measured")
    _, kind, platform = next(iter(measured.values()))
    known: Callable[[str], float | None] = peak_flops if key == "flops" else memory_bandwidth
    figure = known(kind)
    faults = [
        f"{device} reaches {prefixed(rate, unit)} ({name}), {100 * rate / median:.0f} % of the median of the others; end "
        "other programs on it, or take another host: every step waits for the slowest device"
        for device, rate, median in slow({device: rate for device, (rate, _, _) in measured.items()}, slower(platform))
    ]
    if figure:
        faults += [
            f"{device} reaches {prefixed(rate, unit)} ({name}), {100 * rate / figure:.0f} % of the published "
            f"{prefixed(figure, unit)}; end other programs on it, check its temperature and clocks, or take another device"
            for device, (rate, _, _) in measured.items()
            if rate < OF_PUBLISHED[key] * figure
        ]
    values = [rate for rate, _, _ in measured.values()]
    span = "" if len(values) == 1 else f"{prefixed(min(values))} to "
    dtype = "" if key != "flops" else " in float32" if platform == "cpu" else " in bfloat16"
    alone = " per device, each alone" if len(values) > 1 else ""
    share = f", {100 * min(values) / figure:.0f} % of the published {prefixed(figure, unit)}" if figure else ""
    return Check(name, f"{span}{prefixed(max(values), unit)}{dtype}{alone}{share}", tuple(faults))


def slower(platform: str) -> float:
    """Returns the fraction of the median of all other devices below which a device counts as slow."""
    return SLOWER_CPU if platform == "cpu" else SLOWER


def slow(values: Mapping[str, float], fraction: float) -> list[tuple[str, float, float]]:
    """Returns (name, value, median of all other values) for each value that is below `fraction` times the median."""
    found = []
    for name, value in values.items():
        others = [other for key, other in values.items() if key != name]
        if others and value < fraction * statistics.median(others):
            found.append((name, value, statistics.median(others)))
    return found


def links(processes: Processes) -> list[Check]:
    """Checks the bandwidth of a sum over the devices of each process, and of a sum over all devices."""
    inside = {_name(processes, i): process["links"] for i, process in enumerate(processes) if process.get("links")}
    whole = processes[0].get("links_of_all")
    if not inside and not whole:
        return []
    platform, kind = (processes[0]["devices"][0][key] for key in ("platform", "kind"))
    faults = [
        f"the links between the devices of {name} reach {prefixed(rate, 'B/s')}, {100 * rate / median:.0f} % of the median of "
        "the others; take another host"
        for name, rate, median in slow(inside, slower(platform))
    ]
    figure, parts = link_bandwidth(kind), []
    if inside:
        parts.append(f"{prefixed(min(inside.values()), 'B/s')} among the devices of a process")
    if whole:
        parts.append(f"{prefixed(whole, 'B/s')} among all devices")
    rate = whole or min(inside.values())
    if figure:
        parts.append(f"up to {prefixed(figure, 'B/s')} published over all links of a chip")
        if rate < OF_PUBLISHED["links"] * figure:
            faults.append(
                f"a sum over all devices reaches {100 * rate / figure:.1f} % of the published {prefixed(figure, 'B/s')}; run on "
                "one slice instead of several"
            )
    return [Check("links", f"{'; '.join(parts)} (sent per device in a sum)", tuple(faults))]


def memory(processes: Processes) -> Check:
    """Reports the least free memory of a device. If the devices are CPUs, reports the free memory of the machine."""
    free = [device["free"] for process in processes for device in process["devices"] if device["free"] is not None]
    if free:
        has = min(device["memory"] for process in processes for device in process["devices"])
        return Check("memory", f"{_gib(min(free))} free of the {_gib(has)} per device that JAX may take")
    hosts = [process["host_memory"] for process in processes if process["host_memory"] is not None]
    return Check("memory", f"{_gib(min(hosts))} free on the machine" if hosts else "unknown on this system")


def kernels(processes: Processes) -> list[Check]:
    """Reports the comparison of each kernel with the plain path on every device."""
    checks = []
    for operation in processes[0].get("kernels", {}):
        records = [process["kernels"][operation] for process in processes]
        faults = [
            f"{_name(processes, i)}: model.{operation}: {record['reason']}; 'auto' uses the plain path instead"
            for i, record in enumerate(records)
            if record["reason"]
        ]
        figures = [figure for record in records for figure in record.get("figures", ())]
        worst = max(figures, key=lambda figure: (figure["error"] or 0) / figure["limit"], default=None)
        text = f"{operation} agrees with the plain path in {counted(len(records[0].get('figures', ())), 'figure')}"
        if worst:
            text += (
                f"; closest: {worst['quantity']} off by {100 * (worst['error'] or 0):.2g} %, at most {100 * worst['limit']:.2g} %"
            )
        checks.append(Check("kernel", f"{operation} disagrees with the plain path" if faults else text, tuple(faults)))
    if not checks:
        platform = processes[0]["devices"][0]["platform"]
        checks.append(Check("kernel", f"there is none for a {platform}: XLA compiles everything"))
    return checks


def clocks(processes: Processes) -> list[Check]:
    """Checks the differences between the clocks of the processes."""
    if len(processes) == 1:
        return []
    times = [process["clock"] for process in processes]
    usual = statistics.median_low(times)
    faults = [
        f"the clock of {_name(processes, i)} is {abs(at - usual):.1f} s {'ahead of' if at > usual else 'behind'} the others; "
        "synchronize it by NTP: timedatectl set-ntp true"
        for i, at in enumerate(times)
        if abs(at - usual) > CLOCK_SECONDS
    ]
    return [Check("clocks", f"differ by at most {max(times) - min(times):.2f} s", tuple(faults))]


def disks(processes: Processes) -> Check:
    """Checks the free disk space for the cache and for temporary files."""
    least: dict[str, tuple[int, int]] = {}
    for i, process in enumerate(processes):
        for name, free in process["disks"].items():
            least[name] = min(least.get(name, (free, i)), (free, i))
    faults = [
        f"the disk for the {name} of {_name(processes, i)} has {_gib(free)} free; free at least {_gib(LEAST_DISK)}, or set "
        f"{'BERT_JAX_CACHE' if name == 'cache' else 'TMPDIR'} to a directory on another disk"
        for name, (free, i) in least.items()
        if free < LEAST_DISK
    ]
    return Check("disk", ", ".join(f"{name} {_gib(free)} free" for name, (free, _) in least.items()), tuple(faults))


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _name(processes: Processes, i: int) -> str:
    return f"process {i} ({processes[i]['host']})" if len(processes) > 1 else f"this machine ({processes[i]['host']})"


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
