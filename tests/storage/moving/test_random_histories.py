"""Any history of appends, truncations, retention, moves, cancellations, restarts and crashes.

The model is a list of values and where the log starts. Whatever happens, the replica is served from one
directory and contains the records of the model (after a power cut: a beginning of it, with all that was synced),
and once all moves are over nothing of them is left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from odradek.protocol.topics import TopicPartition
from odradek.seams.files import Path
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.log_manager import LogManager
from odradek.storage.moving.mover import MoverSettings
from odradek.testing.virtual_files import VirtualFiles
from tests.support.log_managers import ONE, SMALL, A, B, LogManagerWorld, append, contents
from tests.support.replica_moves import QUIET, M

NAME = TopicPartition("t", 0)
C = Path("/c")

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 12)),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(0, 100)),
        st.tuples(st.just("delete records"), st.integers(0, 100)),
        st.tuples(st.just("move"), st.sampled_from([A, B, C])),
        st.tuples(st.just("cancel"), st.just(0)),
        st.tuples(st.just("continue"), st.integers(1, 40)),
        st.tuples(st.just("finish"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("kill"), st.just(0)),
        st.tuples(st.just("power cut"), st.integers(0, 1000)),
    ),
    min_size=4,
    max_size=14,
)


@dataclass
class Model:
    values: list[str] = field(default_factory=list)
    start: int = 0
    synced: int = 0
    cached: int = 0
    """Records in the page cache, which survive a killed process."""
    durable_start: int = 0
    serial: int = 0


@dataclass
class History:
    """Consecutive runs of one node."""

    world: LogManagerWorld
    model: Model = field(default_factory=Model)

    @asynccontextmanager
    async def run_until_crash(self) -> AsyncIterator[tuple[LogManager, PartitionLog]]:
        """Run the node until it is killed; call `close` first for a clean shutdown."""
        manager = self.world.manager()
        await manager.load()
        await manager.promote_moved()
        log = manager.get(*NAME) or await manager.create(*NAME, ONE)
        self.check(log)
        log.advance_high_watermark(log.end_offset)
        async with trio.open_nursery() as nursery:
            await nursery.start(manager.run)
            yield manager, log
            nursery.cancel_scope.cancel()

    def check(self, log: PartitionLog) -> None:
        model = self.model
        found = contents(log)
        start, end = log.log_start_offset, log.end_offset
        assert model.durable_start <= start <= max(model.start, model.durable_start)
        assert end >= max(model.synced, model.cached)
        model.cached = 0
        assert found == model.values[start:end]
        del model.values[end:]
        model.start = start

    async def step(self, manager: LogManager, log: PartitionLog, what: str, value: object) -> None:
        model = self.model
        match what, value:
            case "append", int(count):
                for _ in range(count):
                    model.serial += 1
                    model.values.append(f"{model.serial} " + "y" * (model.serial % 90))
                    append(log, model.values[-1])
            case "flush", _:
                await manager.flush(log, log.end_offset)
                model.synced = len(model.values)
            case "truncate", int(percent):
                offset = model.start + (len(model.values) - model.start) * percent // 100
                async with manager.registry.holding_file_lock(log):
                    log.truncate_to(offset)
                del model.values[offset:]
                model.synced = min(model.synced, offset)
            case "delete records", int(percent):
                offset = model.start + (len(model.values) - model.start) * percent // 100
                async with manager.registry.holding_file_lock(log):
                    log.advance_log_start(offset, "asked to")
                    log.delete_expired(self.world.clock.wall_ms())
                model.start = offset
            case "move", Path() as destination:
                self.world.mover = MoverSettings(bytes_per_second=1 << 40)
                await manager.mover.move(NAME, destination)
            case "cancel", _:
                await manager.mover.cancel(NAME)
            case "continue", int(turns):
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
            case "finish", _:
                while manager.mover.moves():
                    await trio.lowlevel.checkpoint()
        assert contents(log) == model.values[model.start :]

    async def run(self, steps: list[tuple[str, object]]) -> None:
        rest = iter([*steps, ("kill", 0), ("finish", 0), ("restart", 0)])
        what = "begin"
        while what:
            what, value = "", 0
            async with self.run_until_crash() as (manager, log):
                for what, value in rest:
                    if what in ("restart", "kill", "power cut"):
                        break
                    await self.step(manager, log, what, value)
                else:
                    what = ""
            await self.end(manager, what, value)

    async def end(self, manager: LogManager, what: str, value: object) -> None:
        model = self.model
        if what in ("restart", ""):
            await manager.close()
            manager.directories.close()
            model.synced = len(model.values)
            model.durable_start = model.start
            return
        self.world.files.power.cut()
        if what == "power cut":
            assert isinstance(value, int)
            self.world.disk = self.world.disk.crash(value)
        else:
            model.cached = len(model.values)
        self.world.files = VirtualFiles(self.world.disk)


# What was deleted may be back, torn, where a loss of power undoes the deletion: a flush of a log that has nothing
# left makes that durable, too, or else it would end before offsets that were flushed.
@example(steps=[("append", 6), ("delete records", 100), ("flush", 0), ("power cut", 0)])
@given(steps=STEPS)
@settings(max_examples=50, deadline=None)
def test_any_history_matches_model(steps: list[tuple[str, object]]) -> None:
    world = LogManagerWorld(
        paths=(M, A, B, C),
        intervals=QUIET,
        configs={"t": replace(SMALL, file_delete_delay_ms=0)},
    )
    history = History(world)
    trio.run(history.run, steps)
    left = [name for path in (A, B, C, M) for name in world.names(path) if name.startswith("t-")]
    assert left.count("t-0") == 1
    assert all(name == "t-0" or name.endswith("delete") for name in left), left
