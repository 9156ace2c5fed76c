"""Which peers and workloads a command line means."""

from __future__ import annotations

import pytest

from odradek.bench.cli.arguments import UnknownChoice, choose_limits, choose_peers, choose_workloads
from odradek.bench.limits import LIMITS
from odradek.bench.workloads import WORKLOADS as ALL
from tests.bench.fakes import FakePeer, FakeWorkload

PEERS = {name: FakePeer(name, [], default=name != "c") for name in ("a", "b", "c")}
WORKLOADS = [
    FakeWorkload("produce-1k", []),
    FakeWorkload("produce-100b", [], default=False),
    FakeWorkload("latency", []),
]


def test_choice_without_names_selects_the_defaults() -> None:
    assert [peer.name for peer in choose_peers(PEERS, None)] == ["a", "b"]
    assert [each.name for each in choose_workloads(WORKLOADS, None)] == ["produce-1k", "latency"]


def test_names_and_patterns() -> None:
    assert [peer.name for peer in choose_peers(PEERS, ["c", "a", "c"])] == ["c", "a"]
    chosen = choose_workloads(WORKLOADS, ["latency", "produce-*"])
    assert [each.name for each in chosen] == ["produce-1k", "produce-100b", "latency"]


def test_what_is_not_known_is_named_with_what_is() -> None:
    with pytest.raises(UnknownChoice, match="unknown peer 'd'; the peers are a, b, c"):
        choose_peers(PEERS, ["a", "d"])
    with pytest.raises(UnknownChoice, match="no workload matches 'prodcue"):
        choose_workloads(WORKLOADS, ["latency", "prodcue*"])


def test_the_limits_that_workloads_are_seen_against() -> None:
    names = [each.name for each in choose_limits(LIMITS, WORKLOADS)]
    assert names == ["sendfile"]


def test_every_limit_that_a_metric_names_is_measured_in_its_unit() -> None:
    units = {each.name: each.metric.unit for each in LIMITS}
    for workload in ALL:
        for metric in workload.metrics:
            if metric.limit is not None and metric.limit == metric.limit_name:
                assert units[metric.limit] == metric.unit
