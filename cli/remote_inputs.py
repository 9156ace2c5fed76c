"""Inputs of `odradek remote`: the objects of the store, and the records of `__remote_log_metadata`."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TypeVar

from odradek.cli.dump_output import time_text
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.tiered.whole_metadata_topic import (
    UnreadableMetadata,
    WholeMetadataTopicReader,
)
from odradek.seams import Seams
from odradek.seams.files import Path
from odradek.seams.objects import (
    DEFAULT_STORE_TIMEOUTS,
    ObjectDenied,
    ObjectInfo,
    Objects,
    ObjectsUnavailable,
)
from odradek.seams.offload import OBJECTS_LANE
from odradek.storage.tiered.metadata_records import METADATA_TOPIC
from odradek.storage.tiered.remote_storage_settings import RemoteStorageSettings
from odradek.storage.tiered.store_location import directory_of_store, resolved_url

T = TypeVar("T")


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
            url = settings.url(seams.files)
            options, timeouts = settings.store_options(), settings.timeouts()
        elif args.url is not None:
            url = resolved_url(args.url, seams.files)
            options, timeouts = dict(args.option), DEFAULT_STORE_TIMEOUTS
        else:
            raise WrongUsage("specify the store with --config server.properties or --url")
        directory = directory_of_store(url)
        # Opening a missing directory would create it
        if directory is not None and not seams.files.is_directory(Path(directory)):
            if not missing_is_empty:
                raise WrongUsage(
                    f"directory {directory} does not exist: specify the directory or URL of the brokers"
                )
            return url, seams.open_objects("memory:///")
        return url, seams.open_objects(url, options, timeouts)
    except ValueError as error:
        raise WrongUsage(str(error)) from None


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


async def read_metadata(metadata: WholeMetadataTopicReader) -> None:
    """Read the metadata topic up to its current end. Raises CommandFailed if it does not exist."""
    try:
        await metadata.read_to_end()
    except KafkaError as error:
        if error.code is not ErrorCode.unknown_topic_or_partition:
            raise
        raise CommandFailed(
            f"the cluster has no topic {METADATA_TOPIC}: it does not use tiered storage. "
            "--without-metadata uses only the manifests in the store"
        ) from None


def metadata_gaps(metadata: WholeMetadataTopicReader) -> list[str]:
    """Messages about metadata that cannot be read."""
    return [
        f"{partition} starts at offset {start} instead of 0"
        for partition, start in metadata.begins_late
    ] + [_unreadable_text(record) for record in metadata.unreadable]


def _unreadable_text(record: UnreadableMetadata) -> str:
    return (
        f"{METADATA_TOPIC}-{record.partition} at offset {record.offset} cannot be read: {record.error}"
        f" ({record.size_bytes} bytes, timestamp {time_text(record.timestamp_ms)}, {record.first_bytes!r}"
        f"{'…' if record.size_bytes > len(record.first_bytes) else ''})"
    )


def check_passed_over(metadata: WholeMetadataTopicReader) -> None:
    """Raise WrongUsage if a passed-over record is readable or does not exist."""
    for partition, offset in metadata.wrongly_passed_over:
        raise WrongUsage(
            f"--pass-over {partition}:{offset}: {METADATA_TOPIC}-{partition} has no unreadable record at offset"
            f" {offset}"
        )
