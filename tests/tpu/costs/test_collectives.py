"""The network model: which chips communicate, over how many links, and for how long."""

from __future__ import annotations

import pytest

from bert_jax.tpu.costs.collectives import between_slices, first_replica_group, transfer
from bert_jax.tpu.costs.hlo import Instruction
from bert_jax.tpu.costs.topologies import parse_topology
from tests.tpu.costs.devices import devices_of, unnumbered


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("{{0,2},{1,3}}", [0, 2]),
        ("[2,4]<=[8]", [0, 1, 2, 3]),
        ("[4,2]<=[2,4]T(1,0)", [0, 4]),
        ("mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", [0, 2, 4, 6]),
        ("mesh['axis_0'=4,'axis_1'=2] {'axis_0','axis_1'}", list(range(8))),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", [0, 2, 4, 6]),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}", [0, 1]),
        ("mesh['a'=2,'b'=4], device_ids=([8]) {'b'}", [0, 1, 2, 3]),
        ("{}", None),
        ("{{}}", None),
    ],
)
def test_every_notation_of_groups_is_parsed(text: str, group: list[int] | None):
    assert first_replica_group(text) == group


def collective(groups: str) -> Instruction:
    return Instruction("c", "all-reduce", (), (), f", replica_groups={groups}, dimensions={{0}}", False, "")


def test_a_ring_is_twice_as_fast_as_a_line_of_its_length():
    closed, open_ = parse_topology("v5e:16x16"), parse_topology("v5e:8x16")
    lines = {t.name: transfer("all-gather", collective("[16,16]<=[256]"), 2**24, t, devices_of(t)) for t in (closed, open_)}
    ring = lines["v5e:16x16"].seconds - 8e-6  # 8 hops
    assert ring == pytest.approx(16 * 2**24 * 15 / 16 / (2 * 45e9))
    small = parse_topology("v5e:8x8")
    both = transfer("all-gather", collective("[8,8]<=[64]"), 2**24, small, devices_of(small))
    assert both.seconds - 7e-6 == pytest.approx(8 * 2**24 * 7 / 8 / 45e9)
    half = transfer("all-gather", collective("[32,8]<=[256]"), 2**24, closed, devices_of(closed))
    assert half == both, "a part of a ring is a line"
    pair = transfer("all-gather", collective("[128,2]<=[256]"), 2**24, closed, devices_of(closed))
    assert pair.seconds - 1e-6 == pytest.approx(2**24 / 45e9), "two neighbours have the link between them"


def test_a_collective_without_groups_includes_all_devices():
    t = parse_topology("v5e:4x4")
    everyone = transfer("all-gather", collective("[1,16]<=[16]"), 2**20, t, devices_of(t))
    assert transfer("all-gather", collective("{}"), 2**20, t, devices_of(t)) == everyone
    assert (everyone.payload, everyone.sent, everyone.sent_between_slices) == (16 * 2**20, 15 * 2**20, 0)
    assert (everyone.kind, everyone.group) == ("all-gather", 16)


@pytest.mark.parametrize(
    ("name", "groups", "share"),
    [
        ("v5e:16x16", "[16,16]<=[256]", 16 / 8),  # half of the bytes cross the middle of a ring, over four links
        ("v5e:8x8", "[8,8]<=[64]", 8 / 4),  # or over two
        ("v5e:4x8", "[1,32]<=[32]", 8 / 4),
        ("v5e:2x2", "[2,2]<=[4]", 2 / 4),
    ],
)
def test_an_all_to_all_goes_through_the_middle_of_the_longest_dimension(name: str, groups: str, share: float):
    t = parse_topology(name)
    found = transfer("all-to-all", collective(groups), 2**24, t, devices_of(t))
    alike = transfer("all-gather", collective(groups), 0, t, devices_of(t))
    assert found.seconds - alike.seconds == pytest.approx(2**24 * share / 45e9), "and takes as many hops as an all-gather"
    assert found.sent == 2**24 * (found.group - 1) / found.group


