"""Selection of peers and workloads on the command line."""

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


def test_choice_accepts_names_and_patterns() -> None:
    assert [peer.name for peer in choose_peers(PEERS, ["c", "a", "c"])] == ["c", "a"]
    chosen = choose_workloads(WORKLOADS, ["latency", "produce-*"])
    assert [each.name for each in chosen] == ["produce-1k", "produce-100b", "latency"]


def test_unknown_name_is_reported_with_the_known_names() -> None:
    with pytest.raises(UnknownChoice, match="unknown peer 'd'; the peers are a, b, c"):
        choose_peers(PEERS, ["a", "d"])
    with pytest.raises(UnknownChoice, match="no workload matches 'prodcue"):
        choose_workloads(WORKLOADS, ["latency", "prodcue*"])


def test_limits_of_the_chosen_workloads_are_selected() -> None:
    names = [each.name for each in choose_limits(LIMITS, WORKLOADS)]
    assert names == ["sendfile"]


def test_limits_of_metrics_have_the_unit_of_the_metric() -> None:
    units = {each.name: each.metric.unit for each in LIMITS}
    for workload in ALL:
        for metric in workload.metrics:
            if metric.limit is not None and metric.limit == metric.limit_name:
                assert units[metric.limit] == metric.unit
