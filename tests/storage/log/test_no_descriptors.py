"""No descriptor is to be had at any operation of an append: back-pressure, and never a record lost.

What is refused is not there, what is acknowledged is read back, and no offset is given twice.
"""

from __future__ import annotations

import errno

import pytest

from odradek.storage.errors import LogFailed, NoDescriptors
from odradek.storage.log.config import LogConfig
from tests.storage.log.log_world import World, batch, idempotent, marker, records_in

SMALL = LogConfig(internal_segment_bytes=400, index_interval_bytes=100)


def values(world: World) -> list[bytes]:
    return [record.value or b"" for record in records_in(world.log)]


def test_what_is_acknowledged_is_there_and_what_is_refused_is_not() -> None:
    passes, failed, refused = 0, 1, 0
    while failed:
        world = World(config=SMALL)
        fault = world.disk.fail("*", errno.EMFILE, passes=passes, times=1)
        written: list[bytes] = []
        for number in range(20):
            try:
                world.append(batch(size=40 + number, keys=False))
            except NoDescriptors:
                refused += 1
            else:
                written.append(bytes(40 + number))
        world.disk.heal()
        assert values(world) == written, f"operation {passes}"
        world.kill()
        assert values(world) == written, f"operation {passes}, after a kill"
        failed, passes = fault.failed, passes + 1
    assert passes > 50
    assert refused


@pytest.mark.parametrize("restart", ["kill", "reopen"])
def test_an_aborted_transaction_that_cannot_be_noted_ends_the_log(restart: str) -> None:
    """The marker is written, and its entry is no hint: nothing is appended behind it in this life."""
    world = World(config=SMALL)
    world.append(idempotent(9, 0, transactional=True))
    world.disk.fail("*.txnindex", errno.EMFILE)
    with pytest.raises(LogFailed):
        world.coordinate(marker(9, commit=False))
    with pytest.raises(LogFailed):
        world.append()
    world.disk.heal()
    world.kill() if restart == "kill" else world.reopen(clean=False)
    world.append()
    world.log.advance_high_watermark(world.log.end_offset)
    (aborted,) = world.log.aborted_transactions(0, world.log.end_offset)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (9, 0, 1)
