"""The walk over a program: loops multiply costs, and compute hides asynchronous work."""

from __future__ import annotations

import math

import pytest

from bert_jax.tpu.costs.estimate import Estimate, Estimator, interval, utilisation
from bert_jax.tpu.costs.hlo import UNNAMED, parse
from bert_jax.tpu.costs.kernel_cycles import Schedule
from bert_jax.tpu.costs.topologies import Topology, parse_topology
from tests.tpu.costs.devices import devices_of
from tests.tpu.costs.test_hlo import LOOPS

V5E, V7X, SLICES = parse_topology("v5e:4x4"), parse_topology("v7x:2x2x1"), parse_topology("2xv5e:2x2")


def estimated(text: str, kernels: dict[str, Schedule] | None = None, topology: Topology = V5E) -> Estimate:
    return Estimator(parse(text), kernels or {}, topology, devices_of(topology)).estimate()


def program(*lines: str, called: str = "") -> str:
    """Returns an ENTRY of those lines, after the computation `called`."""
    body = "\n".join(f"  {line}" for line in lines)
    return f"HloModule m\n\n{called}\nENTRY %main (a: f32[1024,1024]) -> f32[1024,1024] {{\n{body}\n}}\n"


A = "%a = f32[1024,1024]{1,0:T(8,128)} parameter(0)"
GATHER = (
    "%g = (f32[64,1024]{1,0:T(8,128)}, f32[1024,1024]{1,0:T(8,128)}) all-gather-start(%s), "
    "replica_groups=[1,16]<=[16], dimensions={0}"
)


SCATTER = """%called_computation.4 (p: f32[1024,1024], q: token[]) -> f32[64,1024] {
  %q = token[] parameter(1)
  %p = f32[1024,1024]{1,0:T(8,128)} parameter(0)
  ROOT %c = f32[64,1024]{1,0:T(8,128)} reduce-scatter(%p), replica_groups=[1,16]<=[16], dimensions={0}, to_apply=%region
}, execution_thread="sparsecore"
"""


def work(name: str, cycles: int, operand: str = "a") -> str:
    config = f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'
    return f"%{name} = f32[1024,1024]{{1,0:T(8,128)S(1)}} multiply(%{operand}, %{operand}), {config}"


def test_nested_loops_count_with_the_product_of_their_trips():
    assert estimated(LOOPS).seconds == pytest.approx(3 * 5 * 7 / 1.5e9)
    (mul,) = estimated(LOOPS).operations
    assert (mul.name, mul.count, mul.seconds) == ("mul", 15, pytest.approx(15 * 7 / 1.5e9))


@pytest.mark.parametrize(("limit", "count"), [(1, 0), (3, 1), (5, 2)])
def test_loops_may_run_once_or_never(limit: int, count: int):
    text = LOOPS.replace("%seven = s32[]{:T(128)} constant(7)", f"%seven = s32[]{{:T(128)}} constant({limit})")
    assert estimated(text).seconds == pytest.approx(count * 5 * 7 / 1.5e9)
    assert [o.count for o in estimated(text).operations] == [5 * count] * min(1, count)


def test_a_loop_of_unknown_length_counts_once_and_is_reported():
    text = LOOPS.replace("%seven = s32[]{:T(128)} constant(7)", "%seven = s32[]{:T(128)} custom-call()")
    found = estimated(text)
    assert (found.unread_loops, found.seconds) == (1, pytest.approx(5 * 7 / 1.5e9))
    assert [o.count for o in found.operations] == [5]
    inner = estimated(LOOPS.replace("%limit = s32[]{:T(128)} constant(5)", "%limit = s32[]{:T(128)} custom-call()"))
    assert (inner.unread_loops, inner.seconds) == (1, pytest.approx(3 * 7 / 1.5e9))
    assert estimated(LOOPS).unread_loops == 0


