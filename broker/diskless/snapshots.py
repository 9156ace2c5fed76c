"""Snapshots of the states of coordinators: written, served to other replicas and fetched from them (KIP-1164, D-20).

Every replica writes a snapshot of its state after a number of records or bytes (`diskless.metadata.snapshot.interval.*`),
while it applies further records. When every in-sync replica has a durable one, the leader raises the log start offset of
the partition to the first offset after the oldest of them (KIP-630); followers receive that in their Fetch responses, and retention deletes the segments.

A replica whose state ends below its log start offset fetches the newest snapshot in parts, from the leader or from
another replica, and installs it. This happens to a new replica, and if the state and the local snapshots were lost. A
download that was interrupted is continued, and a snapshot is checked before it replaces the state.

Only the newest snapshot is kept, and those that another replica has fetched from in the last minute.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.diskless_apis import (
    DisklessFetchSnapshotRequest,
    DisklessFetchSnapshotResponse,
)
from odradek.seams.files import Files, Path
from odradek.seams.values import value_class
from odradek.storage.diskless.snapshot_files import (
    PART,
    TEMPORARY,
    Snapshot,
    SnapshotFiles,
    copy_file,
)
from odradek.storage.diskless.state import SnapshotCancelled, StateDamaged

if TYPE_CHECKING:
    from odradek.seams.clock import Clock
    from odradek.seams.offload import Offload

log = logging.getLogger("odradek.diskless")

PART_BYTES: Final = 1 << 20
"""Bytes of a snapshot in one response."""
SERVED_SECONDS: Final = 60.0
"""Time for which an older snapshot is kept after a part of it was read."""
RETRY_SECONDS: Final = 1.0
PRUNE_SECONDS: Final = 10.0
"""Time until a leader asks the other replicas again for their snapshots, after which it deletes records of the log."""

FetchPart = Callable[[int, DisklessFetchSnapshotRequest], Awaitable[DisklessFetchSnapshotResponse]]
"""Sends a request to a broker. Raises KafkaError."""


class StateSnapshot(Protocol):
    """The state at one time, while records are applied. Its methods may block."""

    @property
    def offset(self) -> int:
        """Offset of the last record that it includes."""
        ...

    def write(self, path: Path) -> None:
        """Write it to a new file. Raises StateDamaged, OSError, or SnapshotCancelled after `cancel`."""
        ...

    def cancel(self) -> None:
        """Let `write` end soon; another thread may call it."""
        ...

    def close(self) -> None: ...


class SnapshotLog(Protocol):
    """The part of the log of a replica that is used."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    def delete_before(self, offset: int) -> None:
        """Raise the log start offset of a leader. Raises KafkaError."""
        ...


class SnapshotReplica(Protocol):
    """The part of a coordinator's replica that is used."""

    coordinator_id: int
    name: str
    directory: str
    snapshot_offset: int

    @property
    def log(self) -> SnapshotLog: ...

    @property
    def applied_offset(self) -> int: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def serves(self) -> bool: ...

    async def begin_snapshot(self) -> StateSnapshot:
        """Begin a snapshot of the open state. Raises StateDamaged or OSError."""
        ...

    def install(self, snapshot: Path) -> None:
        """Replace the closed state by a snapshot. May block; raises StateDamaged if it cannot be used, OSError."""
        ...

    async def remove_state(self, directory: str | None = None) -> None:
        """Remove the closed state, or one in another log directory. Raises OSError."""
        ...


class SnapshotSettings(Protocol):
    """Current values of the configs."""

    @property
    def snapshot_interval_records(self) -> int: ...

    @property
    def snapshot_interval_bytes(self) -> int: ...


@value_class
class SnapshotEnvironment:
    """The broker's parts that snapshots use."""

    broker_id: int
    files: Files
    clock: Clock
    offload: Offload
    settings: SnapshotSettings
    fetch_part: FetchPart
    directories: Callable[[], Sequence[str]]
    """Log directories of this broker that can be used."""
    replicas: Callable[[int], Sequence[int]]
    """Brokers with a replica of a partition of `__diskless_metadata`, the leader first."""
    in_sync_replicas: Callable[[int], Sequence[int]]
    """Brokers in the ISR of a partition of `__diskless_metadata`."""


