"""What `aot` says of one step: a record for programs (JSON), and the text for people made from it."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.costs.calibration import SIDE, Calibration
from bert_jax.costs.compiling import Compiled
from bert_jax.costs.estimate import Estimate, interval, utilisation
from bert_jax.costs.memory import Memory
from bert_jax.costs.topologies import Topology
from bert_jax.terminal import duration

COSTLIEST = 20
GIB = 2**30
NOT_MODELLED = (
    "copies and collectives slowing down the compute they overlap with",
    "the start of each operation, the host, the input pipeline, evaluation, checkpoints and restarts",
    "contention for links between groups of chips, and chips that are late",
    "gathers and scatters beyond the bytes they move",
)


@dataclasses.dataclass(frozen=True)
class Step:
    """What is known of a step before it is costed."""

    name: str
    """"phase 0 (128 tokens)"."""
    config: str
    kind: str
    """"train", "eval" or "finetune"."""
    mesh: Mapping[str, int]
    """Of a run of a sweep, which has but some of the topology's devices, smaller than that."""
    rows: int
    """Of the batch, over all devices."""
    length: int
    flops: float
    """Model FLOPs over all devices."""
    steps: int = 0
    """How often the experiment takes it; 0 where only its data can say."""

    @property
    def devices(self) -> int:
        """Of its mesh."""
        return math.prod(self.mesh.values())

    def chips(self, topology: Topology) -> int:
        """Those that its devices are on."""
        return -(-self.devices // topology.chip.devices)


def record(
    step: Step, topology: Topology, compiled: Compiled, estimate: Estimate, memory: Memory, calibration: Calibration
) -> dict[str, Any]:
    """Everything, as plain values; times in seconds, sizes in bytes per device, rates per chip."""
    flops, chips = step.flops / step.devices, step.chips(topology)
    least, seconds = interval(estimate, flops, topology)
    return {
        "step": step.name,
        "kind": step.kind,
        "config": step.config,
        "topology": topology.name,
        "chips": chips,
        "mesh": dict(step.mesh),
        "rows": step.rows,
        "rows_per_chip": step.rows / chips,
        "length": step.length,
        "steps": step.steps,
        "fits": True,
        "memory": dataclasses.asdict(memory),
        "model_flops": step.flops,
        "seconds": seconds,
        "seconds_by_kind": dict(estimate.by_kind),
        "utilisation": utilisation(flops, seconds, topology),
        "roofline_seconds": least,
        "roofline_utilisation": utilisation(flops, least, topology),
        "memory_traffic_bytes": estimate.bytes,
        "rows_per_second_per_chip": step.rows / chips / seconds,
        "tokens_per_second_per_chip": step.rows * step.length / chips / seconds,
        "collectives": {kind: dict(sums) for kind, sums in estimate.collectives.items()},
        "places": costliest(estimate, step.kind),
        "operations": [dataclasses.asdict(one) for one in estimate.operations[:COSTLIEST]],
        "unread_loops": estimate.unread_loops,
        "unknown_kernels": estimate.unknown_kernels,
        "compile_seconds": compiled.seconds,
        "calibration": dataclasses.asdict(calibration),
        "hours": step.steps * seconds / 3600,
        "chip_hours": step.steps * seconds / 3600 * chips,
        "not_modelled": list(NOT_MODELLED),
    }


def costliest(estimate: Estimate, kind: str, count: int = COSTLIEST) -> list[dict[str, Any]]:
    """The places of the model that take the most time in a step of that kind, with their shares."""
    seconds: collections.Counter[tuple[str, str]] = collections.Counter()
    executions: collections.Counter[tuple[str, str]] = collections.Counter()
    for operation in estimate.operations:
        # nothing is differentiated there, so that what no part of the model names looks like an update
        where = "loss" if kind == "eval" and operation.place == "update" else operation.place
        seconds[where, operation.kind] += operation.seconds  # type: ignore[assignment]
        executions[where, operation.kind] += operation.count
    return [
        {"place": where, "kind": how, "seconds": value, "share": value / estimate.seconds, "executions": executions[where, how]}
        for (where, how), value in seconds.most_common(count)
    ]


def text(found: Mapping[str, Any]) -> str:
    """One step's record as a person reads it."""
    mesh = " x ".join(f"{axis}={size}" for axis, size in found["mesh"].items() if size > 1) or "one device"
    lines = [
        f"{found['config']}, {found['step']}, on {found['topology']}: {found['chips']:,} chips, mesh {mesh}, "
        f"{found['rows']:,} rows of {found['length']} tokens a step, {found['rows_per_chip']:g} a chip",
        "",
        *_memory(found["memory"]),
        *_time(found),
        *_collectives(found["collectives"]),
        "",
        "costliest places of the model                              ms   share   executions",
    ]
    for one in found["places"]:
        where = one["place"] + ("" if one["kind"] == "compute" else f" ({one['kind']})")
        lines.append(f"  {where:50.50} {1e3 * one['seconds']:8.2f}  {100 * one['share']:5.1f} %  {one['executions']:11,}")
    return "\n".join([*lines, "", "not modelled: " + ";\n              ".join(NOT_MODELLED)])


def _memory(memory: Mapping[str, Any]) -> list[str]:
    def listed(sizes: Mapping[str, int]) -> str:
        return ", ".join(f"{name} {size / GIB:.2f}" for name, size in sizes.items() if size >= GIB / 200)

    share = memory["total"] / memory["has"]
    return [
        f"memory      fits: {memory['total'] / GIB:.2f} of {memory['has'] / GIB:.0f} GiB a device ({100 * share:.0f} %)",
        f"            kept: {listed(memory['arguments'])}",
        f"            temporary: {listed(memory['temporaries']) or 'little'}; program {memory['code'] / GIB:.2f}",
    ]


def _time(found: Mapping[str, Any]) -> list[str]:
    kinds = sorted(found["seconds_by_kind"].items(), key=lambda item: -item[1])
    parts = ", ".join(f"{kind} {1e3 * value:.1f}" for kind, value in kinds if value > 5e-5)
    calibration = found["calibration"]
    lines = [
        f"time        {1e3 * found['seconds']:.1f} ms a step, estimated ({parts}); "
        f"at best {1e3 * found['roofline_seconds']:.1f} (roofline)",
        f"utilisation {100 * found['utilisation']:.1f} % of peak bf16 FLOP/s, estimated; "
        f"at best {100 * found['roofline_utilisation']:.1f} %; {found['model_flops']:.3g} model FLOPs a step",
        f"speed       {found['rows_per_second_per_chip']:,.1f} rows/s, "
        f"{found['tokens_per_second_per_chip']:,.0f} tokens/s a chip",
        f"trust       the method gives a product {SIDE:,}^3 {100 * calibration['matmul']:.0f} % of peak, the sum of "
        f"two arrays {100 * calibration['stream']:.0f} % of memory bandwidth:",
        "            it is pessimistic about memory. The truth lies between estimate and roofline",
    ]
    if found["unread_loops"] or found["unknown_kernels"]:
        lines.append(
            f"            {found['unread_loops']} loops whose trips could not be read count once, "
            f"{found['unknown_kernels']} kernels without a schedule count as their memory traffic: too little"
        )
    return [*lines, f"compiled in {found['compile_seconds']:.0f} s"]


def _collectives(collectives: Mapping[str, Mapping[str, float]]) -> list[str]:
    if not collectives:
        return ["network     nothing is sent"]
    lines: list[str] = []
    for kind, sums in sorted(collectives.items(), key=lambda item: -item[1]["seconds"]):
        between = f", {sums['sent_between_slices'] / 1e6:,.1f} MB of it between slices" if sums["sent_between_slices"] else ""
        lines.append(
            f"{'' if lines else 'network':12}{kind}: {sums['count']:,.0f} a step, {sums['sent'] / 1e6:,.1f} MB sent a device"
            f"{between}, {1e3 * sums['seconds']:.1f} ms (overlap not deducted)"
        )
    return lines


def totals(found: Sequence[Mapping[str, Any]], price: float | None) -> dict[str, Any]:
    """The whole experiment: hours, chip-hours and, at `price` a chip-hour, what it costs."""
    hours, chip_hours = (sum(one[name] for one in found) for name in ("hours", "chip_hours"))
    return {"hours": hours, "chip_hours": chip_hours} | ({} if price is None else {"price": price, "cost": price * chip_hours})


def totals_text(found: Sequence[Mapping[str, Any]], price: float | None) -> str:
    """The table of phases with their sums; empty where no number of steps is known."""
    if not any(one["steps"] for one in found):
        return ""
    cost = "" if price is None else f"        cost at {price:g}"
    lines = [f"experiment                        steps   ms a step      time    chip-hours{cost}"]
    for one in found:
        money = "" if price is None else f"  {price * one['chip_hours']:16,.2f}"
        lines.append(
            f"  {one['step']:26.26}  {one['steps']:9,}  {1e3 * one['seconds']:10.1f}  {duration(3600 * one['hours']):>8}  "
            f"{one['chip_hours']:12,.1f}{money}"
        )
    whole = totals(found, price)
    money = "" if price is None else f"  {whole['cost']:16,.2f}"
    steps = sum(one["steps"] for one in found)
    time = duration(3600 * whole["hours"])
    lines.append(f"  {'all':26}  {steps:9,}  {'':10}  {time:>8}  {whole['chip_hours']:12,.1f}{money}")
    return "\n".join(lines)


def comparison(records: Sequence[Mapping[str, Any]]) -> str:
    """Several steps side by side, the first as the measure."""
    names = [f"[{n}] {one['config'].rpartition('/')[2]}"[:26] for n, one in enumerate(records, 1)]
    rows: list[tuple[str, list[str]]] = [("", names)]
    figures = (
        ("rows a chip x tokens", lambda r: f"{r['rows_per_chip']:g} x {r['length']}"),
        ("memory, GiB", lambda r: f"{r['memory']['total'] / GIB:.2f}"),
        ("ms a step", lambda r: f"{1e3 * r['seconds']:.1f}"),
        ("utilisation, %", lambda r: f"{100 * r['utilisation']:.1f}"),
        ("rows/s a chip", lambda r: f"{r['rows_per_second_per_chip']:,.1f}"),
        ("times the first's rows/s", lambda r: f"{r['rows_per_second_per_chip'] / records[0]['rows_per_second_per_chip']:.2f}"),
        ("MB sent a device", lambda r: f"{sum(c['sent'] for c in r['collectives'].values()) / 1e6:,.1f}"),
        ("chip-hours", lambda r: f"{r['chip_hours']:,.1f}" if r["steps"] else "-"),
        ("compiled in, s", lambda r: f"{r['compile_seconds']:.0f}"),
    )
    rows += [(name, [figure(one) if one["fits"] else "-" for one in records]) for name, figure in figures]
    kinds = sorted({kind for one in records if one["fits"] for kind in one["seconds_by_kind"]})
    for kind in kinds:
        spent = [f"{1e3 * one['seconds_by_kind'].get(kind, 0):.1f}" if one["fits"] else "-" for one in records]
        rows.append((f"  ms {kind}", spent))
    return "\n".join(f"{name:26}" + "".join(f"{value:>28}" for value in values) for name, values in rows)
