"""Network faults between virtual hosts, each active until it is healed; they may overlap."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class NetworkFault:
    """A partition or a delay between pairs of hosts."""

    pairs: frozenset[tuple[str, str]]
    """The affected directions: (sender, receiver)."""
    delay_seconds: tuple[float, float] | None = None
    """The minimum and maximum delay; None: a partition."""
    had_effect: bool = False
    """Whether it delayed any bytes."""


class NetworkFaults:
    """The active faults of a network, with a lookup by sender and receiver."""

    def __init__(self) -> None:
        self._all: list[NetworkFault] = []
        self._partitions: set[tuple[str, str]] = set()

    def add(self, fault: NetworkFault) -> NetworkFault:
        self._all.append(fault)
        self._find_partitions()
        return fault

    def heal(self, fault: NetworkFault | None) -> None:
        """End one fault, or all of them if None."""
        self._all = [each for each in self._all if fault is not None and each is not fault]
        self._find_partitions()

    def is_partitioned(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._partitions

    def is_blocked(self, sender: str, receiver: str) -> bool:
        """Whether a partition blocks this direction; records that the partition had an effect."""
        if (sender, receiver) not in self._partitions:
            return False
        for fault in self._all:
            fault.had_effect |= fault.delay_seconds is None and (sender, receiver) in fault.pairs
        return True

    def delay_seconds(self, one: str, other: str) -> tuple[float, float] | None:
        """The minimum and maximum delay of the slowest fault in this direction."""
        delays = []
        for fault in self._all:
            if fault.delay_seconds is not None and (one, other) in fault.pairs:
                fault.had_effect = True
                delays.append(fault.delay_seconds)
        return max(delays, key=lambda delay: delay[1], default=None)

    def _find_partitions(self) -> None:
        of_all = [each.pairs for each in self._all if each.delay_seconds is None]
        self._partitions = set().union(*of_all)