def test_traffic_in_a_loop_counts_with_its_trips():
    shape = "f32[1024,1024]{1,0:T(8,128)}"
    body = f"""%body (p: {shape}) -> {shape} {{
  %p = {shape} parameter(0)
  %x = {shape} all-reduce(%p), replica_groups=[1,16]<=[16]
  %k = {shape} custom-call(%x), custom_call_target="tpu_custom_call", backend_config={{"body":"XYZ"}}
  %c = ({shape}, {shape}, u32[]{{:S(2)}}) copy-start(%k)
  ROOT %d = {shape} copy-done(%c)
}}
"""
    loop = f'ROOT %w = {shape} while(%a), condition=%none, body=%body, backend_config={{"known_trip_count":{{"n":"3"}}}}'
    found = estimated(program(A, loop, called=body))
    assert found.collectives["all-reduce"]["count"] == 3
    assert found.collectives["all-reduce"]["sent"] == 3 * 2 * 2**22 * 15 / 16
    assert found.bytes == 3 * (2 + 1) * 2**22, "a kernel reads and writes; a copy counts once"
    assert (found.unknown_kernels, found.unread_loops, found.uncounted_collectives) == (1, 0, 0)
    assert estimated(program(A, loop.replace("body=%body", "body=%gone"), called=body)).seconds == 0


def test_the_longest_branch_of_a_conditional_counts_and_calls_are_followed():
    def branch(name: str, cycles: int) -> str:
        return f"%{name} (a: f32[1024,1024]) -> f32[1024,1024] {{\n  {A}\n  ROOT {work(name + '.w', cycles)}\n}}\n"

    branches = branch("few", 1500) + "\n" + branch("many", 15_000)
    shape = "f32[1024,1024]{1,0:T(8,128)}"
    condition = f"ROOT %r = {shape} conditional(%a, %a), branch_computations={{%few, %many}}"
    for text in (condition, condition.replace("{%few, %many}", "{%many, %few}")):
        found = estimated(program(A, text, called=branches))
        assert (found.seconds, [o.name for o in found.operations]) == (pytest.approx(10e-6), ["many.w"])
        assert found.by_kind == {"compute": pytest.approx(10e-6)}
    call = f"ROOT %r = {shape} call(%a), to_apply=%few"
    assert estimated(program(A, call, called=branches)).seconds == pytest.approx(1e-6)
    assert estimated(program(A, call, called="")).seconds == 0, "instructions outside of the text are unknown"


def test_an_asynchronous_collective_costs_only_its_exposed_time():
    shard = '%s = f32[64,1024]{1,0:T(8,128)} slice(%a), slice={[0:64], [0:1024]}, backend_config={"estimated_cycles":"0"}'
    done = "%d = f32[1024,1024]{1,0:T(8,128)} all-gather-done(%g)"
    root = "ROOT %r = f32[1024,1024]{1,0:T(8,128)} bitcast(%d)"
    alone = estimated(program(A, shard, GATHER, done, root))
    sent = 2**22 * 15 / 16 / (2 * 50e9 * 0.9) + 6e-6  # both dimensions of the open 4 x 4 grid; 3 + 3 hops
    assert alone.seconds == pytest.approx(sent)
    hidden = estimated(program(A, shard, GATHER, work("w", 15_000), done, root))
    assert hidden.seconds == pytest.approx(sent)  # 10 us of compute hide a part of 50 us of sending
    assert hidden.by_kind["collective"] == pytest.approx(sent - 10e-6)
    longer = estimated(program(A, shard, GATHER, work("w", 150_000), done, root))
    assert longer.seconds == pytest.approx(100e-6)
    second = GATHER.replace("%g = ", "%h = ")
    two = estimated(program(A, shard, GATHER, second, done, done.replace("%d", "%e").replace("%g", "%h"), root))
    assert two.seconds == pytest.approx(2 * sent), "one after the other on the network"
    assert two.collectives["all-gather"]["count"] == 2