class CoordinatorSnapshots:
    """Snapshots of one replica. `open` comes first, and again after the log was moved to another log directory."""

    def __init__(self, coordinator: SnapshotReplica, environment: SnapshotEnvironment) -> None:
        self._coordinator = coordinator
        self._environment = environment
        self._applied = trio.Event()
        self._newest: Snapshot | None = None
        self._log_bytes = 0
        """Size of the log at the newest snapshot."""
        self._read_at: dict[int, float] = {}
        """Offsets of snapshots that were read, with the monotonic time."""
        self._is_missing = False
        """Whether another replica asked for a snapshot when there was none."""

    @property
    def _files(self) -> SnapshotFiles:
        return self._files_in(self._coordinator.directory)

    def _files_in(self, directory: str) -> SnapshotFiles:
        files = self._environment.files
        return SnapshotFiles(files, Path(directory), self._coordinator.coordinator_id)

    async def open(self) -> None:
        """Find the newest snapshot in the log directory. Raises OSError.

        If the log of a leader has lost records, the snapshots that include them are removed: new records will get
        their offsets.
        """
        files = self._files
        if self._coordinator.is_leader:
            removed = await self._run(files.remove_from, self._coordinator.log.end_offset)
            if removed:
                log.warning(
                    "Removed the snapshots of %s at the offsets %s: the log of the leader ends at offset %d",
                    self._coordinator.name,
                    removed,
                    self._coordinator.log.end_offset,
                )
        newest = await self._run(files.newest)
        for directory in self._environment.directories():
            if directory != self._coordinator.directory:
                try:
                    newest = await self._move_from(directory, newest)
                except OSError as error:
                    log.warning(
                        "The snapshot of %s in %s was not moved: %s",
                        self._coordinator.name,
                        directory,
                        error,
                    )
        self._set_newest(newest)

    async def _move_from(self, directory: str, newest: Snapshot | None) -> Snapshot | None:
        """Move the snapshot in another log directory to this one if it is the newest; remove what is left of the replica
        there. The log was moved between the directories."""
        files, others = self._files, self._files_in(directory)
        found = await self._run(others.newest)
        if found is not None and (newest is None or found.offset > newest.offset):
            source, target = others.path(found.offset), files.path(found.offset, TEMPORARY)
            await self._run(copy_file, self._environment.files, source, target)
            newest = await self._run(files.publish, found.offset, TEMPORARY)
        await self._run(others.remove_all)
        await self._coordinator.remove_state(directory)
        return newest

    async def remove(self) -> None:
        """Remove the snapshots of a replica that is not on this broker any more. Raises OSError."""
        await self._run(self._files.remove_all)

    def _set_newest(self, snapshot: Snapshot | None) -> None:
        self._newest = snapshot
        self._coordinator.snapshot_offset = -1 if snapshot is None else snapshot.offset
        self._log_bytes = self._coordinator.log.size_bytes

    async def _run(self, fn: Callable[..., Any], *values: Any) -> Any:
        return await self._environment.offload.run(fn, *values, lane=self._coordinator.directory)

    # Writing

    def applied(self) -> None:
        """Check whether the applied records are enough for a snapshot."""
        self._applied.set()

    async def run(self) -> None:
        """Write snapshots while the state is open, until cancelled. Raises StateDamaged."""
        while True:
            self._applied = trio.Event()
            if self._is_due():
                try:
                    await self._write()
                except OSError as error:
                    log.error(
                        "The snapshot of %s was not written: %s", self._coordinator.name, error
                    )
                    await self._environment.clock.sleep(RETRY_SECONDS)
                    self._applied.set()
            await self._applied.wait()

    def _is_due(self) -> bool:
        coordinator, settings = self._coordinator, self._environment.settings
        records = coordinator.applied_offset - coordinator.snapshot_offset
        if records <= 0:
            return False
        # Deleted segments of the log make it smaller.
        self._log_bytes = min(self._log_bytes, coordinator.log.size_bytes)
        return (
            self._is_missing
            or records >= settings.snapshot_interval_records
            or coordinator.log.size_bytes - self._log_bytes >= settings.snapshot_interval_bytes
        )

    async def _write(self) -> None:
        coordinator, clock = self._coordinator, self._environment.clock
        started = clock.monotonic()
        files = self._files
        snapshot = await coordinator.begin_snapshot()
        try:
            path = await self._run(files.temporary, snapshot.offset)
            await self._write_to(path, snapshot)
        finally:
            with trio.CancelScope(shield=True):
                await self._run(snapshot.close)
        await self._publish(files, snapshot.offset, TEMPORARY)
        self._is_missing = False
        log.info(
            "Wrote the snapshot of %s at offset %d: %d bytes in %.1f s",
            coordinator.name,
            snapshot.offset,
            self._newest.size_bytes if self._newest else 0,
            clock.monotonic() - started,
        )
        await self._prune_log()

    async def _write_to(self, path: Path, snapshot: StateSnapshot) -> None:
        """Write the snapshot; a cancellation does not wait for its end."""
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_cancelled, snapshot.cancel)
            try:
                await self._run(snapshot.write, path)
            except (OSError, StateDamaged, SnapshotCancelled) as error:
                failure = error
            nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint_if_cancelled()
        if failure is not None:
            raise failure

    async def _publish(self, files: SnapshotFiles, offset: int, suffix: str) -> None:
        """Make a complete file the newest snapshot, and remove the older ones that no replica fetches."""
        self._set_newest(await self._run(files.publish, offset, suffix))
        limit = self._environment.clock.monotonic() - SERVED_SECONDS
        self._read_at = {each: at for each, at in self._read_at.items() if at > limit}
        await self._run(files.remove_others, {offset, *self._read_at})

    async def prune_repeatedly(self) -> None:
        """Delete the records that other replicas had no snapshot of before, until cancelled."""
        while True:
            await self._environment.clock.sleep(PRUNE_SECONDS)
            newest = self._newest
            if newest is not None and newest.offset >= self._coordinator.log.start_offset:
                await self._prune_log()

    async def _prune_log(self) -> None:
        """Raise the log start offset of a leader to the first offset that is not in a snapshot of every in-sync replica.

        Any of them may be the next leader, or the only replica after a reassignment. If one has no snapshot yet, or does not
        respond, nothing is deleted until later; the request makes it write one.
        """
        coordinator = self._coordinator
        if self._newest is None or not coordinator.serves:
            return
        in_sync = self._environment.in_sync_replicas(coordinator.coordinator_id)
        offset = self._newest.offset
        try:
            for broker_id in in_sync:
                if broker_id != self._environment.broker_id:
                    part = await self._fetch_part(broker_id, None, 0, max_bytes=1)
                    offset = min(offset, part.snapshot_offset)
        except KafkaError as error:
            log.debug("Records of %s below the snapshot are kept: %s", coordinator.name, error)
            return
        is_current = in_sync == self._environment.in_sync_replicas(coordinator.coordinator_id)
        if is_current and coordinator.serves and offset >= coordinator.log.start_offset:
            try:
                coordinator.log.delete_before(offset + 1)
            except KafkaError as error:
                log.warning(
                    "Records of %s below the snapshot were not deleted: %s",
                    coordinator.name,
                    error,
                )

    # Serving

    async def read(self, request: DisklessFetchSnapshotRequest) -> DisklessFetchSnapshotResponse:
        """A part of the newest snapshot, or of the requested one. Raises KafkaError."""
        newest, files = self._newest, self._files
        offset = request.snapshot_offset
        if offset < 0:
            if newest is None or newest.offset + 1 < self._coordinator.log.start_offset:
                # The log does not continue an older snapshot
                self._write_soon()
                raise KafkaError(
                    ErrorCode.snapshot_not_found, f"{self._coordinator.name} has no snapshot yet"
                )
            offset = newest.offset
        max_bytes = max(1, min(request.max_bytes, PART_BYTES))
        try:
            size, data = await self._run(_size_and_part, files, offset, request.position, max_bytes)
        except FileNotFoundError:
            if newest is self._newest and newest is not None and newest.offset == offset:
                self._set_newest(None)  # it was damaged and removed when the state was opened
                self._write_soon()
            raise KafkaError(
                ErrorCode.snapshot_not_found,
                f"{self._coordinator.name} has no snapshot at offset {offset}",
            ) from None
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
        self._read_at[offset] = self._environment.clock.monotonic()
        return DisklessFetchSnapshotResponse(
            snapshot_offset=offset, size=size, position=request.position, data=data
        )

    def _write_soon(self) -> None:
        """Write a snapshot that another replica asked for, without waiting for the interval."""
        self._is_missing = True
        self.applied()

    # Fetching

    async def fetch(self) -> None:
        """Install a snapshot of another replica that reaches the log start offset; repeat until one is installed.

        The state is closed. Raises OSError.
        """
        coordinator = self._coordinator
        reported = ""
        while True:
            sources = [
                broker_id
                for broker_id in self._environment.replicas(coordinator.coordinator_id)
                if broker_id != self._environment.broker_id
            ]
            reason = "no other broker has a replica"
            for broker_id in sources:
                try:
                    await self._fetch_from(broker_id)
                except (KafkaError, StateDamaged) as error:
                    reason = f"broker {broker_id}: {error}"
                else:
                    return
            if reason != reported:
                reported = reason
                log.warning(
                    "%s needs a snapshot, because its log starts at offset %d; it is fetched again: %s",
                    coordinator.name,
                    coordinator.log.start_offset,
                    reason,
                )
            await self._environment.clock.sleep(RETRY_SECONDS)

    async def _fetch_from(self, broker_id: int) -> None:
        """Download, check and install the snapshot of a broker. Raises KafkaError, StateDamaged or OSError."""
        coordinator, files = self._coordinator, self._files
        snapshot = await self._download(files, broker_id)
        try:
            await self._run(coordinator.install, files.path(snapshot.offset, PART))
        except StateDamaged:
            await self._run(files.remove_download, snapshot.offset)
            raise
        await self._publish(files, snapshot.offset, PART)
        log.info(
            "Installed the snapshot of %s at offset %d from broker %d: %d bytes",
            coordinator.name,
            snapshot.offset,
            broker_id,
            snapshot.size_bytes,
        )

    async def _download(self, files: SnapshotFiles, broker_id: int) -> Snapshot:
        part = await self._fetch_part(broker_id, None, 0)
        snapshot = Snapshot(part.snapshot_offset, part.size)
        needed = self._coordinator.log.start_offset - 1
        if snapshot.offset < needed or snapshot.size_bytes <= 0:
            raise KafkaError(
                ErrorCode.snapshot_not_found,
                f"its snapshot is at offset {snapshot.offset}, and offset {needed} is needed",
            )
        position = await self._run(files.start_download, snapshot)
        while position < snapshot.size_bytes:
            if position != part.position:
                part = await self._fetch_part(broker_id, snapshot, position)
            await self._run(files.write_part, snapshot.offset, position, part.data)
            position += len(part.data)
        return snapshot

    async def _fetch_part(
        self,
        broker_id: int,
        snapshot: Snapshot | None,
        position: int,
        *,
        max_bytes: int | None = None,
    ) -> DisklessFetchSnapshotResponse:
        """A part with at least one byte, of the newest snapshot if `snapshot` is None. Raises KafkaError."""
        request = DisklessFetchSnapshotRequest(
            coordinator_id=self._coordinator.coordinator_id,
            snapshot_offset=-1 if snapshot is None else snapshot.offset,
            position=position,
            max_bytes=PART_BYTES if max_bytes is None else max_bytes,
        )
        part = await self._environment.fetch_part(broker_id, request)
        if part.error_code is not ErrorCode.none:
            raise KafkaError(part.error_code, part.error_message or "")
        is_expected = snapshot is None or (snapshot == Snapshot(part.snapshot_offset, part.size))
        if (
            not is_expected
            or part.position != position
            or not part.data
            or position + len(part.data) > part.size
        ):
            raise KafkaError(
                ErrorCode.unknown_server_error, f"unexpected part of a snapshot at {position}"
            )
        return part


def _size_and_part(
    files: SnapshotFiles, offset: int, position: int, max_bytes: int
) -> tuple[int, bytes]:
    size = files.size_bytes(offset)
    if not 0 <= position <= size:
        raise KafkaError(
            ErrorCode.position_out_of_range, f"position {position} of a snapshot of {size} bytes"
        )
    return size, files.read(offset, position, max_bytes)


async def _cancel_when_cancelled(cancel: Callable[[], None]) -> None:
    try:
        await trio.sleep_forever()
    finally:
        cancel()
