"""`odradek diskless verify`: the objects of the store against the files and batches of the coordinators.

Brokers commit and delete files meanwhile. So the files are listed before and after the batches, an object with a problem
is verified again with the batches of that time, and an object that no coordinator tracks is an orphan only if it
still exists after the coordinators have been asked for it.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any
from uuid import UUID

import trio

from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.output import ProgressLine, human_bytes, print_json, print_lines
from odradek.cli.remote_inputs import call
from odradek.client.diskless_admin import (
    BATCHES_PER_REQUEST,
    DisklessAdmin,
    FoundBatches,
    is_not_diskless,
)
from odradek.client.metadata import Cluster
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import DISKLESS_METADATA
from odradek.seams import Seams
from odradek.seams.files import Path
from odradek.seams.objects import ObjectInfo, ObjectMissing, Objects
from odradek.seams.values import state_class
from odradek.storage.diskless.file_verification import (
    FileAudit,
    ObjectStatus,
    TrackedFile,
    UnknownObject,
    order_problems,
    status_of_unknown,
    verify_object,
)
from odradek.storage.diskless.object_key import PREFIX
from odradek.storage.diskless.store_settings import PREFIX as STORE_PREFIX
from odradek.storage.diskless.store_settings import (
    URL,
    diskless_store_url,
    open_diskless_store,
)
from odradek.storage.tiered.store_location import directory_of_store

FAILED = 1
PARALLEL_OBJECTS = 4
SETTLE_S = 2.0
"""Time in seconds in which a coordinator that deletes records updates its counts of files."""
MEANINGS = {
    ObjectStatus.ORPHAN: "ORPHAN: no coordinator tracks this object",
    ObjectStatus.RECENT: "not tracked, but recent: its commit may be in progress",
    ObjectStatus.STRAY: "not an object of diskless topics",
}


@state_class
class VerificationResult:
    """Problems, untracked objects and totals."""

    problems: list[str]
    unknown: list[UnknownObject]
    objects: int = 0
    bytes_read: int = 0

    @property
    def orphans(self) -> int:
        return sum(each.status is ObjectStatus.ORPHAN for each in self.unknown)


async def verify(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    """Verify the store of --config or --url against the cluster. Returns 1 for problems or orphans."""
    if cluster.cluster_id is None:
        await cluster.refresh()
    objects = open_store(args, seams, cluster.cluster_id or "")
    verification = DisklessVerification(args, cluster, seams, objects)
    audit = FileAudit()
    result = await verification.run(audit)
    verification.progress.end()
    if args.json:
        print_json(_json(args, audit, result))
    else:
        _print(args, audit, result)
    return FAILED if result.problems or result.orphans else 0


def open_store(args: argparse.Namespace, seams: Seams, cluster_id: str) -> Objects:
    """Open the cluster's part of the store of --config or --url. No request is sent. Raises WrongUsage."""
    try:
        if args.config is not None:
            from odradek.broker.config.properties import parse_properties

            properties = parse_properties(seams.files.read(Path(args.config)))
        elif args.url is not None:
            from odradek.broker.config.tiered_option import absolute_target

            options = {f"{STORE_PREFIX}{name}": value for name, value in args.option}
            properties = {**options, URL: absolute_target(args.url, "diskless topics")}
        else:
            raise WrongUsage("specify the store with --config server.properties or --url")
        url = diskless_store_url(
            properties.get("diskless.storage.url", ""),
            properties.get("diskless.storage.prefix", ""),
            cluster_id,
        )
        directory = directory_of_store(url)
        # Opening a missing directory would create it
        if directory is not None and not seams.files.is_directory(Path(directory)):
            raise WrongUsage(
                f"directory {directory} does not exist: specify the directory or URL of the brokers"
            )
        return open_diskless_store(properties, seams, cluster_id=cluster_id)
    except (ValueError, FileNotFoundError) as error:
        raise WrongUsage(str(error)) from None


