"""Builds the report of `aot` on one step, first as a JSON record and then as text."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from bert_jax.files import JsonObject
from bert_jax.hardware import DCN_LATENCY, GIB, ICI_EFFICIENCY, ICI_LATENCY
from bert_jax.interface.words import counted, duration
from bert_jax.tpu.costs.compiler import SIDE, Calibration, DoesNotFit
from bert_jax.tpu.costs.estimate import Estimate, Operation, interval, utilisation
from bert_jax.tpu.costs.memory import Memory
from bert_jax.tpu.costs.topologies import Topology

COSTLIEST = 20
SUMMED = 8
"""The number of modules in the summary line of the text report."""
WASTEFUL = 0.2
"""Below this fraction of the peak, the report suggests a cheaper way to do the same work."""
REACHED = 0.8
"""The fraction of the memory bandwidth that real chips reach when they add two long arrays. If the calibration is below this
fraction, the estimates are pessimistic."""
METHOD = (
    "the compiler's cycle estimate of each operation times the trip counts of its loops, summed; for Pallas kernels, the cycles "
    f"of their compiled schedules; for the network, rings whose links reach {ICI_EFFICIENCY:g} of their published rate, with "
    f"{1e6 * ICI_LATENCY:g} us per hop and {1e6 * DCN_LATENCY:g} us per exchange between slices; of an asynchronous operation, "
    "only the time that compute does not hide"
)
NOT_MODELLED = (
    "the slowdown of compute by copies and collectives that overlap with it",
    "the launch of each operation, the host, the input pipeline, evaluation, checkpoints, restarts",
    "contention for links between groups of chips, and stragglers",
    "gathers and scatters: only the time to move their bytes counts (optimistic)",
    "kernels that read or write HBM at less than its full bandwidth (optimistic)",
    "the last layer at selected positions only: model FLOPs count all positions, 3 to 6 % more at 512 tokens",
    "the branch that a condition takes: the most expensive branch counts, in kernels all branches (pessimistic)",
)


@dataclasses.dataclass(frozen=True)
class Step:
    """The properties of a step that are known before it is compiled."""

    name: str
    """The step's name, e.g. "phase 0, train step"."""
    config: str
    kind: str
    """"train", "eval" or "finetune"."""
    mesh: Mapping[str, int]
    """The sizes of the mesh axes. A run of a sweep may use fewer devices than the topology has."""
    rows: int
    """The number of rows of the batch, over all devices."""
    length: int
    flops: float
    """Model FLOPs of the step, over all devices."""
    steps: int | None = None
    """The number of executions. None if this number depends on data that is not given."""
    covers: str = "experiment"
    """The work that these executions cover, e.g. "experiment" or "1 pass, 10,000 rows"."""

    @property
    def devices(self) -> int:
        """The number of devices in the mesh."""
        return math.prod(self.mesh.values())

    def chips(self, topology: Topology) -> int:
        """Returns the number of chips that the mesh uses."""
        return -(-self.devices // topology.chip.devices)


def header(step: Step, topology: Topology) -> JsonObject:
    """Returns the part of the record that is known before the step is compiled."""
    chips = step.chips(topology)
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
        "covers": step.covers,
    }


def refused(
    step: Step, topology: Topology, error: DoesNotFit, arguments: Mapping[str, int], remedies: Sequence[str]
) -> JsonObject:
    """Returns the record of a step that does not fit. `arguments` are the bytes per device of each argument."""
    return header(step, topology) | {
        "fits": False,
        "needs_bytes": error.needs,
        "has_bytes": error.has,
        "message": f"{error}",
        "memory": {"arguments": dict(arguments)},
        "remedies": list(remedies),
    }


