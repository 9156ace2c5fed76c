"""Faults of a simulated cluster's object store: a share of its requests fails for a while."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from odradek.testing.simulation.plan import AFFECTS_ALL_REQUESTS, Fault, FaultKind
from odradek.testing.virtual_object_store import (
    CHANGES,
    OPERATIONS,
    StoreFault,
    StoreFaultKind,
    VirtualBucket,
)

SKIPPED_CHANGES_MAX = 12
"""The maximum number of changes before the affected one: as many as two copies make."""
SLOW_S = (0.05, 0.5)
TIMED_OUT_S = 2.0

STORE_KINDS: Mapping[FaultKind, StoreFaultKind] = {
    FaultKind.STORE_UNAVAILABLE: StoreFaultKind.FAILS,
    FaultKind.STORE_THROTTLES: StoreFaultKind.THROTTLED,
    FaultKind.STORE_HANGS: StoreFaultKind.HANGS,
    FaultKind.STORE_SLOW: StoreFaultKind.SLOW,
    FaultKind.STORE_RESPONSE_LOST: StoreFaultKind.RESPONSE_LOST,
    FaultKind.STORE_PARTIAL: StoreFaultKind.HALF_DONE,
}
ONCE: Mapping[FaultKind, tuple[StoreFaultKind, StoreFaultKind]] = {
    FaultKind.STORE_FALSE_SUCCESS: (StoreFaultKind.FALSE_SUCCESS, StoreFaultKind.FALSE_SUCCESS),
    FaultKind.STORE_REQUEST_CRASH: (StoreFaultKind.POWER_CUT, StoreFaultKind.POWER_CUT_AFTER),
}
"""These affect one change; the amount selects one of the two."""


@dataclass(eq=False)
class _ActiveFault:
    fault: Fault
    to_pass: int
    """The number of changes before the affected one."""
    affected_requests: int = 0
    """The number of affected requests."""

    def affects_now(self) -> bool:
        """Whether the fault affects this change; True once."""
        if self.affected_requests:
            return False
        self.to_pass -= 1
        self.affected_requests += self.to_pass < 0
        return self.affected_requests > 0


class StoreFaults:
    """Draws a fault for each request to the bucket."""

    def __init__(self, bucket: VirtualBucket, seed: int) -> None:
        self._chance = random.Random(f"store {seed}")
        self._faults: list[_ActiveFault] = []
        self._bucket = bucket
        bucket.draw = self._draw

    def begin(self, fault: Fault) -> None:
        self._faults.append(_ActiveFault(fault, self._chance.randrange(SKIPPED_CHANGES_MAX)))

    def end(self, fault: Fault) -> bool:
        """End a fault; return whether it affected any request."""
        begun = [each for each in self._faults if each.fault is fault]
        self._faults = [each for each in self._faults if each.fault is not fault]
        return any(each.affected_requests for each in begun)

    def heal(self) -> None:
        self._faults.clear()
        self._bucket.heal()

    def _draw(self, operation: str, key: str) -> StoreFault | None:
        for begun in self._faults:
            fault = begun.fault
            if fault.kind in ONCE:
                if operation in CHANGES and begun.affects_now():
                    return StoreFault(ONCE[fault.kind][fault.amount < 0.5])
            elif fault.amount >= AFFECTS_ALL_REQUESTS or self._chance.random() < fault.amount:
                begun.affected_requests += 1
                kind = STORE_KINDS[fault.kind]
                seconds = TIMED_OUT_S
                if kind is StoreFaultKind.SLOW:
                    seconds = self._chance.uniform(*SLOW_S)
                return StoreFault(kind, operations=OPERATIONS, seconds=seconds)
        return None
