"""Controller failover: taking over the role of the active controller, and the records this writes.

The leader of the quorum becomes the active controller once its image contains all records committed
before its epoch (`ControllerClaim.can_claim`) and it has appended the activation records.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from odradek.replication.controller.broker_registration import register_controller
from odradek.replication.controller.features import (
    CONTROLLER_REGISTRATION,
    METADATA_VERSION,
    metadata_version,
)
from odradek.replication.controller.image import ControllerImage
from odradek.replication.raft.bootstrap import activation_records
from odradek.replication.raft.controller_claim import ControllerClaim
from odradek.replication.raft.errors import NotController
from odradek.replication.raft.metadata_batch_loader import MetadataTransaction
from odradek.replication.raft.metadata_committer import MetadataCommitter
from odradek.replication.raft.metadata_log import MetadataLog
from odradek.replication.raft.metadata_state import MetadataState
from odradek.replication.raft.raft_client_driver import RaftClientDriver
from odradek.seams.clock import Clock
from odradek.storage.errors import DiskFull, LogFailed, NoDescriptors

log = logging.getLogger("odradek.metadata")


class ControllerFailover:
    """Makes the leader of the quorum the active controller.

    `read_bootstrap` reads the records of `bootstrap.checkpoint`. A new cluster stores
    `min_insync_replicas` as its cluster-level config (KIP-966).
    """

    def __init__(
        self,
        driver: RaftClientDriver,
        metadata_log: MetadataLog,
        committer: MetadataCommitter,
        *,
        registration: ControllerImage,
        read_bootstrap: Callable[[], Awaitable[Sequence[Any]]],
        min_insync_replicas: int,
    ) -> None:
        self._driver = driver
        self._log = metadata_log
        self._committer = committer
        self._state: MetadataState = committer.state
        self._claim: ControllerClaim = committer.claim
        self._registration = registration
        self._read_bootstrap = read_bootstrap
        self._min_insync_replicas = min_insync_replicas

    async def take_over(self) -> None:
        """Claim the role and append the activation records; nothing happens if the epoch is lost.

        Raises InvalidMetadata, and what the append raises.
        """
        driver, state = self._driver, self._state
        epoch = driver.raft_client.epoch
        bootstrap: Sequence[Any] = ()
        if METADATA_VERSION not in state.image.features:  # a log starts with these records
            bootstrap = await self._read_bootstrap()
        if not driver.leads or driver.raft_client.epoch != epoch:
            return
        state.take_over(self._log.end_offset, epoch, self._log.appended_ms)
        self._claim.claim(epoch)
        in_transaction = state.transactions.open
        records = activation_records(
            state.newest,
            bootstrap,
            in_transaction=in_transaction,
            min_insync_replicas=self._min_insync_replicas,
        )
        if records:
            self._committer.append(records, MetadataTransaction(is_open=in_transaction))
        if metadata_version(state.newest.features) >= CONTROLLER_REGISTRATION:
            mine = self._registration
            if state.newest.controllers.get(mine.id) != mine:
                self._committer.append(register_controller(state.newest, mine).records)
        state.committed(driver.high_watermark)
        driver.wake_waiters()
        self._claim.notify()


async def write_no_op_records(
    committer: MetadataCommitter,
    clock: Clock,
    max_idle_ms: int,
) -> None:
    """Write a NoOpRecord when the metadata log has been idle for `max_idle_ms`
    (`metadata.max.idle.interval.ms`); 0 disables it."""
    from odradek.protocol.schemas.cluster_records import NoOpRecord

    state, claim = committer.state, committer.claim
    driver = claim.driver
    while max_idle_ms > 0 and driver is not None:
        if not claim.is_active:
            await claim.wait_for_change()
            continue
        if not claim.is_followed:
            await driver.wait_for_event()
            continue
        offset = state.newest.offset
        await clock.sleep(max_idle_ms / 1000)
        if claim.is_active and state.newest.offset == offset:
            try:
                await committer.commit([NoOpRecord()])
            except (NotController, DiskFull, NoDescriptors, LogFailed) as error:
                log.debug("no NoOpRecord: %s", error)
