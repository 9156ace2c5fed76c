"""What `odradek remote` looks at: the store's objects, and the records of `__remote_log_metadata`."""

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
from odradek.replication.remote.metadata_topic import metadata_partition
from odradek.seams import Seams
from odradek.seams.files import Files, Path
from odradek.seams.objects import (
    USUAL_PATIENCE,
    ObjectDenied,
    ObjectInfo,
    Objects,
    ObjectsUnavailable,
)
from odradek.seams.offload import OBJECTS_LANE
from odradek.storage.tiered import metadata_records
from odradek.storage.tiered.audit import KnownSegments
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.metadata import TopicIdPartition
from odradek.storage.tiered.metadata_records import METADATA_TOPIC
from odradek.storage.tiered.remote_storage_settings import LOCAL_STORE, RemoteStorageSettings

T = TypeVar("T")

SHOWN_BYTES = 24
"""Of a record that cannot be read, so that somebody may know it again."""


def open_store(
    args: argparse.Namespace, seams: Seams, *, missing_is_empty: bool = False
) -> tuple[str, Objects]:
    """The store that the arguments name, and its URL. It is asked nothing yet. A directory that is not there
    is wrong usage, or where `missing_is_empty`, a store that has nothing. Raises WrongUsage."""
    try:
        if args.config is not None:
            from odradek.broker.config.properties import parse_properties

            settings = RemoteStorageSettings(parse_properties(seams.files.read(Path(args.config))))
            url, options, patience = settings.url(), settings.store_options(), settings.patience()
        elif args.url is not None:
            url, options, patience = args.url, dict(args.option), USUAL_PATIENCE
        else:
            raise WrongUsage("where is the store? Give --config server.properties, or its --url")
        directory = _directory(url)
        if directory is not None:
            url = _as_url(directory, seams.files)
            if not seams.files.is_directory(Path(directory)):
                if not missing_is_empty:
                    raise WrongUsage(f"there is no directory {directory}")
                return url, seams.open_objects("memory:///")
        return url, seams.open_objects(url, options, patience)
    except ValueError as error:
        raise WrongUsage(str(error)) from None


def _directory(url: str) -> LocalPath | None:
    """None for a store of another kind. One that is not there would be made, and be found to be empty."""
    if "://" not in url:
        return LocalPath(url).absolute()
    return LocalPath(unquote(urlsplit(url).path)) if url.startswith("file://") else None


def _as_url(path: LocalPath, files: Files) -> str:
    if files.is_directory(Path(path / LOCAL_STORE)):
        path = path / LOCAL_STORE  # what a broker calls its store within the directory it is told
    return f"file://{quote(str(path))}"


async def call(seams: Seams, fn: Callable[[], T]) -> T:
    """A call of the store, off the loop. CommandFailed if it is away."""
    try:
        return await seams.offload.run(fn, lane=OBJECTS_LANE)
    except ObjectDenied as error:
        raise CommandFailed(
            f"the store: {error}\nIt denies access: see to the credentials, which are options (--option, or"
            " --config) or the environment's, and to what they may do"
        ) from None
    except ObjectsUnavailable as error:
        raise CommandFailed(
            f"the store: {error}\nIs it there, and are its name and its endpoint right?"
        ) from None


async def listing(objects: Objects, seams: Seams) -> AsyncIterator[Sequence[ObjectInfo]]:
    """All objects, some at a time, in the order of their keys."""
    pages: Iterator[Sequence[ObjectInfo]] = await call(seams, lambda: objects.pages(""))
    while (page := await call(seams, lambda: next(pages, None))) is not None:
        yield page


class MetadataTopicConsumer:
    """Reads the metadata topic from its beginning into `known`, each time to its end of that moment.

    A record that cannot be read may have announced a segment that brokers know: those of a later version
    can read it. Which segment that is nobody can tell, only of which partitions: those whose metadata is
    in that partition of the topic. So of these what is not `known` is in doubt, unless somebody has looked
    at the record and says that it is nothing (`passed_over`: its partition and offset).
    """

    def __init__(self, cluster: Cluster, passed_over: Iterable[tuple[int, int]] = ()) -> None:
        self._topic = WholeTopic(cluster, METADATA_TOPIC)
        self._passed_over = frozenset(passed_over)
        self._unreadable: dict[tuple[int, int], str] = {}
        self.known = KnownSegments()

    async def read_on(self) -> None:
        """Raises CommandFailed if the cluster has no such topic."""
        try:
            await self._topic.read_on(self._take)
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
            raise CommandFailed(
                f"the cluster has no {METADATA_TOPIC}: nothing there is tiered. --without-metadata goes "
                "by the manifests in the store alone"
            ) from None

    @property
    def gaps(self) -> list[str]:
        """Why there may be more than is known, in words."""
        late = [f"{each} begins at offset {start} only" for each, start in self._topic.begins_late]
        return late + [
            text for where, text in self._unreadable.items() if where not in self._passed_over
        ]

    @property
    def has_unreadable(self) -> bool:
        """Whether there is a record that cannot be read, and is not passed over."""
        return not self._unreadable.keys() <= self._passed_over

    def may_have_more_metadata(self, partition: TopicIdPartition) -> bool:
        """Whether brokers may know segments of it that are not known here."""
        doubtful = {each.partition for each, _ in self._topic.begins_late}
        doubtful.update(where for where, _ in self._unreadable.keys() - self._passed_over)
        return metadata_partition(partition, self._topic.partitions) in doubtful

    def check_passed_over(self) -> None:
        """Raises WrongUsage where there is no such record."""
        for where, offset in sorted(self._passed_over - self._unreadable.keys()):
            raise WrongUsage(
                f"--pass-over {where}:{offset}: {METADATA_TOPIC}-{where} has no record at offset {offset} that"
                " cannot be read"
            )

    def _take(self, record: ConsumedRecord) -> None:
        if record.value is None:
            return
        try:
            self.known.apply(metadata_records.decode(record.value))
        except RemoteStorageError as error:
            shown = record.value[:SHOWN_BYTES]
            self._unreadable[record.partition, record.offset] = (
                f"{METADATA_TOPIC}-{record.partition} at offset {record.offset} cannot be read: {error}"
                f" ({len(record.value)} bytes, put at {time_text(record.timestamp)}, {shown!r}"
                f"{'…' if len(record.value) > SHOWN_BYTES else ''})"
            )