def record(
    step: Step, topology: Topology, estimate: Estimate, memory: Memory, calibration: Calibration, compile_seconds: float
) -> JsonObject:
    """Returns the record of a step that was compiled in `compile_seconds`, as JSON values. Times are in seconds, sizes in bytes
    per device, and rates per chip."""
    flops, chips = step.flops / step.devices, step.chips(topology)
    least, seconds = interval(estimate, flops, topology)
    hours = None if step.steps is None else step.steps * seconds / 3600
    return header(step, topology) | {
        "fits": True,
        "memory": dataclasses.asdict(memory),
        "model_flops": step.flops,
        "seconds": seconds,
        "seconds_by_kind": dict(estimate.by_kind),
        "utilisation": utilisation(flops, seconds, topology),
        "advice": advice(step, utilisation(flops, seconds, topology), topology),
        "roofline_seconds": least,
        "roofline_utilisation": utilisation(flops, least, topology),
        "memory_traffic_bytes": estimate.bytes,
        "rows_per_second_per_chip": step.rows / chips / seconds,
        "tokens_per_second_per_chip": step.rows * step.length / chips / seconds,
        "collectives": {kind: dict(sums) for kind, sums in estimate.collectives.items()},
        "places": costliest(estimate, step.kind),
        "operations": [
            dataclasses.asdict(one) | {"place": _place(one, step.kind), "share": one.seconds / estimate.seconds}
            for one in estimate.operations[:COSTLIEST]
        ],
        "unread_loops": estimate.unread_loops,
        "unknown_kernels": estimate.unknown_kernels,
        "uncounted_collectives": estimate.uncounted_collectives,
        "compile_seconds": compile_seconds,
        "calibration": dataclasses.asdict(calibration),
        "hours": hours,
        "chip_hours": None if hours is None else hours * chips,
        "method": METHOD,
        "not_modelled": list(NOT_MODELLED),
    }


def advice(step: Step, used: float, topology: Topology) -> str | None:
    """Returns a sentence with a cheaper way to do the same work. Returns None if the step uses at least WASTEFUL of the chips'
    peak."""
    if not used < WASTEFUL:
        return None
    chips = step.chips(topology)
    rows = f"{step.rows / chips:g} row{'' if step.rows == chips else 's'} of {counted(step.length, 'token')} per chip"
    fewer = " or fewer chips (a smaller --topology)" if chips > 1 else ""
    return f"at {100 * used:.1f} % of peak with {rows}, a larger batch{fewer} would cost less for the same work"


def _place(operation: Operation, kind: str) -> str:
    # an evaluation differentiates nothing, so `place` names its operations outside the model's modules `update`
    return "loss" if kind == "eval" and operation.place == "update" else operation.place


def costliest(estimate: Estimate, kind: str, count: int = COSTLIEST) -> list[JsonObject]:
    """Returns the modules of the model that take the most time in a step, and the fraction of the step's time that each of them
    takes. `kind` is the kind of the step."""
    seconds: collections.Counter[tuple[str, str]] = collections.Counter()
    executions: collections.Counter[tuple[str, str]] = collections.Counter()
    for operation in estimate.operations:
        where = _place(operation, kind)
        seconds[where, operation.kind] += operation.seconds  # type: ignore[assignment]
        executions[where, operation.kind] += operation.count
    return [
        {"place": where, "kind": how, "seconds": value, "share": value / estimate.seconds, "executions": executions[where, how]}
        for (where, how), value in seconds.most_common(count)
    ]


def text(found: JsonObject) -> str:
    """Formats the record of one step as text."""
    mesh = " x ".join(f"{axis}={size}" for axis, size in found["mesh"].items() if size > 1) or "one device"
    lines = [
        f"{found['config']}, {found['step']}, on {found['topology']}: {counted(found['chips'], 'chip')}, mesh {mesh}, "
        f"{counted(found['rows'], 'row')} of {counted(found['length'], 'token')} per step, {found['rows_per_chip']:g} per chip",
        "",
        *_memory(found["memory"]),
        *_time(found),
        *_collectives(found["collectives"]),
        *_wrapped("modules", f"share of the time: {_places(found['places'])}"),
        "",
        f"{'costliest operations':38}  {'kind':10}        ms    share     count  module",
    ]
    for one in found["operations"]:
        cost = f"{1e3 * one['seconds']:8.3f}  {100 * one['share']:5.1f} %  {one['count']:8,}"
        lines.append(f"  {one['name']:36.36}  {one['kind']:10}  {cost}  {one['place']}")
    return "\n".join([*lines, "", *_wrapped("method", METHOD), "not modelled: " + ";\n              ".join(NOT_MODELLED)])