def test_the_two_halves_of_a_chip_exchange_through_its_memory():
    t = parse_topology("v7x:2x2x1")
    halves = devices_of(t)[:2]
    gather, every = (transfer(kind, collective("[1,2]<=[2]"), 2**20, t, halves) for kind in ("all-gather", "all-to-all"))
    assert gather.seconds == pytest.approx(2**20 / 7380e9)
    assert every.seconds == 0


def test_a_permute_sends_its_operand_to_a_neighbour():
    t = parse_topology("v5p:4x4x4")
    found = transfer("collective-permute", collective("{}"), 2**20, t, devices_of(t))
    assert (found.kind, found.payload, found.sent) == ("collective-permute", 2**20, 2**20)
    assert (found.sent_between_slices, found.group) == (0, 2)
    assert found.seconds == pytest.approx(2**20 / 90e9 + 1e-6)


def test_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    t = parse_topology("v5p:4x4x4")
    kinds, everyone = ("all-reduce", "reduce-scatter"), collective("[1,64]<=[64]")
    reduce, scatter = (transfer(kind, everyone, 2**26, t, devices_of(t)) for kind in kinds)
    assert reduce.seconds == pytest.approx(2 * scatter.seconds)
    assert scatter.seconds == pytest.approx(2**26 * 63 / 64 / (6 * 90e9) + 6e-6)  # three rings; two hops each


def test_traffic_between_slices_goes_through_the_network_card():
    t = parse_topology("2xv5e:4x4")
    whole = transfer("all-reduce", collective("[1,32]<=[32]"), 2**26, t, devices_of(t))
    assert whole.sent_between_slices == pytest.approx(2 * 2**26 / 16 / 2)
    inside = transfer("all-reduce", collective("[2,16]<=[32]"), 2**26, t, devices_of(t))
    assert whole.seconds - inside.seconds == pytest.approx(2**26 / 16 / (25e9 / 8) + 40e-6)
    assert (whole.sent, inside.sent) == (pytest.approx(2 * 2**26 * 31 / 32), pytest.approx(2 * 2**26 * 15 / 16))
    assert transfer("all-reduce", collective("[2,16]<=[32]"), 2**26, parse_topology("v5e:4x4"), unnumbered(t)[:16]) == inside
    crossing = between_slices(send("ALL_REDUCE"), 2**20, t)
    assert crossing.kind == "all-reduce between slices"
    assert crossing.seconds == pytest.approx(2**20 / (25e9 / 8) + 40e-6)


def send(kind: str) -> Instruction:
    return Instruction("s", "send", (), (), f'_xla_megascale_transfer_type="{kind}"' if kind else "", False, "")


@pytest.mark.parametrize(
    ("kind", "payload", "sent"),
    [
        ("ALL_GATHER", 4, 3),  # the shard is sent to each of the three others
        ("REDUCE_SCATTER", 1, 3 / 4),
        ("ALL_REDUCE", 1, 2 * 3 / 4),
        ("ALL_TO_ALL", 1, 3 / 4),
        ("ONE_TO_ONE", 1, 1),
        ("", 1, 1),  # of an unknown kind
    ],
)
def test_traffic_between_slices_depends_on_the_kind_of_collective(kind: str, payload: float, sent: float):
    crossing = between_slices(send(kind), 2**20, parse_topology("4xv5e:4x4"))
    assert (crossing.payload, crossing.sent, crossing.sent_between_slices) == (payload * 2**20, sent * 2**20, sent * 2**20)
    assert crossing.kind == f"{kind.lower().replace('_', '-') or 'send'} between slices"
    assert crossing.group == 4


def test_the_devices_of_a_chip_share_its_network_bandwidth():
    t = parse_topology("2xv7x:2x2x1")
    assert between_slices(send("ALL_GATHER"), 2**20, t).seconds == pytest.approx(2 * 2**20 / (100e9 / 8) + 20e-6)
