"""The walk over a program: loops multiply, and asynchronous work hides behind compute."""

from __future__ import annotations

import pytest

from bert_jax.costs.estimate import Estimate, Estimator, interval, utilisation
from bert_jax.costs.hlo import parse
from bert_jax.costs.kernels import Schedule
from bert_jax.costs.memory import peak
from bert_jax.costs.topologies import Topology, parse_topology
from tests.costs.devices import devices_of
from tests.costs.test_hlo import LOOPS

V5E = parse_topology("v5e:4x4")


def estimated(text: str, kernels: dict[str, Schedule] | None = None, topology: Topology = V5E) -> Estimate:
    return Estimator(parse(text), kernels or {}, topology, devices_of(topology)).estimate()


def program(*lines: str, called: str = "") -> str:
    """An ENTRY of those lines, behind the computation `called`."""
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


def test_a_loop_in_a_loop_counts_with_the_product_of_their_trips():
    assert estimated(LOOPS).seconds == pytest.approx(3 * 5 * 7 / 1.5e9)
    assert {o.name: o.count for o in estimated(LOOPS).operations} == {"mul": 15}


def test_an_asynchronous_collective_takes_only_what_compute_does_not_hide():
    shard = "%s = f32[64,1024]{1,0:T(8,128)} slice(%a), slice={[0:64], [0:1024]}, backend_config={\"estimated_cycles\":\"0\"}"
    done = "%d = f32[1024,1024]{1,0:T(8,128)} all-gather-done(%g)"
    root = "ROOT %r = f32[1024,1024]{1,0:T(8,128)} bitcast(%d)"
    alone = estimated(program(A, shard, GATHER, done, root))
    sent = 2**22 * 15 / 16 / (2 * 50e9 * 0.9) + 6e-6  # both dimensions of the open 4 x 4 grid; 3 + 3 hops
    assert alone.seconds == pytest.approx(sent)
    hidden = estimated(program(A, shard, GATHER, work("w", 15_000), done, root))
    assert hidden.seconds == pytest.approx(sent)  # 10 us of work behind 50 us of sending
    assert hidden.by_kind["collective"] == pytest.approx(sent - 10e-6)
    longer = estimated(program(A, shard, GATHER, work("w", 150_000), done, root))
    assert longer.seconds == pytest.approx(100e-6)


def test_a_collective_on_the_cores_for_sparse_work_is_asynchronous_and_moves_no_memory_here():
    """As in what the compiler gives for v7x."""
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


def test_a_collective_that_the_walk_does_not_come_by_is_admitted():
    call = 'ROOT %r = f32[64,1024]{1,0:T(8,128)} custom-call(%a), custom_call_target="New", '
    unknown = program(A, call + "called_computations={%called_computation.4}", called=SCATTER)
    assert estimated(unknown).uncounted_collectives == 1


def test_fusions_that_continue_or_end_a_collective_hold_it_again_and_are_not_counted():
    goes_on = SCATTER.replace("%called_computation.4", "%async_collective_fusion.1")
    fusion = "%f = f32[64,1024]{1,0:T(8,128)} fusion(%a), kind=kCustom, calls=%async_collective_fusion.1"
    ends = SCATTER.replace("ROOT", '%x = f32[] custom-call(), custom_call_target="AsyncCollectiveDone"\n  ROOT')
    done = "ROOT %r = f32[64,1024]{1,0:T(8,128)} fusion(%f), kind=kCustom, calls=%called_computation.4"
    found = estimated(program(A, fusion, done, called=f"{goes_on}\n{ends}"))
    assert (found.uncounted_collectives, found.collectives) == (0, {})


def test_what_crosses_slices_is_waited_for_at_the_end_of_the_recv_and_named_by_what_uses_it():
    shape = "f32[1024,1024]{1,0:T(8,128)}"
    about = 'frontend_attributes={_xla_host_transfer_rendezvous="r_0",_xla_megascale_transfer_type="ALL_REDUCE"}'
    reduce = f"%x = {shape} all-reduce(%a), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}"
    send = f"%s = ({shape}, u32[], token[]) send(%x), {about}"
    recv = f"%t = ({shape}, u32[], token[]) recv(), {about}"
    ends = ("%u = token[] send-done(%s)", f"%v = ({shape}, token[]) recv-done(%t)")
    taken = f"%g = {shape} get-tuple-element(%v), index=0"
    root = f'ROOT %r = {shape} bitcast(%g), metadata={{op_name="jit(train_step)/jvp(M)/layers/attention/query/psum"}}'
    found = estimated(program(A, reduce, send, recv, *ends, taken, root), topology=parse_topology("2xv5e:2x2"))
    places = {operation.name: operation.place for operation in found.operations}
    assert places == {"v": "layers/attention/query", "x": "layers/attention/query"}
    crossed = found.collectives["all-reduce between slices"]
    assert (crossed["sent"], crossed["sent_between_slices"]) == (2**22, 2**22)
    inside = 2 * (2**22 * 3 / 4 / 90e9 + 2e-6)
    assert found.seconds == pytest.approx(inside + 2**22 / (25e9 / 8) + 40e-6)