def _wrapped(title: str, words: str) -> list[str]:
    unbroken = words.replace(" %", "\N{NO-BREAK SPACE}%")
    lines = textwrap.wrap(unbroken, 118, initial_indent=f"{title:12}", subsequent_indent=" " * 12, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _places(places: Sequence[JsonObject]) -> str:
    """Returns the modules with the largest shares of the time. The share of a module is the sum over all kinds of
    operations."""
    shares: collections.Counter[str] = collections.Counter()
    for one in places:
        shares[one["place"]] += one["share"]
    return ", ".join(f"{where} {100 * share:.1f} %" for where, share in shares.most_common(SUMMED))


def _listed(sizes: Mapping[str, int]) -> str:
    """Formats sizes in GiB. Sizes that round to 0.00 are left out. Returns "" if no size is left."""
    listed = {name: f"{size / GIB:.2f}" for name, size in sizes.items()}
    return ", ".join(f"{name} {size}" for name, size in listed.items() if size != "0.00")


def _memory(memory: JsonObject) -> list[str]:
    arguments = _listed(memory["arguments"])
    share = memory["total"] / memory["has"]
    return [
        f"memory      fits: {memory['total'] / GIB:.2f} of {memory['has'] / GIB:.0f} GiB per device ({100 * share:.0f} %)",
        *([f"            arguments, GiB: {arguments}"] if arguments else []),
        f"            temporaries, GiB: {_listed(memory['temporaries']) or '0.00'}; program code {memory['code'] / GIB:.2f}",
    ]


def _time(found: JsonObject) -> list[str]:
    kinds = sorted(found["seconds_by_kind"].items(), key=lambda item: -item[1])
    listed = [(kind, f"{1e3 * value:.1f}") for kind, value in kinds]
    parts = ", ".join(f"{kind} {value}" for kind, value in listed if value != "0.0")
    calibration = found["calibration"]
    pessimistic = (
        f"chips reach over {100 * REACHED:.0f} %, so the estimate is too long for operations bound by memory, and the true time "
        "probably lies between the roofline and the estimate"
    )
    optimistic = "the true time is longer by the effects that are not modelled"
    lines = [
        f"time        {1e3 * found['seconds']:.1f} ms per step, estimated ({parts}); "
        f"lower bound {1e3 * found['roofline_seconds']:.1f} (roofline)",
        f"utilisation {100 * found['utilisation']:.1f} % of peak bf16 FLOP/s, estimated; "
        f"upper bound {100 * found['roofline_utilisation']:.1f} %; {found['model_flops']:.3g} model FLOPs per step",
        *(_wrapped("advice", found["advice"]) if found["advice"] else []),
        f"speed       {found['rows_per_second_per_chip']:,.1f} rows/s, "
        f"{found['tokens_per_second_per_chip']:,.0f} tokens/s per chip",
        *_wrapped(
            "calibration",
            f"the same method estimates a matrix product {SIDE:,}^3 at {100 * calibration['matmul']:.0f} % of peak FLOP/s and an "
            f"addition of two long arrays at {100 * calibration['stream']:.0f} % of the memory bandwidth; "
            f"{pessimistic if calibration['stream'] < REACHED else optimistic}",
        ),
    ]
    unsure = []
    if count := found["unread_loops"]:
        unsure.append(f"{counted(count, 'loop')} of unknown trip count, counted as one trip")
    if count := found["unknown_kernels"]:
        unsure.append(f"{counted(count, 'kernel')} without a schedule, counted as memory traffic")
    if count := found["uncounted_collectives"]:
        unsure.append(f"{counted(count, 'collective')} that could not be followed, not counted")
    lines += _wrapped("", f"the estimate is too short: {'; '.join(unsure)}") if unsure else []
    return [*lines, f"compilation {found['compile_seconds']:.0f} s"]


def _collectives(collectives: Mapping[str, Mapping[str, float]]) -> list[str]:
    if not collectives:
        return ["network     no collectives"]
    lines: list[str] = []
    for kind, sums in sorted(collectives.items(), key=lambda item: -item[1]["seconds"]):
        between = f", of which {sums['sent_between_slices'] / 1e6:,.1f} MB between slices" if sums["sent_between_slices"] else ""
        lines.append(
            f"{'' if lines else 'network':12}{kind}: {sums['count']:,.0f} per step, {sums['sent'] / 1e6:,.1f} MB sent per device"
            f"{between}, {1e3 * sums['seconds']:.1f} ms (with the part hidden by compute)"
        )
    return lines


def refusal(found: JsonObject) -> str:
    """Returns the text for a step that does not fit."""
    lines = [
        f"{found['config']}, {found['step']}, on {found['topology']}: does not fit. It {found['message']} per device, with "
        f"{counted(found['rows'], 'row')} of {counted(found['length'], 'token')} per step, {found['rows_per_chip']:g} per chip."
    ]
    if arguments := _listed(found["memory"]["arguments"]):
        lines.append(f"The arguments of the step take, in GiB: {arguments}; temporaries and program code take the rest.")
    if found["remedies"]:
        lines.append("It fits with any one of these changes (compiled with model.scan_layers=true, where it is allowed):")
        lines += [f"    {remedy}" for remedy in found["remedies"]]
    else:
        lines.append("Use more chips, chips with more memory, or fewer rows.")
    return "\n".join(lines)


def totals(found: Sequence[JsonObject], price: float | None) -> JsonObject:
    """Returns the sums over all steps: hours, chip-hours, and the cost at `price` per chip-hour. The sums are None if the
    number of executions of a step is unknown."""
    known = all(one["steps"] is not None for one in found)
    hours, chip_hours = (sum(one[name] for one in found) if known else None for name in ("hours", "chip_hours"))
    whole = {"hours": hours, "chip_hours": chip_hours}
    return whole | ({} if price is None else {"price": price, "cost": None if chip_hours is None else price * chip_hours})


def totals_text(found: Sequence[JsonObject], price: float | None) -> str:
    """Returns a table of the steps and their sums. If the number of executions is unknown, returns a text that names the
    missing flag."""
    if any(one["steps"] is None for one in found):
        what = "held-out rows" if found[0]["kind"] == "eval" else "training examples"
        return f"hours and price: the number of steps depends on the data; give --rows=N, the number of {what}"
    cost = "" if price is None else f"        cost at {price:g}"
    lines = [f"{found[0]['covers']:30}      steps ms per step      time    chip-hours{cost}"]

    def line(name: str, steps: int, each: str, spent: JsonObject) -> str:
        money = "" if price is None else f"  {price * spent['chip_hours']:16,.2f}"
        time = duration(3600 * spent["hours"])
        return f"  {name:28.28}  {steps:9,}  {each:>10}  {time:>8}  {spent['chip_hours']:12,.1f}{money}"

    lines += [line(one["step"], one["steps"], f"{1e3 * one['seconds']:.1f}", one) for one in found]
    if len(found) > 1:
        lines.append(line("all", sum(one["steps"] for one in found), "", totals(found, price)))
    return "\n".join(lines)


def comparisons(experiments: Sequence[Sequence[JsonObject]]) -> Iterator[str]:
    """Yields one table for each step, which compares the experiments with the first of them. For steps that cannot be compared,
    yields a sentence."""
    for row in itertools.zip_longest(*experiments):
        there = [one for one in row if one]
        step, first = there[0]["step"], there[0]["config"]
        if lacking := [experiments[n][0]["config"] for n, one in enumerate(row) if not one]:
            yield f"not compared: {', '.join(lacking)} has no {step}, which {first} has"
        if len(there) > 1:
            fits = there[0]["fits"]
            yield comparison(there) if fits else f"not compared: the {step} of {first}, the reference, does not fit"


def comparison(records: Sequence[JsonObject]) -> str:
    """Returns a table that compares several steps with the first of them."""
    names = [f"[{n}] {one['config'].rpartition('/')[2]}"[:26] for n, one in enumerate(records, 1)]
    rows: list[tuple[str, list[str]]] = [("", names)]
    figures = (
        ("rows per chip x tokens", lambda r: f"{r['rows_per_chip']:g} x {r['length']}"),
        ("memory, GiB", lambda r: f"{r['memory']['total'] / GIB:.2f}"),
        ("ms per step", lambda r: f"{1e3 * r['seconds']:.1f}"),
        ("utilisation, %", lambda r: f"{100 * r['utilisation']:.1f}"),
        ("rows/s per chip", lambda r: f"{r['rows_per_second_per_chip']:,.1f}"),
        ("rows/s relative to [1]", lambda r: f"{r['rows_per_second_per_chip'] / records[0]['rows_per_second_per_chip']:.2f}"),
        ("MB sent per device", lambda r: f"{sum(c['sent'] for c in r['collectives'].values()) / 1e6:,.1f}"),
        ("chip-hours", lambda r: f"{r['chip_hours']:,.1f}" if r["steps"] is not None else "-"),
        ("compilation, s", lambda r: f"{r['compile_seconds']:.0f}"),
    )
    rows += [(name, [figure(one) if one["fits"] else "-" for one in records]) for name, figure in figures]
    kinds = sorted({kind for one in records if one["fits"] for kind in one["seconds_by_kind"]})
    for kind in kinds:
        spent = [f"{1e3 * one['seconds_by_kind'].get(kind, 0):.1f}" if one["fits"] else "-" for one in records]
        rows.append((f"  ms {kind}", spent))
    return "\n".join(f"{name:26}" + "".join(f"{value:>28}" for value in values) for name, values in rows)
