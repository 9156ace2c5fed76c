"""What the network between two ends of a cluster does to bytes: late, slowly, or not at all.

A `Direction` is one way between two ends (nodes, or the clients as one), shared by all connections
between them whoever opened them, as a cable is. It knows no sockets: `take` says when bytes that
arrive now are due on the other side, `has_room` whether more may be taken in. What is closed holds
bytes back and loses none, as TCP does while its packets are dropped; connections opened meanwhile wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import trio

QUEUE_S = 0.1
"""How far ahead of a rate bytes are taken in: the length of a router's queue, in time."""

End = int | str
"""A node's id, or `CLIENTS`."""

CLIENTS = "clients"
"""Whoever is no node of the cluster."""


@dataclass(frozen=True)
class Shape:
    """What a direction does to what passes: seconds of delay, and bytes a second (None: any)."""

    delay_s: float = 0.0
    bytes_per_s: float | None = None


UNSHAPED = Shape()


class Direction:
    """One way from one end to another. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self.shape = UNSHAPED
        self.is_open = True
        self._opened = trio.Event()
        self._opened.set()
        self._free_at = 0.0
        """When the last byte that was taken has gone into the cable."""

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
        """`size` bytes arrive now; when they are due at the other side."""
        if self.shape.bytes_per_s is None:
            return now + self.shape.delay_s
        self._free_at = max(now, self._free_at) + size / self.shape.bytes_per_s
        return self._free_at + self.shape.delay_s

    def busy_until(self, now: float) -> float:
        """When more may be taken; not after `now` if at once."""
        return now if self.shape.bytes_per_s is None else self._free_at - QUEUE_S

    def piece_bytes(self, most: int) -> int:
        """How many bytes to take at a time, so that a slow cable is shared fairly."""
        if self.shape.bytes_per_s is None:
            return most
        return max(1, min(most, int(self.shape.bytes_per_s * QUEUE_S / 2)))


class Links:
    """The directions between all ends: nodes, and the clients."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self.nodes = tuple(nodes)
        ends: tuple[End, ...] = (*self.nodes, CLIENTS)
        self._directions: Mapping[tuple[End, End], Direction] = {
            (source, to): Direction() for source in ends for to in ends
        }

    def direction(self, source: End, to: End) -> Direction:
        return self._directions[source, to]

    def partition(
        self, nodes: Iterable[int], others: Iterable[End] | None = None, *, one_way: bool = False
    ) -> None:
        """Let nothing pass between `nodes` and `others` (by default all other nodes, not the clients).

        `one_way` stops only what `nodes` send.
        """
        cut = tuple(nodes)
        rest: Iterable[End] = self.nodes if others is None else others
        for node in cut:
            for other in rest:
                if other in cut:
                    continue
                self._directions[node, other].close()
                if not one_way:
                    self._directions[other, node].close()

    def shape(self, shape: Shape, ends: Iterable[End] | None = None) -> None:
        """What happens to all that passes between two of `ends` (by default the nodes)."""
        among = self.nodes if ends is None else tuple(ends)
        for source in among:
            for to in among:
                if source != to:
                    self._directions[source, to].shape = shape

    def heal(self) -> None:
        """All pass everything at once again; what was held back goes out first."""
        for direction in self._directions.values():
            direction.shape = UNSHAPED
            direction.open()
