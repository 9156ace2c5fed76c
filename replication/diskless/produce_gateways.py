"""Produce gateways: the brokers that should take the produce requests of a coordinator's partitions (KIP-1164, D-24).

Any broker accepts a produce request for any diskless partition, but must then commit its WAL file to the coordinators of
all its batches. If clients use the gateways, a broker's files have batches of few coordinators. Each coordinator has
max(1, brokers / coordinators / racks) gateways in each rack.

The assignment is a pure function of the brokers with their racks and of the leaders of the coordinators, so that all
brokers compute the same one. Within a rack

* all brokers are gateways of equally many coordinators (a difference of one at most),
* a coordinator's own broker is its gateway, because its commits need no network call,
* coordinators on the same broker share a gateway, because their commits are one network call,
* otherwise the gateway is the broker with the highest hash of coordinator and broker that has capacity. So few
  gateways change if a broker joins or leaves, or if the number of gateways of a coordinator changes.

A client in a rack without brokers, or without a rack, uses the gateways of all racks. Brokers without a rack are a
rack of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from odradek.seams.values import value_class

NO_LEADER: Final = -1
_MASK: Final = (1 << 64) - 1


@value_class
class ProduceGateways:
    """Assignment of gateways. All sequences of brokers are sorted by id."""

    by_rack: Mapping[tuple[int, str | None], tuple[int, ...]]
    """Gateways by coordinator and rack."""
    of_all_racks: Mapping[int, tuple[int, ...]]
    """Gateways by coordinator."""

    def of(self, coordinator_id: int, rack: str | None) -> tuple[int, ...]:
        """Gateways for a client in `rack`. Empty only if there is no broker or no such coordinator."""
        found = None if rack is None else self.by_rack.get((coordinator_id, rack))
        return self.of_all_racks.get(coordinator_id, ()) if found is None else found

    def choose(self, coordinator_id: int, rack: str | None, number: int) -> int:
        """The gateway for a partition of the coordinator; `number` spreads partitions over the gateways. -1 if there
        is none."""
        gateways = self.of(coordinator_id, rack)
        return gateways[number % len(gateways)] if gateways else NO_LEADER

    def coordinators_of(self, broker_id: int) -> tuple[int, ...]:
        """Coordinators that a broker is a gateway of."""
        return tuple(each for each, brokers in self.of_all_racks.items() if broker_id in brokers)


def gateways_per_rack(brokers: int, coordinators: int, racks: int) -> int:
    """Number of gateways of each coordinator in each rack."""
    return max(1, brokers // coordinators // racks)


def assign_gateways(racks: Mapping[int, str | None], leaders: Mapping[int, int]) -> ProduceGateways:
    """Assign the gateways.

    `racks` has the rack of each live broker. `leaders` has the broker of each coordinator, which may be NO_LEADER or a
    broker that is not alive.
    """
    by_rack: dict[tuple[int, str | None], tuple[int, ...]] = {}
    brokers_of: dict[str | None, list[int]] = {}
    for broker, rack in sorted(racks.items()):
        brokers_of.setdefault(rack, []).append(broker)
    for rack, brokers in brokers_of.items():
        wanted = gateways_per_rack(len(racks), len(leaders), len(brokers_of)) if leaders else 0
        assigned = _RackAssignment(brokers, leaders)
        for _ in range(min(wanted, len(brokers))):
            assigned.add_gateways()
        for coordinator, gateways in assigned.gateways.items():
            by_rack[coordinator, rack] = tuple(sorted(gateways))
    of_all_racks = {
        coordinator: tuple(
            sorted(broker for rack in brokers_of for broker in by_rack[coordinator, rack])
        )
        for coordinator in (leaders if brokers_of else ())
    }
    return ProduceGateways(by_rack, of_all_racks)


def network_commits(gateways: ProduceGateways, leaders: Mapping[int, int], broker_id: int) -> int:
    """Largest number of requests over the network to commit a WAL file of a broker that serves its own coordinators
    only.

    The commits to coordinators on one broker are one request, and none if it is the same broker (D-24).
    """
    called = {leaders[each] for each in gateways.coordinators_of(broker_id)}
    return len(called - {broker_id})


class _RackAssignment:
    """Gateways in one rack, assigned in rounds: each round gives every coordinator one gateway more."""

    def __init__(self, brokers: Sequence[int], leaders: Mapping[int, int]) -> None:
        self._brokers = brokers
        self._leaders = leaders
        self._load = dict.fromkeys(brokers, 0)
        self._called: dict[int, set[int]] = {each: {each} for each in brokers}
        """Brokers that a broker commits to, and itself."""
        self._assigned = 0
        """Gateways after the current round."""
        self.gateways: dict[int, list[int]] = {each: [] for each in leaders}

    def add_gateways(self) -> None:
        self._assigned += len(self._leaders)
        groups = self._colocated()
        for leader, coordinators in groups:
            if leader in self._load:
                own = [each for each in coordinators if leader not in self.gateways[each]]
                for coordinator in own[: max(0, self._capacities((leader,))[leader])]:
                    self._assign(coordinator, leader)
                    coordinators.remove(coordinator)
        for _, coordinators in groups:
            while coordinators:
                self._place(coordinators)

    def _colocated(self) -> list[tuple[int, list[int]]]:
        """Coordinators by their broker, the largest groups first. One without a leader is a group of its own."""
        groups: dict[tuple[int, int], list[int]] = {}
        for coordinator, leader in sorted(self._leaders.items()):
            alone = coordinator if leader == NO_LEADER else -1
            groups.setdefault((leader, alone), []).append(coordinator)
        return sorted(
            ((leader, members) for (leader, _), members in groups.items()),
            key=lambda group: (-len(group[1]), group[1][0]),
        )

    def _capacities(self, brokers: Sequence[int]) -> dict[int, int]:
        """Coordinators that each broker can take without making the load of the rack uneven."""
        least, larger = divmod(self._assigned, len(self._brokers))
        above = sum(each > least for each in self._load.values())
        extra = above < larger
        return {
            each: least - self._load[each] + (extra and self._load[each] <= least)
            for each in brokers
        }

    def _place(self, coordinators: list[int]) -> None:
        """Assign as many of the co-located coordinators as possible to one broker."""
        first = coordinators[0]
        leader = self._leaders[first]
        candidates = [each for each in self._brokers if each not in self.gateways[first]]
        capacities = self._capacities(candidates)
        best = max(
            candidates,
            key=lambda each: (
                min(capacities[each], len(coordinators)),
                -len(self._called[each] | {leader}),
                _hash(first, each),
            ),
        )
        taken = [each for each in coordinators if best not in self.gateways[each]]
        for coordinator in taken[: max(1, capacities[best])]:
            self._assign(coordinator, best)
            coordinators.remove(coordinator)

    def _assign(self, coordinator: int, broker: int) -> None:
        self.gateways[coordinator].append(broker)
        self._load[broker] += 1
        self._called[broker].add(self._leaders[coordinator])


def _hash(coordinator: int, broker: int) -> int:
    """Mix two ids to 64 bits, as generators of random numbers do with their counters."""
    mixed = (coordinator * 0x9E3779B97F4A7C15 + broker * 0xD1B54A32D192ED03 + 1) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)
