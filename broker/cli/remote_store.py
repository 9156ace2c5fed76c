"""What `odradek remote` looks at: the store's objects, and the records of `__remote_log_metadata`."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path as LocalPath
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

from odradek.broker.cli.errors import CommandFailed, WrongUsage
from odradek.client.metadata import Cluster
from odradek.client.whole_topic import WholeTopic
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams import Seams
from odradek.seams.files import Files, Path
from odradek.seams.objects import ObjectInfo, Objects, ObjectsUnavailable
from odradek.seams.offload import OBJECTS_LANE
from odradek.storage.tiered import metadata_records
from odradek.storage.tiered.audit import KnownSegments
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.metadata_records import METADATA_TOPIC
from odradek.storage.tiered.opening import LOCAL_STORE, Settings

T = TypeVar("T")


def open_store(args: argparse.Namespace, seams: Seams) -> Objects:
    """The store that the arguments name. It is asked nothing yet. Raises WrongUsage."""
    try:
        if args.config is not None:
            from odradek.broker.config.properties import parse_properties

            settings = Settings(parse_properties(seams.files.read(Path(args.config))))
            url, options, patience = settings.url(), settings.store_options(), settings.patience()
            return seams.open_objects(_existing(url, seams.files), options, patience)
        if args.url is None:
            raise WrongUsage("where is the store? Give --config server.properties, or its --url")
        return seams.open_objects(_existing(args.url, seams.files), dict(args.option))
    except ValueError as error:
        raise WrongUsage(str(error)) from None


def _existing(url: str, files: Files) -> str:
    """A directory as a URL; one that is not there would be made, and be found to be empty."""
    if "://" in url and not url.startswith("file://"):
        return url
    path = LocalPath(unquote(urlsplit(url).path) if "://" in url else url).absolute()
    if not files.is_directory(Path(path)):
        raise WrongUsage(f"there is no directory {path}")
    if files.is_directory(Path(path / LOCAL_STORE)):
        path = path / LOCAL_STORE  # what a broker calls its store within the directory it is told
    return f"file://{quote(str(path))}"


async def call(seams: Seams, fn: Callable[[], T]) -> T:
    """A call of the store, off the loop. CommandFailed if it is away."""
    try:
        return await seams.offload.run(fn, lane=OBJECTS_LANE)
    except ObjectsUnavailable as error:
        raise CommandFailed(f"the store: {error}") from None


async def listing(objects: Objects, seams: Seams) -> AsyncIterator[Sequence[ObjectInfo]]:
    """All objects, some at a time, in the order of their keys."""
    pages: Iterator[Sequence[ObjectInfo]] = await call(seams, lambda: objects.pages(""))
    while (page := await call(seams, lambda: next(pages, None))) is not None:
        yield page


class MetadataReading:
    """Reads the metadata topic from its beginning into `known`, each time to its end of that moment."""

    def __init__(self, cluster: Cluster) -> None:
        self._topic = WholeTopic(cluster, METADATA_TOPIC)
        self.known = KnownSegments()
        self.gap: str | None = None
        """Why there may be more than is known, in words; None if that is all."""

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
        for each, start in self._topic.begins_late:
            self.gap = f"{each} begins at offset {start} only"

    def _take(self, value: bytes | None) -> None:
        try:
            if value is not None:
                self.known.apply(metadata_records.decode(value))
        except RemoteStorageError as error:
            self.gap = f"a record of {METADATA_TOPIC} cannot be read: {error}"