class DisklessVerification:
    """One verification: lists files, batches and objects, and reads the batches."""

    def __init__(
        self, args: argparse.Namespace, cluster: Cluster, seams: Seams, objects: Objects
    ) -> None:
        self._args = args
        self._admin = DisklessAdmin(cluster)
        self._cluster = cluster
        self._seams = seams
        self._objects = objects
        self._topic_ids: dict[str, UUID] = {}
        self.progress = ProgressLine(seams.clock.monotonic)

    async def run(self, audit: FileAudit) -> VerificationResult:
        """Fill `audit`, and verify it. Raises CommandFailed if the cluster has no coordinators."""
        if not await self._admin.coordinator_ids():
            raise CommandFailed(
                f"the cluster has no topic {DISKLESS_METADATA}: it has no diskless topics"
            )
        result = VerificationResult([], [])
        result.problems += await self._collect(audit)
        for file in audit.files.values():
            result.problems += file.metadata_problems()
        result.problems += await self._miscounted(audit)
        result.problems += await self._untracked(audit)
        await self._verify_objects(audit, result)
        await self._find_unknown(audit, result)
        return result

    async def _collect(self, audit: FileAudit) -> list[str]:
        """Add all files and batches to `audit`; return the problems of partitions."""
        problems = []
        await self._list_files(audit)
        self._topic_ids = dict(await self._admin.diskless_topics())
        for topic in self._topic_ids:
            for index in sorted(self._cluster.topics[topic].partitions):
                problems += await self._find_batches(audit, topic, index)
        return problems

    async def _list_files(self, audit: FileAudit) -> None:
        for coordinator_id in await self._admin.coordinator_ids():
            async for page in self._admin.list_files(coordinator_id):
                audit.add_files(coordinator_id, page)
                self.progress.show(f"{len(audit.files)} files")

    async def _find_batches(self, audit: FileAudit, topic: str, index: int) -> list[str]:
        """Add the batches of a partition to `audit`; return its problems."""
        problems: list[str] = []
        offset, end = 0, None
        while end is None or offset < end:
            found = await self._found(topic, index, offset)
            if found is None:
                return problems
            end = found.high_watermark if end is None else end
            offset = max(offset, found.log_start_offset)
            if not found.batches:
                if offset < end:
                    problems.append(f"{topic}-{index}: no batch has offset {offset} of {end}")
                break
            problems += order_problems(topic, index, offset, found.batches)
            audit.add_batches(topic, index, found.batches)
            offset = found.batches[-1].last_offset + 1
            self.progress.show(f"{audit.batches} batches")
        audit.partitions += 1
        return problems

    async def _found(
        self, topic: str, index: int, offset: int, max_batches: int = BATCHES_PER_REQUEST
    ) -> FoundBatches | None:
        """Batches from an offset; None if the topic or the offset was deleted. A new topic may be unknown at first."""
        for is_last in (False, True):
            try:
                return await self._admin.find_batches(
                    self._topic_ids[topic], index, offset, max_batches=max_batches
                )
            except KafkaError as error:
                if error.code is ErrorCode.offset_out_of_range:
                    return None
                if not is_not_diskless(error):
                    raise
                if self._topic_ids[topic] not in (await self._admin.diskless_topics()).values():
                    return None
                if is_last:
                    raise CommandFailed(f"no coordinator has topic {topic}") from None
                await self._seams.clock.sleep(SETTLE_S)
        return None

    async def _miscounted(self, audit: FileAudit) -> list[str]:
        """Files whose number of live batches is wrong, also when everything is read for a second time.

        A coordinator that deletes records updates its files later, and a replica may return outdated batches.
        """
        if not audit.miscounted(audit):
            return []
        await self._seams.clock.sleep(SETTLE_S)
        again, last = FileAudit(), FileAudit()
        await self._collect(again)
        await self._list_files(last)
        still_wrong = {file.key for file in again.miscounted(last)}
        return [file.miscount for file in audit.miscounted(again) if file.key in still_wrong]

    async def _untracked(self, audit: FileAudit) -> list[str]:
        """Files with live batches that no coordinator tracks. A file that was committed after the listing is tracked."""
        unlisted = {
            file.key: file for file in audit.files_with_batches() if not file.by_coordinator
        }
        if not unlisted:
            return []
        problems = []
        for key in sorted(unlisted.keys() - await self._admin.known_files(unlisted)):
            file = await self._still_live(unlisted[key])
            if file.batches:
                problems.append(f"{key}: no coordinator tracks the file, with {file.needed_by}")
        return problems

    async def _verify_objects(self, audit: FileAudit, result: VerificationResult) -> None:
        send, receive = trio.open_memory_channel[TrackedFile](2 * PARALLEL_OBJECTS)

        async def read() -> None:
            async for file in receive:
                size_bytes, problems = await self._verify_object(file)
                if problems:
                    await self._seams.clock.sleep(SETTLE_S)
                    _, problems = await self._verify_object(await self._still_live(file))
                result.problems += problems
                result.objects += 1
                result.bytes_read += size_bytes
                self.progress.show_rate(result.objects, result.bytes_read)

        async with trio.open_nursery() as nursery:
            for _ in range(PARALLEL_OBJECTS):
                nursery.start_soon(read)
            async with send:
                for file in audit.files_with_batches():
                    await send.send(file)
        result.problems.sort()

    async def _verify_object(self, file: TrackedFile) -> tuple[int, list[str]]:
        if not file.batches:
            return 0, []
        verify = partial(verify_object, self._objects, file, quick=self._args.quick)
        return await call(self._seams, verify)

    async def _still_live(self, file: TrackedFile) -> TrackedFile:
        """The file with those of its batches that are still live, so that deleted objects are not problems."""
        batches = []
        for each in file.batches:
            found = await self._found(each.topic, each.index, each.batch.base_offset, 1)
            if found is not None and each.batch in found.batches:
                batches.append(each)
        return TrackedFile(file.key, file.by_coordinator, batches)

    async def _find_unknown(self, audit: FileAudit, result: VerificationResult) -> None:
        """Find the objects that no coordinator tracks."""
        pages = await call(self._seams, lambda: self._objects.pages(PREFIX))
        while (page := await call(self._seams, lambda: next(pages, None))) is not None:
            unlisted = {info.key: info for info in page if info.key not in audit.files}
            known = await self._admin.known_files(unlisted) if unlisted else set()
            for key in sorted(unlisted.keys() - known):
                if await self._exists(key):
                    result.unknown.append(self._unknown(unlisted[key]))

    async def _exists(self, key: str) -> bool:
        try:
            await call(self._seams, partial(self._objects.head, key))
        except ObjectMissing:
            return False
        return True

    def _unknown(self, info: ObjectInfo) -> UnknownObject:
        old_ms = round(self._args.older_than * 1000)
        now_ms = self._seams.clock.wall_ms()
        status = status_of_unknown(info.key, now_ms=now_ms, old_ms=old_ms)
        return UnknownObject(info.key, info.size, status)


def _print(args: argparse.Namespace, audit: FileAudit, result: VerificationResult) -> None:
    print_lines(result.problems)
    print_lines(
        f"{each.key} ({human_bytes(each.size)}): {MEANINGS[each.status]}" for each in result.unknown
    )
    read = "sizes verified" if args.quick else f"{human_bytes(result.bytes_read)} read and verified"
    print_lines(
        [
            f"{audit.partitions} partitions, {audit.batches} batches, {human_bytes(audit.live_bytes)} live",
            f"{len(audit.files)} files, {result.objects} with live batches, {read}: "
            f"{len(result.problems)} problems, {result.orphans} orphans",
        ]
    )


def _json(args: argparse.Namespace, audit: FileAudit, result: VerificationResult) -> dict[str, Any]:
    return {
        "partitions": audit.partitions,
        "batches": audit.batches,
        "live_bytes": audit.live_bytes,
        "files": len(audit.files),
        "objects_verified": result.objects,
        "bytes_read": None if args.quick else result.bytes_read,
        "problems": result.problems,
        "untracked": [
            {"key": each.key, "size": each.size, "status": each.status.value}
            for each in result.unknown
        ],
    }
