"""The simulated network between the ends of a cluster: latency, rate limits and partitions.

A `LinkDirection` is one way between two ends (a node, or all clients together). All connections between
the two ends share it, whichever end opened them, as they would share a cable. It uses no sockets:
`take` returns when bytes that arrive now are due at the other end, and `busy_until` when more bytes
may be read. A closed direction delays bytes and loses none, as TCP does while packets are dropped;
new connections wait until it opens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import trio

QUEUE_S = 0.1
"""How far ahead of a limited rate bytes are read, in seconds: the queue length of a router."""

LinkEnd = int | str
"""The id of a node, or `CLIENTS`."""

CLIENTS = "clients"
"""All connections from outside the cluster."""


@dataclass(frozen=True)
class LinkShape:
    """Latency in seconds, and rate in bytes per second (None: unlimited), of a direction."""

    delay_s: float = 0.0
    bytes_per_s: float | None = None


UNSHAPED = LinkShape()


class LinkDirection:
    """The traffic from one end to another. Times are seconds of any single clock."""

    def __init__(self) -> None:
        self.shape = UNSHAPED
        self.is_open = True
        self._opened = trio.Event()
        self._opened.set()
        self._free_at = 0.0
        """When the last byte that was read has been sent."""

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._opened = trio.Event()

    def open(self) -> None:
        self.is_open = True
        self._opened.set()

    async def wait_open(self) -> None:
        while not self.is_open:
            await self._opened.wait()

    def take(self, size: int, now: float) -> float:
        """Account for `size` bytes that arrive at `now`; return when they are due at the other end."""
        if self.shape.bytes_per_s is None:
            return now + self.shape.delay_s
        self._free_at = max(now, self._free_at) + size / self.shape.bytes_per_s
        return self._free_at + self.shape.delay_s

    def busy_until(self, now: float) -> float:
        """When more bytes may be read; at most `now` if that is immediately."""
        return now if self.shape.bytes_per_s is None else self._free_at - QUEUE_S

    def read_bytes_max(self, most: int) -> int:
        """The maximum number of bytes of one read; small at a low rate, so that connections share
        it."""
        if self.shape.bytes_per_s is None:
            return most
        return max(1, min(most, int(self.shape.bytes_per_s * QUEUE_S / 2)))


class Links:
    """The directions between all ends: the nodes, and the clients."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self.nodes = tuple(nodes)
        ends: tuple[LinkEnd, ...] = (*self.nodes, CLIENTS)
        self._directions: Mapping[tuple[LinkEnd, LinkEnd], LinkDirection] = {
            (source, to): LinkDirection() for source in ends for to in ends
        }

    def direction(self, source: LinkEnd, to: LinkEnd) -> LinkDirection:
        return self._directions[source, to]

    def partition(
        self,
        nodes: Iterable[int],
        others: Iterable[LinkEnd] | None = None,
        *,
        one_way: bool = False,
    ) -> None:
        """Block traffic between `nodes` and `others` (default: all other nodes, not the clients).

        With `one_way`, only traffic from `nodes` is blocked.
        """
        cut = tuple(nodes)
        rest: Iterable[LinkEnd] = self.nodes if others is None else others
        for node in cut:
            for other in rest:
                if other in cut:
                    continue
                self._directions[node, other].close()
                if not one_way:
                    self._directions[other, node].close()

    def shape(self, shape: LinkShape, ends: Iterable[LinkEnd] | None = None) -> None:
        """Set latency and rate of each direction between two of `ends` (default: the nodes)."""
        among = self.nodes if ends is None else tuple(ends)
        for source in among:
            for to in among:
                if source != to:
                    self._directions[source, to].shape = shape

    def heal(self) -> None:
        """Open all directions, without latency or rate limit; delayed bytes are sent first."""
        for direction in self._directions.values():
            direction.shape = UNSHAPED
            direction.open()
