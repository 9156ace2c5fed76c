"""Faults of the store, each with its own count of what it lets pass."""

from __future__ import annotations

from odradek.testing.simulation.plan import Fault, Kind
from odradek.testing.simulation.store_faults import PASSED_MAX, StoreFaults
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_objects import VirtualBucket


def test_of_two_faults_each_strikes_one_change() -> None:
    bucket = VirtualBucket(VirtualClock())
    faults = StoreFaults(bucket, 1)
    killing = Fault(0.0, Kind.STORE_KILLS, 1, 2, 1.0, 0.3)
    lying = Fault(0.0, Kind.STORE_LIES, 1, 2, 1.0, 0.3)
    late = Fault(0.0, Kind.STORE_LIES, 2, 1, 1.0, 0.3)
    faults.begin(killing)
    faults.begin(lying)
    struck = [bucket.fault("put", "key") for _ in range(2 * PASSED_MAX)]
    assert sum(each is not None for each in struck) == 2
    faults.begin(late)
    assert (faults.end(killing), faults.end(lying), faults.end(late)) == (True, True, False)
