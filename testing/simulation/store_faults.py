"""Faults of a simulated cluster's object store: a share of its requests fails for a while."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from odradek.testing.simulation.plan import Fault, Kind
from odradek.testing.virtual_objects import CHANGES, OPERATIONS, FaultKind, VirtualBucket
from odradek.testing.virtual_objects import Fault as StoreFault

EVERY_FROM = 0.6
"""From this amount on, every request is affected; below it, a proportional share."""
PASSED_MAX = 12
"""The maximum number of changes before the affected one: as many as two copies make."""
SLOW_S = (0.05, 0.5)
TIMED_OUT_S = 2.0

STORE_KINDS: Mapping[Kind, FaultKind] = {
    Kind.STORE_AWAY: FaultKind.FAILS,
    Kind.STORE_THROTTLES: FaultKind.THROTTLED,
    Kind.STORE_HANGS: FaultKind.HANGS,
    Kind.STORE_SLOW: FaultKind.SLOW,
    Kind.STORE_RESPONSES_LOST: FaultKind.RESPONSE_LOST,
    Kind.STORE_HALF_DONE: FaultKind.HALF_DONE,
}
ONCE: Mapping[Kind, tuple[FaultKind, FaultKind]] = {
    Kind.STORE_LIES: (FaultKind.LIES, FaultKind.LIES),
    Kind.STORE_KILLS: (FaultKind.POWER_CUT, FaultKind.POWER_CUT_AFTER),
}
"""These affect one change; the amount selects one of the two."""


@dataclass(eq=False)
class _Begun:
    fault: Fault
    to_pass: int
    """The number of changes before the affected one."""
    struck: int = 0
    """The number of affected requests."""

    def strikes_now(self) -> bool:
        """Whether the fault affects this change; True once."""
        if self.struck:
            return False
        self.to_pass -= 1
        self.struck += self.to_pass < 0
        return self.struck > 0


class StoreFaults:
    """Draws a fault for each request to the bucket."""

    def __init__(self, bucket: VirtualBucket, seed: int) -> None:
        self._chance = random.Random(f"store {seed}")
        self._faults: list[_Begun] = []
        self._bucket = bucket
        bucket.draw = self._draw

    def begin(self, fault: Fault) -> None:
        self._faults.append(_Begun(fault, self._chance.randrange(PASSED_MAX)))

    def end(self, fault: Fault) -> bool:
        """End a fault; return whether it affected any request."""
        begun = [each for each in self._faults if each.fault is fault]
        self._faults = [each for each in self._faults if each.fault is not fault]
        return any(each.struck for each in begun)

    def heal(self) -> None:
        self._faults.clear()
        self._bucket.heal()

    def _draw(self, operation: str, key: str) -> StoreFault | None:
        for begun in self._faults:
            fault = begun.fault
            if fault.kind in ONCE:
                if operation in CHANGES and begun.strikes_now():
                    return StoreFault(ONCE[fault.kind][fault.amount < 0.5])
            elif fault.amount >= EVERY_FROM or self._chance.random() < fault.amount:
                begun.struck += 1
                kind = STORE_KINDS[fault.kind]
                seconds = TIMED_OUT_S
                if kind is FaultKind.SLOW:
                    seconds = self._chance.uniform(*SLOW_S)
                return StoreFault(kind, operations=OPERATIONS, seconds=seconds)
        return None
