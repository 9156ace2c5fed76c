"""Assignment of produce gateways (KIP-1164, D-24)."""

from __future__ import annotations

import random

import pytest

from odradek.replication.diskless.produce_gateways import (
    NO_LEADER,
    ProduceGateways,
    assign_gateways,
    gateways_per_rack,
    network_commits,
)

RACKS = 3
COORDINATORS = 12


def kip_cluster(brokers: int) -> tuple[dict[int, str | None], dict[int, int]]:
    """Brokers striped over the racks, and coordinators striped over the brokers."""
    racks: dict[int, str | None] = {each: f"rack-{each % RACKS}" for each in range(brokers)}
    return racks, {each: each % brokers for each in range(COORDINATORS)}


def loads(gateways: ProduceGateways, brokers: object) -> list[int]:
    return [len(gateways.coordinators_of(each)) for each in brokers]  # type: ignore[attr-defined]


# brokers, gateways per coordinator and rack, coordinators per broker, the KIP's bound of commits per file, and the
# bound with co-located gateways and local commits
SCENARIOS = [
    (3, 1, {12}, 3, 2),
    (6, 1, {6}, 6, 2),
    (12, 1, {3}, 12, 2),
    (24, 1, {1, 2}, 2, 1),
    (36, 1, {1}, 1, 1),
    (108, 3, {1}, 1, 1),
]


@pytest.mark.parametrize(("brokers", "per_rack", "per_broker", "kip_bound", "bound"), SCENARIOS)
def test_scenarios_of_the_kip(
    brokers: int, per_rack: int, per_broker: set[int], kip_bound: int, bound: int
) -> None:
    racks, leaders = kip_cluster(brokers)
    gateways = assign_gateways(racks, leaders)
    assert gateways_per_rack(brokers, COORDINATORS, RACKS) == per_rack
    assert {len(found) for found in gateways.by_rack.values()} == {per_rack}
    assert set(loads(gateways, racks)) == per_broker
    calls = max(network_commits(gateways, leaders, each) for each in racks)
    assert calls <= kip_bound
    assert calls == bound


@pytest.mark.parametrize("brokers", [3, 6, 12])
def test_colocated_coordinators_share_gateways(brokers: int) -> None:
    """Before saturation the bound is one call per other rack, also if one broker has several coordinators (D-24)."""
    racks, leaders = kip_cluster(brokers)
    gateways = assign_gateways(racks, leaders)
    for first in leaders:
        for second in leaders:
            if leaders[first] == leaders[second]:
                assert gateways.of_all_racks[first] == gateways.of_all_racks[second]
    assert all(network_commits(gateways, leaders, each) <= RACKS - 1 for each in racks)


@pytest.mark.parametrize("brokers", [3, 6, 12, 24, 36, 108])
def test_coordinator_is_its_own_gateway_in_its_rack(brokers: int) -> None:
    racks, leaders = kip_cluster(brokers)
    gateways = assign_gateways(racks, leaders)
    assert all(leaders[each] in gateways.of(each, racks[leaders[each]]) for each in leaders)


@pytest.mark.parametrize("seed", range(150))
def test_random_clusters_are_balanced(seed: int) -> None:
    """Every coordinator has gateways in every rack, each broker once, and the load of a rack is even (D-24)."""
    source = random.Random(seed)
    names: list[str | None] = [f"rack-{each}" for each in range(source.randrange(1, 5))]
    if source.random() < 0.3:
        names.append(None)
    racks = {each: source.choice(names) for each in range(source.randrange(1, 60))}
    candidates = [*racks, NO_LEADER, 999]
    leaders = {each: source.choice(candidates) for each in range(source.randrange(1, 30))}
    gateways = assign_gateways(racks, leaders)
    per_rack = gateways_per_rack(len(racks), len(leaders), len(set(racks.values())))
    for rack in set(racks.values()):
        brokers = [each for each in racks if racks[each] == rack]
        for coordinator in leaders:
            found = gateways.by_rack[coordinator, rack]
            assert set(found) <= set(brokers)
            assert len(set(found)) == len(found) == min(per_rack, len(brokers))
        of_brokers = loads(gateways, brokers)
        assert max(of_brokers) - min(of_brokers) <= 1
    shuffled = list(racks.items())
    source.shuffle(shuffled)
    assert assign_gateways(dict(shuffled), leaders) == gateways


def test_clients_without_brokers_in_their_rack_use_all_racks() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: None}
    gateways = assign_gateways(racks, {0: 1})
    assert gateways.of(0, "a") == (1,)
    assert gateways.of(0, "unknown") == gateways.of(0, None) == (1, 2, 3)
    assert {gateways.choose(0, None, each) for each in range(3)} == {1, 2, 3}
    assert gateways.of(7, "a") == ()
    assert gateways.choose(7, "a", 0) == NO_LEADER


def test_clusters_without_brokers_or_coordinators_have_no_gateways() -> None:
    assert assign_gateways({}, {0: 1}).of(0, None) == ()
    assert assign_gateways({1: None}, {}).coordinators_of(1) == ()


@pytest.mark.parametrize("brokers", [24, 36, 60, 108])
def test_gateways_are_stable_if_a_broker_leaves(brokers: int) -> None:
    """Few gateways move besides those of the broker, if the number of gateways per rack stays (D-24)."""
    racks, leaders = kip_cluster(brokers)
    before = assign_gateways(racks, leaders)
    moved = 0
    for gone in range(COORDINATORS, brokers):  # brokers without a coordinator
        remaining = {each: rack for each, rack in racks.items() if each != gone}
        after = assign_gateways(remaining, leaders)
        moved += sum(
            len(set(after.of_all_racks[each]) - set(before.of_all_racks[each])) for each in leaders
        )
    assert moved / (brokers - COORDINATORS) <= 6


def test_fewer_gateways_per_rack_keep_those_that_remain() -> None:
    """A cluster of 107 brokers has one gateway less per coordinator and rack than one of 108, and the others stay."""
    racks, leaders = kip_cluster(108)
    before = assign_gateways(racks, leaders)
    del racks[107]
    after = assign_gateways(racks, leaders)
    moved = [set(after.of_all_racks[each]) - set(before.of_all_racks[each]) for each in leaders]
    assert sum(map(len, moved)) <= 4
