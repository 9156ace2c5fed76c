"""What is wrong between the hosts of a virtual network, each trouble until it is healed: they may overlap."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class Trouble:
    """Nothing passes, or all takes its time."""

    pairs: frozenset[tuple[str, str]]
    """From one to the other."""
    delay_seconds: tuple[float, float] | None = None
    """None: nothing passes."""
    has_struck: bool = False
    """Whether it held anything back."""


class Troubles:
    def __init__(self) -> None:
        self._all: list[Trouble] = []
        self._partitions: set[tuple[str, str]] = set()

    def add(self, trouble: Trouble) -> Trouble:
        self._all.append(trouble)
        self._find_partitions()
        return trouble

    def heal(self, trouble: Trouble | None) -> None:
        """End one, or with None all."""
        self._all = [each for each in self._all if trouble is not None and each is not trouble]
        self._find_partitions()

    def parted(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._partitions

    def hold_back(self, sender: str, receiver: str) -> bool:
        """Whether what there is to pass does not."""
        if (sender, receiver) not in self._partitions:
            return False
        for trouble in self._all:
            trouble.has_struck |= (
                trouble.delay_seconds is None and (sender, receiver) in trouble.pairs
            )
        return True

    def delay_seconds(self, one: str, other: str) -> tuple[float, float] | None:
        """How long it takes at least and at most, by the one that delays it longest."""
        delays = []
        for trouble in self._all:
            if trouble.delay_seconds is not None and (one, other) in trouble.pairs:
                trouble.has_struck = True
                delays.append(trouble.delay_seconds)
        return max(delays, key=lambda delay: delay[1], default=None)

    def _find_partitions(self) -> None:
        of_all = [each.pairs for each in self._all if each.delay_seconds is None]
        self._partitions = set().union(*of_all)
