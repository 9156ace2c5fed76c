"""Background work of the coordinators that this broker leads: files without batches, orphans, and retention."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from odradek.broker.diskless.file_workers import FileWorkEnvironment, FileWorkers
from odradek.broker.diskless.orphan_scan import OrphanScan
from odradek.broker.diskless.retention import Retention
from odradek.seams.containment import STARTED_AGAIN, Containment

if TYPE_CHECKING:
    from odradek.broker.diskless.coordinator_requests import CoordinatorRequests
    from odradek.broker.diskless.coordinators import DisklessCoordinators
    from odradek.broker.environment import NodeEnvironment
    from odradek.seams.objects import Objects


class Maintenance:
    """Runs the background work; an unexpected error restarts one part of it."""

    def __init__(
        self,
        environment: NodeEnvironment,
        coordinators: DisklessCoordinators,
        requests: CoordinatorRequests,
        objects: Objects,
    ) -> None:
        seams, config = environment.seams, environment.config

        def config_of(name: str) -> Callable[[], int]:
            return lambda: config.get_int(name)

        def leads(coordinator_id: int) -> bool:
            found = coordinators.find(coordinator_id)
            return found is not None and found.serves

        self.file_workers = FileWorkers(
            FileWorkEnvironment(
                led=coordinators.led,
                requests=requests,
                objects=objects,
                clock=seams.clock,
                offload=seams.offload,
                grace_ms=config_of("diskless.file.deletion.grace.period.ms"),
            )
        )
        self.orphan_scan = OrphanScan(
            leads=leads,
            requests=requests,
            objects=objects,
            clock=seams.clock,
            offload=seams.offload,
            interval_ms=config_of("diskless.coordinator.orphan.scan.interval.ms"),
            grace_ms=config_of("diskless.coordinator.orphan.scan.grace.period.ms"),
        )
        self.retention = Retention(
            led=coordinators.led,
            image=lambda: environment.metadata.image,
            log_config=config.log_config,
            clock=seams.clock,
            interval_ms=config_of("log.retention.check.interval.ms"),
        )
        self._tasks: Containment[str] = Containment(
            "the background work of diskless topics", consequence=STARTED_AGAIN
        )

    async def run(self) -> None:
        """Run everything until cancelled."""
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "hand-over and deletion of files": self.file_workers.run,
            "scan for orphans": self.orphan_scan.run,
            "retention": self.retention.run,
        }
        async with trio.open_nursery() as nursery:
            for name, run in parts.items():
                nursery.start_soon(self._tasks.keep_running, name, run)