def test_a_collective_split_into_fusions_is_waited_for_at_its_end():
    starts = SCATTER.replace("%called_computation.4", "%starts").replace(
        "ROOT", '%x = f32[] custom-call(), custom_call_target="AsyncCollectiveStart"\n  ROOT'
    )
    goes_on = SCATTER.replace("%called_computation.4", "%async_collective_fusion.1")
    ends = SCATTER.replace("%called_computation.4", "%ends").replace(
        "ROOT", '%x = f32[] custom-call(), custom_call_target="AsyncCollectiveDone"\n  ROOT'
    )
    shape = "f32[64,1024]{1,0:T(8,128)}"
    lines = (
        f"%s = ({shape}, u32[]) fusion(%a), kind=kCustom, calls=%starts",
        f"%t = {shape} get-tuple-element(%s), index=0",
        f"%f = {shape} fusion(%a, %t), kind=kCustom, calls=%async_collective_fusion.1, "
        'backend_config={"window_config":{"estimated_cycles":"15000"}}',
        f"%g = {shape} bitcast(%f)",
        f"ROOT %r = {shape} fusion(%g), kind=kCustom, calls=%ends",
    )
    found = estimated(program(A, *lines, called=f"{starts}\n{goes_on}\n{ends}"))
    sent = 2**22 * 15 / 16 / (2 * 50e9 * 0.9) + 6e-6
    assert found.by_kind == {"compute": pytest.approx(10e-6), "collective": pytest.approx(sent - 10e-6)}
    assert (found.seconds, found.uncounted_collectives) == (pytest.approx(sent), 0)
    assert found.collectives["reduce-scatter"]["count"] == 1
    unknown = program(A, lines[-1].replace("%g", "%a"), called=ends)
    assert estimated(unknown).seconds == 0, "an operation without a start is not waited for"


@pytest.mark.parametrize(("name", "called"), [("reduce-scatter.7", "fused"), ("r", "fused_reduce_scatter")])
def test_an_all_reduce_with_a_slice_costs_a_reduce_scatter(name: str, called: str):
    """As the compiler writes it: a fusion of an all-reduce and a slice."""
    inside = SCATTER.replace("%called_computation.4", f"%{called}").replace("reduce-scatter(", "all-reduce(")
    fusion = f"ROOT %{name} = f32[64,1024]{{1,0:T(8,128)}} fusion(%a), kind=kCustom, calls=%{called}"
    found = estimated(program(A, fusion, called=inside))
    assert found.collectives == {"reduce-scatter": {
        "count": 1, "payload": 2**22, "sent": 2**22 * 15 / 16, "sent_between_slices": 0, "seconds": pytest.approx(found.seconds),
    }}  # fmt: skip
    plain = estimated(program(A, fusion.replace(name, "r").replace(called, "fused"), called=inside.replace(called, "fused")))
    assert list(plain.collectives) == ["all-reduce"]


def test_a_sparse_core_collective_is_asynchronous_without_memory_traffic():
    """As in the compiler's output for v7x."""
    prepared = '%p = s32[]{:S(2)} custom-call(), custom_call_target="PrepareAsyncCallStart"'
    ready = '%q = token[] custom-call(%p), custom_call_target="PrepareAsyncCallDone"'
    shape = "f32[1024,1024]{1,0:T(8,128)}"
    start = f'%s = (({shape}, token[]), f32[64,1024]{{1,0:T(8,128)}}) call-start(%a, %q), async_execution_thread="sparsecore", '
    start += "to_apply=%called_computation.4"
    done = "%d = f32[64,1024]{1,0:T(8,128)} call-done(%s)"
    root = "ROOT %r = f32[64,1024]{1,0:T(8,128)} bitcast(%d)"
    alone = estimated(program(A, prepared, ready, start, done, root, called=SCATTER))
    sent = 2**22 * 15 / 16 / (2 * 50e9 * 0.9) + 6e-6
    assert alone.seconds == pytest.approx(sent)
    assert (alone.bytes, alone.uncounted_collectives) == (0, 0)
    assert alone.collectives["reduce-scatter"]["sent"] == 2**22 * 15 / 16
    hidden = estimated(program(A, prepared, ready, start, work("w", 15_000), done, root, called=SCATTER))
    assert hidden.by_kind == {"compute": pytest.approx(10e-6), "collective": pytest.approx(sent - 10e-6)}


def test_uncounted_collectives_are_reported():
    call = 'ROOT %r = f32[64,1024]{1,0:T(8,128)} custom-call(%a), custom_call_target="New", '
    unknown = program(A, call + "called_computations={%called_computation.4}", called=SCATTER)
    assert estimated(unknown).uncounted_collectives == 1


