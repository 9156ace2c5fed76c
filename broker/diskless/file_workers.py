"""Hand-over and deletion of WAL files without live batches, by the leader of each coordinator (KIP-1164, D-21, D-22).

| file without live batches | work |
|---|---|
| the coordinator owns it, another owner follows | hand it over (API 21640), then remove it from the state |
| the coordinator is the last owner | after the grace period delete the object, then remove it from the state |
| another coordinator owns it | none: that one hands it over |
| its preceding owners do not know it: their commits failed | take the ownership |

Each step is harmless if it is done twice, and the state changes last, so that a new leader continues after a crash
between any two steps. Nothing happens to a file that could still be committed (`COMMIT_WINDOW_MS`): a commit after its
hand-over would add live batches to a file that another coordinator deletes. The margin is the window again,
because the clocks of brokers differ.

A step that fails is retried for ever. Failures are counted per target, which is the object store or a coordinator: while a
target fails, its files are tried at increasing intervals, and the log gets one warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import trio

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.diskless_apis import (
    DisklessDescribedCoordinator,
    DisklessDescribeFileResult,
    DisklessHandOverFileRequest,
    DisklessHandOverFileResponse,
    DisklessListFilesResponse,
)
from odradek.replication.diskless.coordinator_state_machine import COMMIT_WINDOW_MS
from odradek.replication.diskless.file_ownership import next_owner, preceding_owners
from odradek.seams.containment import STARTED_AGAIN, Containment
from odradek.seams.objects import ObjectsUnavailable
from odradek.seams.offload import OBJECTS_LANE
from odradek.seams.values import state_class
from odradek.storage.diskless.state import DisklessState, FileState, FileStatus

if TYPE_CHECKING:
    from odradek.seams.clock import Clock
    from odradek.seams.objects import Objects
    from odradek.seams.offload import Offload

log = logging.getLogger("odradek.diskless")

T = TypeVar("T")
FILE_AGE_MS: Final = 2 * COMMIT_WINDOW_MS
"""Age after which no coordinator accepts a commit of the file any more, with a margin for clocks that differ."""
WORK_INTERVAL_SECONDS: Final = 5.0
"""Time between two looks for files without live batches."""
PAGE_FILES: Final = 1000
PAGE_PAUSE_SECONDS: Final = 1.0
"""Pause before the preceding owners of the next page of files are asked."""
PARALLEL_FILES: Final = 64
RETRY_SECONDS: Final = 5.0
RETRY_SECONDS_MAX: Final = 300.0
"""Pause after a failure of a target; it doubles up to the maximum."""
STUCK_SECONDS: Final = 60.0
"""Time after which a warning about a failing target is logged."""
REFUSED_FILES_MAX: Final = 1000


class FileCoordinator(Protocol):
    """A coordinator on this broker. Its methods raise KafkaError if it is not the leader."""

    @property
    def name(self) -> str: ...

    @property
    def coordinator_id(self) -> int: ...

    @property
    def serves(self) -> bool: ...

    async def query(self, fn: Callable[[DisklessState], T]) -> T: ...

    async def query_strictly(self, fn: Callable[[DisklessState], T]) -> T: ...

    async def take_ownership(
        self, request: DisklessHandOverFileRequest
    ) -> DisklessHandOverFileResponse: ...

    async def remove_file(self, object_key: str) -> bool: ...


class OwnerRequests(Protocol):
    """Requests to the coordinators of the cluster (`CoordinatorRequests`)."""

    def leader_of(self, coordinator_id: int) -> int: ...

    async def hand_over_file(
        self, request: DisklessHandOverFileRequest
    ) -> DisklessHandOverFileResponse: ...

    async def describe_files(
        self, coordinator_id: int, keys: Sequence[str]
    ) -> Sequence[DisklessDescribeFileResult]:
        """Raises KafkaError."""
        ...

    async def describe_coordinator(self, coordinator_id: int) -> DisklessDescribedCoordinator: ...

    async def list_files(
        self, coordinator_id: int, after: str = "", max_files: int = 1000
    ) -> DisklessListFilesResponse: ...


@state_class
class FileWorkEnvironment:
    """Dependencies of the work on files, and its counters."""

    led: Callable[[], Sequence[FileCoordinator]]
    """Coordinators that this broker leads, loaded or not."""
    requests: OwnerRequests
    objects: Objects
    clock: Clock
    offload: Offload
    grace_ms: Callable[[], int]
    """Current `diskless.file.deletion.grace.period.ms`."""
    handed_over: int = 0
    deleted: int = 0
    taken_over: int = 0
    """Files since the start of the broker, by the work that was done."""


class Target:
    """The object store, or a coordinator that takes files over: whether work on it fails."""

    def __init__(self, description: str, clock: Clock) -> None:
        self._description = description
        self._clock = clock
        self._failing_since: float | None = None
        self._retry_at = 0.0
        self._pause = RETRY_SECONDS
        self._is_reported = False

    @property
    def is_due(self) -> bool:
        return self._failing_since is None or self._clock.monotonic() >= self._retry_at

    def succeeded(self) -> None:
        if self._is_reported:
            log.info("%s succeeds again", self._description)
        self._failing_since = None
        self._pause = RETRY_SECONDS
        self._is_reported = False

    def failed(self, error: Exception) -> None:
        now = self._clock.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        elif now < self._retry_at:
            return  # another file of the same attempt
        self._retry_at = now + self._pause
        self._pause = min(2 * self._pause, RETRY_SECONDS_MAX)
        failing = now - self._failing_since
        if failing >= STUCK_SECONDS and not self._is_reported:
            self._is_reported = True
            log.warning(
                "%s has failed for %d s and is retried: %s", self._description, failing, error
            )


class CoordinatorFiles:
    """Work on the files of one coordinator while this broker leads it."""

    def __init__(self, coordinator: FileCoordinator, environment: FileWorkEnvironment) -> None:
        self._coordinator = coordinator
        self._environment = environment
        self._id = coordinator.coordinator_id
        self._store = Target(
            f"The deletion of the files of {coordinator.name} in the object store",
            environment.clock,
        )
        self._owners: dict[int, Target] = {}
        self._checked_key = ""
        """Every file up to this key has an owner."""
        self._next_check_ms = 0
        """Time before which no other file is old."""
        self._refused: dict[str, float] = {}
        """Files whose next owner refused them, with the time to try them again."""

    async def run(self) -> None:
        """Do the work until the coordinator does not serve any more."""
        clock = self._environment.clock
        while self._coordinator.serves:
            pause = WORK_INTERVAL_SECONDS
            try:
                await self.release_files()
                if await self.check_owners():
                    pause = PAGE_PAUSE_SECONDS
            except KafkaError as error:
                log.debug("The files of %s are checked again: %s", self._coordinator.name, error)
            await clock.sleep(pause)

    def _is_old(self, file: FileState) -> bool:
        return self._environment.clock.wall_ms() - file.uploaded_ms > FILE_AGE_MS

    # Files that the coordinator owns

    async def release_files(self) -> None:
        """Hand over or delete the files without live batches that the coordinator owns. Raises KafkaError if it is not
        the leader any more."""
        after = ""
        while True:
            files = await self._coordinator.query(partial(_unused_files, after=after))
            old = [each for each in files if self._is_old(each)]
            await self._delete_files(old)
            await self._hand_over_files(old)
            if len(old) < PAGE_FILES:  # keys are sorted by time, and the others are younger
                return
            after = files[-1].object_key

    async def _delete_files(self, files: Iterable[FileState]) -> None:
        environment = self._environment
        due_ms = environment.clock.wall_ms() - environment.grace_ms()
        keys = [
            file.object_key
            for file in files
            if file.status(self._id) is FileStatus.DELETING and file.unused_since_ms <= due_ms
        ]
        if not keys or not self._store.is_due:
            return
        try:
            await environment.offload.run(environment.objects.delete_all, keys, lane=OBJECTS_LANE)
        except ObjectsUnavailable as error:
            self._store.failed(error)
            return
        self._store.succeeded()
        environment.deleted += len(keys)
        await self._for_each(keys, self._remove)

    async def _hand_over_files(self, files: Iterable[FileState]) -> None:
        by_owner: dict[int, list[FileState]] = {}
        now = self._environment.clock.monotonic()
        for file in files:
            if file.status(self._id) is not FileStatus.HANDING_OVER:
                continue
            owner = next_owner(file.owner_ids, self._id)
            if (
                owner is not None
                and self._owner(owner).is_due
                and self._refused.get(file.object_key, 0.0) <= now
            ):
                by_owner.setdefault(owner, []).append(file)
        for owner, handed in by_owner.items():
            await self._for_each(handed, partial(self._hand_over, owner))

    async def _hand_over(self, owner: int, file: FileState) -> None:
        target = self._owner(owner)
        if not target.is_due:
            return
        response = await self._environment.requests.hand_over_file(_hand_over_request(owner, file))
        if response.error_code is ErrorCode.none:
            target.succeeded()
            self._environment.handed_over += 1
            self._refused.pop(file.object_key, None)
            await self._remove(file.object_key)
            return
        error = KafkaError(response.error_code, response.error_message or "")
        if _is_retriable(error.code):
            target.failed(error)
            return
        if file.object_key not in self._refused and len(self._refused) < REFUSED_FILES_MAX:
            log.warning(
                "Coordinator %d refuses to take over the file %s, which is retried: %s",
                owner,
                file.object_key,
                error,
            )
        if len(self._refused) >= REFUSED_FILES_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[file.object_key] = self._environment.clock.monotonic() + RETRY_SECONDS_MAX

    async def _remove(self, object_key: str) -> None:
        if not await self._coordinator.remove_file(object_key):
            log.warning(
                "%s does not remove the file %s: it has live batches",
                self._coordinator.name,
                object_key,
            )

    def _owner(self, coordinator_id: int) -> Target:
        target = self._owners.get(coordinator_id)
        if target is None:
            target = self._owners[coordinator_id] = Target(
                f"The hand-over of files of {self._coordinator.name} to coordinator {coordinator_id}",
                self._environment.clock,
            )
        return target

    async def _for_each(self, items: Sequence[T], work: Callable[[T], object]) -> None:
        """Do the work on several items at a time. Raises the KafkaError of this coordinator."""
        errors: list[KafkaError] = []

        async def do(item: T) -> None:
            try:
                await work(item)  # type: ignore[misc]
            except KafkaError as error:
                errors.append(error)

        for start in range(0, len(items), PARALLEL_FILES):
            async with trio.open_nursery() as nursery:
                for item in items[start : start + PARALLEL_FILES]:
                    nursery.start_soon(do, item)
            if errors:
                raise errors[0]

    # Files that another coordinator owns

    async def check_owners(self) -> bool:
        """Take the ownership of the next files whose preceding owners do not know them; returns whether there are more
        files to check. Raises KafkaError.

        Each file is checked once, when it is so old that no commit of it can arrive any more. If a preceding
        owner knows the file then, it hands it over at some time.
        """
        now_ms = self._environment.clock.wall_ms()
        if now_ms < self._next_check_ms:
            return False
        files = await self._coordinator.query(partial(_files_after, after=self._checked_key))
        old = [each for each in files if self._is_old(each)]
        for file in await self._without_owner([each for each in old if not each.is_owner]):
            response = await self._coordinator.take_ownership(_hand_over_request(self._id, file))
            if response.error_code is not ErrorCode.none:
                raise KafkaError(response.error_code, response.error_message or "")
            self._environment.taken_over += 1
        if old:
            self._checked_key = old[-1].object_key
        if len(old) < len(files):
            self._next_check_ms = files[len(old)].uploaded_ms + FILE_AGE_MS
        elif (
            len(files) < PAGE_FILES
        ):  # a file that is committed later is younger than the commit window
            self._next_check_ms = now_ms + FILE_AGE_MS - COMMIT_WINDOW_MS
        return len(old) == PAGE_FILES

    async def _without_owner(self, files: Sequence[FileState]) -> Sequence[FileState]:
        by_owner: dict[int, list[FileState]] = {}
        for file in files:
            for owner in preceding_owners(file.owner_ids, self._id):
                by_owner.setdefault(owner, []).append(file)
        known: set[str] = set()
        for owner, owned in by_owner.items():
            target = self._owner(owner)
            if not target.is_due:
                raise KafkaError(
                    ErrorCode.coordinator_not_available, f"coordinator {owner} does not respond"
                )
            try:
                known |= await self._known_files(owner, owned)
            except KafkaError as error:
                target.failed(error)
                raise
            target.succeeded()
        return [each for each in files if each.object_key not in known]

    async def _known_files(self, owner: int, files: Sequence[FileState]) -> set[str]:
        """Keys of those files that the coordinator `owner` tracks. Raises KafkaError."""
        keys = [each.object_key for each in files]
        for coordinator in self._environment.led():
            if coordinator.coordinator_id == owner:
                return await coordinator.query_strictly(partial(_tracked, keys=keys))
        described = await self._environment.requests.describe_files(owner, keys)
        known = set()
        for result in described:
            if result.error_code is ErrorCode.none:
                known.add(result.object_key)
            elif result.error_code is not ErrorCode.resource_not_found:
                raise KafkaError(result.error_code, result.error_message or "")
        leader = self._environment.requests.leader_of(owner)
        # The response is for all coordinators of the broker: another owner on it may be the one that knows a file.
        unclear = [
            each.object_key
            for each in files
            if each.object_key in known
            and any(
                other != owner and self._environment.requests.leader_of(other) == leader
                for other in each.owner_ids
            )
        ]
        if unclear:
            known -= set(unclear) - await self._listed_files(owner, unclear)
        return known

    async def _listed_files(self, owner: int, keys: Sequence[str]) -> set[str]:
        """Those of the sorted keys that a coordinator lists, while one leader leads it. Raises KafkaError."""
        requests = self._environment.requests
        before = await requests.describe_coordinator(owner)
        wanted = set(keys)
        found: set[str] = set()
        after = keys[0][:-1]
        while True:
            response = await requests.list_files(owner, after, PAGE_FILES)
            if response.error_code is not ErrorCode.none:
                raise KafkaError(response.error_code, response.error_message or "")
            found.update(each.object_key for each in response.files if each.object_key in wanted)
            if len(response.files) < PAGE_FILES or response.files[-1].object_key >= keys[-1]:
                break
            after = response.files[-1].object_key
        described = await requests.describe_coordinator(owner)
        if not (before.is_leader and described.is_leader) or (
            before.leader_epoch != described.leader_epoch
        ):
            raise KafkaError(
                ErrorCode.not_coordinator, f"the leader of coordinator {owner} has changed"
            )
        return found


class FileWorkers:
    """Runs the work for all coordinators that this broker leads."""

    def __init__(self, environment: FileWorkEnvironment) -> None:
        self._environment = environment
        self._running: dict[int, FileCoordinator] = {}
        self._tasks: Containment[str] = Containment(
            "the hand-over and deletion of diskless files", consequence=STARTED_AGAIN
        )

    @property
    def counts(self) -> Mapping[str, int]:
        """Files since the start, by the work that was done."""
        environment = self._environment
        return {
            "handed-over": environment.handed_over,
            "deleted": environment.deleted,
            "taken-over": environment.taken_over,
        }

    async def run(self) -> None:
        """Start and end the work with leaderships, until cancelled."""
        environment = self._environment
        async with trio.open_nursery() as nursery:
            while True:
                for coordinator in environment.led():
                    running = self._running.get(coordinator.coordinator_id)
                    if coordinator.serves and running is not coordinator:
                        self._running[coordinator.coordinator_id] = coordinator
                        nursery.start_soon(self._work, coordinator)
                await environment.clock.sleep(WORK_INTERVAL_SECONDS)

    async def _work(self, coordinator: FileCoordinator) -> None:
        try:
            files = CoordinatorFiles(coordinator, self._environment)
            await self._tasks.keep_running(coordinator.name, files.run)
        finally:
            if self._running.get(coordinator.coordinator_id) is coordinator:
                del self._running[coordinator.coordinator_id]


def _unused_files(state: DisklessState, after: str) -> Sequence[FileState]:
    return state.unused_files(after, PAGE_FILES)


def _files_after(state: DisklessState, after: str) -> Sequence[FileState]:
    return state.files(after, PAGE_FILES)


def _tracked(state: DisklessState, keys: Sequence[str]) -> set[str]:
    return {key for key in keys if state.file(key) is not None}


def _hand_over_request(owner: int, file: FileState) -> DisklessHandOverFileRequest:
    return DisklessHandOverFileRequest(
        coordinator_id=owner,
        object_key=file.object_key,
        object_format=file.object_format,
        file_size=file.size,
        owner_ids=file.owner_ids,
    )


def _is_retriable(code: ErrorCode) -> bool:
    return code.retriable or code is ErrorCode.unknown_server_error
