"""Store faults count the requests that they let pass separately."""

from __future__ import annotations

from odradek.testing.simulation.plan import Fault, FaultKind
from odradek.testing.simulation.store_faults import SKIPPED_CHANGES_MAX, StoreFaults
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_object_store import VirtualBucket


def test_two_store_faults_affect_one_change_each() -> None:
    bucket = VirtualBucket(VirtualClock())
    faults = StoreFaults(bucket, 1)
    crash = Fault(0.0, FaultKind.STORE_REQUEST_CRASH, 1, 2, 1.0, 0.3)
    false_success = Fault(0.0, FaultKind.STORE_FALSE_SUCCESS, 1, 2, 1.0, 0.3)
    late = Fault(0.0, FaultKind.STORE_FALSE_SUCCESS, 2, 1, 1.0, 0.3)
    faults.begin(crash)
    faults.begin(false_success)
    drawn = [bucket.fault("put", "key") for _ in range(2 * SKIPPED_CHANGES_MAX)]
    assert sum(each is not None for each in drawn) == 2
    faults.begin(late)
    assert (faults.end(crash), faults.end(false_success), faults.end(late)) == (True, True, False)