def test_fusions_that_repeat_a_collective_are_not_counted():
    goes_on = SCATTER.replace("%called_computation.4", "%async_collective_fusion.1")
    fusion = "%f = f32[64,1024]{1,0:T(8,128)} fusion(%a), kind=kCustom, calls=%async_collective_fusion.1"
    ends = SCATTER.replace("ROOT", '%x = f32[] custom-call(), custom_call_target="AsyncCollectiveDone"\n  ROOT')
    done = "ROOT %r = f32[64,1024]{1,0:T(8,128)} fusion(%f), kind=kCustom, calls=%called_computation.4"
    found = estimated(program(A, fusion, done, called=f"{goes_on}\n{ends}"))
    assert (found.uncounted_collectives, found.collectives) == (0, {})


def test_transfers_between_slices_end_at_the_recv_and_are_named_by_their_users():
    shape = "f32[1024,1024]{1,0:T(8,128)}"
    about = 'frontend_attributes={_xla_host_transfer_rendezvous="r_0",_xla_megascale_transfer_type="ALL_REDUCE"}'
    reduce = f"%x = {shape} all-reduce(%a), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}"
    send = f"%s = ({shape}, u32[], token[]) send(%x), {about}"
    recv = f"%t = ({shape}, u32[], token[]) recv(), {about}"
    ends = ("%u = token[] send-done(%s)", f"%v = ({shape}, token[]) recv-done(%t)")
    taken = f"%g = {shape} get-tuple-element(%v), index=0"
    root = f'ROOT %r = {shape} bitcast(%g), metadata={{op_name="jit(train_step)/jvp(M)/layers/attention/query/psum"}}'
    found = estimated(program(A, reduce, send, recv, *ends, taken, root), topology=SLICES)
    places = {operation.name: operation.place for operation in found.operations}
    assert places == {"v": "layers/attention/query", "x": "layers/attention/query"}
    crossed = found.collectives["all-reduce between slices"]
    assert (crossed["sent"], crossed["sent_between_slices"]) == (2**22, 2**22)
    inside = 2 * (2**22 * 3 / 4 / 90e9 + 2e-6)
    assert found.seconds == pytest.approx(inside + 2**22 / (25e9 / 8) + 40e-6)
    unnamed = "%w = f32[1024,1024]{1,0:T(8,128)} negate(%a)"
    places = {o.name: o.place for o in estimated(program(A, unnamed, root.replace("%g", "%w")), topology=SLICES).operations}
    assert places == {"w": UNNAMED}, "only collectives are named after their users"
    places = {o.name: o.place for o in estimated(program(A, reduce, root.replace("%g", "%x"))).operations}
    assert places == {"x": UNNAMED}, "within one slice the compiler splits no collective"


def test_a_synchronous_all_reduce_is_fully_exposed_and_its_bytes_are_counted():
    reduce = "ROOT %r = f32[1024,1024]{1,0:T(8,128)} all-reduce(%a), replica_groups={{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}}"
    found = estimated(program(A, work("w", 1500), reduce))
    assert found.seconds == pytest.approx(1e-6 + 2 * (2**22 * 15 / 16 / 90e9 + 6e-6))
    assert found.collectives["all-reduce"]["sent"] == pytest.approx(2 * 2**22 * 15 / 16)
    prepared = estimated(program(A, work("w", 1500), reduce + ', backend_config={"estimated_cycles":"3000"}'))
    assert prepared.seconds == pytest.approx(found.seconds + 2e-6), "including the cycles of the cores themselves"


