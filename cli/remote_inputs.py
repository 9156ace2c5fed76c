"""Inputs of `odradek remote`: the objects of the store, and the records of `__remote_log_metadata`."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path as LocalPath
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

from odradek.cli.dump_output import time_text
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.client.consumer import ConsumedRecord
from odradek.client.metadata import Cluster
from odradek.client.whole_topic import WholeTopic
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.tiered.metadata_topic import metadata_partition
from odradek.seams import Seams
from odradek.seams.files import Files, Path
from odradek.seams.objects import (
    DEFAULT_STORE_TIMEOUTS,
    ObjectDenied,
    ObjectInfo,
    Objects,
    ObjectsUnavailable,
)
from odradek.seams.offload import OBJECTS_LANE
from odradek.storage.tiered import metadata_records
from odradek.storage.tiered.audit import KnownSegments
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.metadata_records import METADATA_TOPIC
from odradek.storage.tiered.remote_storage_settings import LOCAL_STORE, RemoteStorageSettings
from odradek.storage.tiered.segment_metadata import TopicIdPartition

T = TypeVar("T")

SHOWN_BYTES = 24
"""Bytes of an unreadable record in its error message."""


def open_store(
    args: argparse.Namespace, seams: Seams, *, missing_is_empty: bool = False
) -> tuple[str, Objects]:
    """Open the store of --config or --url; return its URL and client. No request is sent.

    With `missing_is_empty`, a directory that does not exist is an empty store. Raises WrongUsage.
    """
    try:
        if args.config is not None:
            from odradek.broker.config.properties import parse_properties

            settings = RemoteStorageSettings(parse_properties(seams.files.read(Path(args.config))))
            url, options, timeouts = settings.url(), settings.store_options(), settings.timeouts()
        elif args.url is not None:
            url, options, timeouts = args.url, dict(args.option), DEFAULT_STORE_TIMEOUTS
        else:
            raise WrongUsage("specify the store with --config server.properties or --url")
        directory = _directory(url)
        if directory is not None:
            url = _as_url(directory, seams.files)
            if not seams.files.is_directory(Path(directory)):
                if not missing_is_empty:
                    raise WrongUsage(f"directory {directory} does not exist")
                return url, seams.open_objects("memory:///")
        return url, seams.open_objects(url, options, timeouts)
    except ValueError as error:
        raise WrongUsage(str(error)) from None


def _directory(url: str) -> LocalPath | None:
    """Directory of a local store; None for object storage. Opening a missing directory would create it."""
    if "://" not in url:
        return LocalPath(url).absolute()
    return LocalPath(unquote(urlsplit(url).path)) if url.startswith("file://") else None


def _as_url(path: LocalPath, files: Files) -> str:
    if files.is_directory(Path(path / LOCAL_STORE)):
        # The store of a broker is a subdirectory of its configured directory
        path = path / LOCAL_STORE
    return f"file://{quote(str(path))}"


async def call(seams: Seams, fn: Callable[[], T]) -> T:
    """Call the store in a worker thread. Raises CommandFailed if it is unavailable."""
    try:
        return await seams.offload.run(fn, lane=OBJECTS_LANE)
    except ObjectDenied as error:
        raise CommandFailed(
            f"the store denies access: {error}\nCheck the credentials in --option, --config or the environment,"
            " and their permissions"
        ) from None
    except ObjectsUnavailable as error:
        raise CommandFailed(
            f"the store is unavailable: {error}\nCheck its name and its endpoint"
        ) from None


async def listing(objects: Objects, seams: Seams) -> AsyncIterator[Sequence[ObjectInfo]]:
    """Yield pages of all objects, in the order of their keys."""
    pages: Iterator[Sequence[ObjectInfo]] = await call(seams, lambda: objects.pages(""))
    while (page := await call(seams, lambda: next(pages, None))) is not None:
        yield page


class MetadataTopicConsumer:
    """Reads the metadata topic from its beginning into `known`, on each call up to the current end.

    An unreadable record may contain a segment, because brokers of a later version may have written it. Its
    partition of the metadata topic is known, but not its segment. Therefore segments that are not in `known`
    have an unclear status if the metadata of their partition is in that partition of the topic. The user can
    exclude such records by partition and offset (`passed_over`).
    """

    def __init__(self, cluster: Cluster, passed_over: Iterable[tuple[int, int]] = ()) -> None:
        self._topic = WholeTopic(cluster, METADATA_TOPIC)
        self._passed_over = frozenset(passed_over)
        self._unreadable: dict[tuple[int, int], str] = {}
        self.known = KnownSegments()

    async def read_to_end(self) -> None:
        """Read up to the current end. Raises CommandFailed if the topic does not exist."""
        try:
            await self._topic.read_to_end(self._apply)
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
            raise CommandFailed(
                f"the cluster has no topic {METADATA_TOPIC}: it does not use tiered storage. "
                "--without-metadata uses only the manifests in the store"
            ) from None

    @property
    def gaps(self) -> list[str]:
        """Messages about metadata that cannot be read."""
        late = [
            f"{each} starts at offset {start} instead of 0"
            for each, start in self._topic.begins_late
        ]
        return late + [
            text for where, text in self._unreadable.items() if where not in self._passed_over
        ]

    @property
    def has_unreadable(self) -> bool:
        """Whether there is an unreadable record that is not passed over."""
        return not self._unreadable.keys() <= self._passed_over

    def may_have_more_metadata(self, partition: TopicIdPartition) -> bool:
        """Whether unreadable metadata may contain segments of the partition."""
        doubtful = {each.partition for each, _ in self._topic.begins_late}
        doubtful.update(where for where, _ in self._unreadable.keys() - self._passed_over)
        return metadata_partition(partition, self._topic.partitions) in doubtful

    def check_passed_over(self) -> None:
        """Raise WrongUsage if a passed-over record is readable or does not exist."""
        for where, offset in sorted(self._passed_over - self._unreadable.keys()):
            raise WrongUsage(
                f"--pass-over {where}:{offset}: {METADATA_TOPIC}-{where} has no unreadable record at offset"
                f" {offset}"
            )

    def _apply(self, record: ConsumedRecord) -> None:
        if record.value is None:
            return
        try:
            self.known.apply(metadata_records.decode(record.value))
        except RemoteStorageError as error:
            shown = record.value[:SHOWN_BYTES]
            self._unreadable[record.partition, record.offset] = (
                f"{METADATA_TOPIC}-{record.partition} at offset {record.offset} cannot be read: {error}"
                f" ({len(record.value)} bytes, timestamp {time_text(record.timestamp)}, {shown!r}"
                f"{'…' if len(record.value) > SHOWN_BYTES else ''})"
            )