def test_a_synchronous_all_reduce_is_fully_exposed_and_its_bytes_are_counted():
    reduce = "ROOT %r = f32[1024,1024]{1,0:T(8,128)} all-reduce(%a), replica_groups={{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}}"
    found = estimated(program(A, work("w", 1500), reduce))
    assert found.seconds == pytest.approx(1e-6 + 2 * (2**22 * 15 / 16 / 90e9 + 6e-6))
    assert found.collectives["all-reduce"]["sent"] == pytest.approx(2 * 2**22 * 15 / 16)


def test_a_kernel_costs_its_schedule_but_at_least_its_passage_through_memory():
    call = 'ROOT %r = f32[1024,1024]{1,0:T(8,128)} custom-call(%a), custom_call_target="tpu_custom_call", '
    call += 'backend_config={"body":"XYZ"}'
    slow = estimated(program(A, call), {"XYZ": Schedule(100, 1_500_000, (10,))})
    assert slow.seconds == pytest.approx(1e-3)
    quick = estimated(program(A, call), {"XYZ": Schedule(100, 100, (1,))})
    assert quick.seconds == pytest.approx(2 * 2**22 / 819e9)
    assert estimated(program(A, call)).unknown_kernels == 1


def test_an_asynchronous_copy_waits_for_the_memory():
    start = "%c = (f32[1024,1024]{1,0:T(8,128)S(1)}, f32[1024,1024]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%a)"
    done = "%d = f32[1024,1024]{1,0:T(8,128)S(1)} copy-done(%c)"
    root = "ROOT %r = f32[1024,1024]{1,0:T(8,128)S(1)} bitcast(%d)"
    assert estimated(program(A, start, done, root)).seconds == pytest.approx(2**22 / 819e9)
    assert estimated(program(A, start, work("w", 1500), done, root)).by_kind["copy"] == pytest.approx(2**22 / 819e9 - 1e-6)


def test_the_roofline_is_the_longer_of_compute_and_memory():
    found = estimated(program(A, work("w", 1500), "ROOT %r = f32[1024,1024]{1,0:T(8,128)S(1)} bitcast(%w)"))
    assert found.bytes == 2 * 2**22  # the operand stands there twice
    assert interval(found, 197e12, V5E) == (1.0, found.seconds)
    assert interval(found, 0.0, V5E)[0] == pytest.approx(2 * 2**22 / 819e9)
    assert utilisation(197e12, 2.0, V5E) == 0.5


def test_a_fusion_reads_each_operand_whole_or_the_slice_of_it_and_writes_its_result():
    inside = """%fused (p: f32[1024,1024], q: f32[1024,1024]) -> f32[64,1024] {
  %p = f32[1024,1024]{1,0:T(8,128)} parameter(0)
  %q = f32[1024,1024]{1,0:T(8,128)} parameter(1)
  %s = f32[64,1024]{1,0:T(8,128)} slice(%p), slice={[0:64], [0:1024]}
  %t = f32[64,1024]{1,0:T(8,128)} reduce-window(%q), window={size=16x1 stride=16x1}, to_apply=%region
  ROOT %u = f32[64,1024]{1,0:T(8,128)} add(%s, %t)
}
"""
    other = "%b = f32[1024,1024]{1,0:T(8,128)} parameter(1)"
    call = "ROOT %f = f32[64,1024]{1,0:T(8,128)} fusion(%a, %b), kind=kLoop, calls=%fused, "
    call += 'backend_config={"window_config":{"estimated_cycles":"1"}}'
    part, whole = 2**18, 2**22
    assert estimated(program(A, other, call, called=inside)).bytes == part + whole + part


def test_the_peak_of_memory_counts_what_is_alive_and_reuses_what_is_not():
    def made(name: str, of: str, where: str) -> str:
        return f'%{name} = f32[1024,1024]{{1,0:T(8,128)}} negate(%{of}), metadata={{op_name="jit(step)/{where}/neg"}}'

    lines = (A, made("x", "a", "jvp(M)/layers"), made("y", "x", "jvp(M)/layers"), made("g", "y", "transpose(jvp(M))/layers"))
    last = "ROOT %r = f32[1024,1024]{1,0:T(8,128)} add(%g, %z)"
    assert peak(parse(program(*lines, last.replace("%z", "%y")))) == {"activations": 2**22, "gradients": 2**22}
    assert peak(parse(program(*lines, last.replace("%z", "%x")))) == {"activations": 2 * 2**22}  # and g where y did
    assert peak(parse(program(*lines, last.replace("%z", "%a")))) == {"activations": 2**22}