def test_a_kernel_costs_the_longer_of_its_schedule_and_memory_traffic():
    call = 'ROOT %r = f32[1024,1024]{1,0:T(8,128)} custom-call(%a), custom_call_target="tpu_custom_call", '
    call += 'backend_config={"body":"XYZ"}'
    slow = estimated(program(A, call), {"XYZ": Schedule(100, 1_500_000, (10,), 0)})
    assert slow.seconds == pytest.approx(1e-3)
    quick = estimated(program(A, call), {"XYZ": Schedule(100, 100, (1,), 0)})
    assert quick.seconds == pytest.approx(2 * 2**22 / 819e9)
    assert (slow.unknown_kernels, slow.by_kind) == (0, {"kernel": pytest.approx(1e-3)})
    unknown = estimated(program(A, call))
    assert (unknown.unknown_kernels, unknown.seconds) == (1, quick.seconds)
    fast = A.replace("T(8,128)", "T(8,128)S(1)"), call.replace("T(8,128)", "T(8,128)S(1)")
    assert estimated(program(*fast)).seconds == 0
    other = estimated(program(A, call.replace("tpu_custom_call", "New")))
    assert (other.unknown_kernels, other.by_kind) == (0, {"memory": quick.seconds})


def test_an_asynchronous_copy_waits_for_the_memory():
    start = "%c = (f32[1024,1024]{1,0:T(8,128)S(1)}, f32[1024,1024]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%a)"
    done = "%d = f32[1024,1024]{1,0:T(8,128)S(1)} copy-done(%c)"
    root = "ROOT %r = f32[1024,1024]{1,0:T(8,128)S(1)} bitcast(%d)"
    assert estimated(program(A, start, done, root)).seconds == pytest.approx(2**22 / 819e9)
    hidden = estimated(program(A, start, work("w", 1500), done, root))
    assert hidden.by_kind == {"compute": pytest.approx(1e-6), "copy": pytest.approx(2**22 / 819e9 - 1e-6)}
    assert hidden.bytes == (1 + 2) * 2**22, "and what is multiplied"
    second = (start.replace("%c", "%e"), done.replace("%d", "%f").replace("%c", "%e"))
    assert estimated(program(A, start, second[0], done, second[1], root)).seconds == pytest.approx(2 * 2**22 / 819e9)


@pytest.mark.parametrize("opcode", ["slice-start", "dynamic-slice-start"])
def test_an_asynchronous_slice_moves_only_the_slice(opcode: str):
    part = "f32[64,1024]{1,0:T(8,128)S(1)}"
    start = f"%c = ((f32[1024,1024]{{1,0:T(8,128)}}), {part}, u32[]{{:S(2)}}) {opcode}(%a), slice={{[0:64], [0:1024]}}"
    done = f"%d = {part} slice-done(%c)"
    found = estimated(program(A, start, done, f"ROOT %r = {part} bitcast(%d)"))
    assert found.by_kind == {"copy": pytest.approx(2**18 / 819e9)}
    assert found.bytes == 2**18


def test_small_arrays_without_a_cycle_estimate_are_free():
    def reshaped(elements: int) -> Estimate:
        shape = f"f32[{elements}]{{0:T(128)}}"
        return estimated(program(f"%a = {shape} parameter(0)", f"ROOT %r = {shape} reshape(%a)"))

    assert reshaped(512).by_kind == {"memory": pytest.approx(4096 / 819e9)}
    assert (reshaped(511).seconds, reshaped(511).bytes) == (0, 2 * 4 * 511)


def test_the_roofline_is_the_maximum_of_compute_and_memory():
    found = estimated(program(A, work("w", 1500), "ROOT %r = f32[1024,1024]{1,0:T(8,128)S(1)} bitcast(%w)"))
    assert found.bytes == 2 * 2**22  # the operand occurs twice
    assert interval(found, 197e12, V5E) == (1.0, found.seconds)
    assert interval(found, 0.0, V5E)[0] == pytest.approx(2 * 2**22 / 819e9)
    assert utilisation(197e12, 2.0, V5E) == 0.5
    assert math.isnan(utilisation(1.0, 0.0, V5E))


def test_the_cores_of_a_chip_share_its_rates():
    found = estimated(program(A, "ROOT %r = f32[1024,1024]{1,0:T(8,128)} reshape(%a)"), topology=V7X)
    assert found.seconds == pytest.approx(2 * 2**22 / (7380e9 / 2))
    assert interval(found, 0.0, V7X)[0] == pytest.approx(found.seconds)
    assert interval(found, 2307e12, V7X)[0] == 2.0
    assert utilisation(2307e12, 4.0, V7X) == 0.5
