"""Configs of diskless topics with their current values, and the opening of their object store."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from odradek.broker.lifecycle.errors import WrongConfig
from odradek.seams.files import Path
from odradek.seams.objects import ObjectDenied, ObjectsUnavailable
from odradek.seams.offload import OBJECTS_LANE
from odradek.storage.diskless.store_settings import (
    PREFIX,
    URL,
    diskless_store_url,
    open_diskless_store,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from odradek.broker.config.server_config import ServerConfig
    from odradek.broker.environment import NodeEnvironment
    from odradek.seams import Seams
    from odradek.seams.files import Files
    from odradek.seams.objects import Objects
    from odradek.storage.log.config import LogConfig

log = logging.getLogger("odradek.diskless")

REMEMBERED_STORE: Final = "diskless-store"
"""File in the directory of the metadata log with the identity of a store that is a directory."""
CHECK_SECONDS: Final = 5.0
REMIND_SECONDS: Final = 60.0
_NO_OBJECTS: Final = "diskless/none"
"""Prefix that no object has, so that listing it is a cheap test of the access."""


class DisklessSettings:
    """Current values; times in seconds or ms as named, sizes in bytes."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config

    @property
    def commit_interval_seconds(self) -> float:
        """Maximum time that records are buffered before they are uploaded."""
        return self._config.get_int("diskless.append.commit.interval.ms") / 1000

    @property
    def buffer_bytes_max(self) -> int:
        """Size of buffered records at which they are uploaded."""
        return self._config.get_int("diskless.append.buffer.max.bytes")

    @property
    def fetch_poll_interval_seconds(self) -> float:
        return self._config.get_int("diskless.fetch.poll.interval.ms") / 1000

    @property
    def object_cache_bytes_max(self) -> int:
        return self._config.get_int("diskless.object.cache.max.bytes")

    @property
    def snapshot_interval_records(self) -> int:
        return self._config.get_int("diskless.metadata.snapshot.interval.records")

    @property
    def snapshot_interval_bytes(self) -> int:
        return self._config.get_int("diskless.metadata.snapshot.interval.bytes")

    @property
    def producer_id_expiration_ms(self) -> int:
        return self._config.get_int("producer.id.expiration.ms")


class TopicLogConfigs:
    """Effective configs of diskless topics, computed again when a config of the topic or the broker changes."""

    def __init__(
        self,
        topic_configs: Callable[[str], Mapping[str, str]],
        log_config: Callable[[Mapping[str, str] | None], LogConfig],
    ) -> None:
        self._topic_configs = topic_configs
        self._log_config = log_config
        self._known: dict[str, tuple[Mapping[str, str], LogConfig, LogConfig]] = {}

    def get(self, topic: str) -> LogConfig:
        configs, defaults = self._topic_configs(topic), self._log_config(None)
        known = self._known.get(topic)
        if known is not None and known[0] is configs and known[1] is defaults:
            return known[2]
        config = self._log_config(configs)
        self._known[topic] = configs, defaults, config
        return config

    def forget(self, topics: Iterable[str]) -> None:
        """Remove the configs of deleted topics."""
        for topic in topics:
            self._known.pop(topic, None)


async def open_store(environment: NodeEnvironment) -> Objects:
    """Open the object store of diskless topics; sends no request. Raises WrongConfig for invalid configs."""
    properties = environment.config.layers.effective()
    opened = partial(
        open_diskless_store,
        properties,
        environment.seams,
        cluster_id=environment.cluster_id,
        remembered_in=environment.directories.metadata.path / REMEMBERED_STORE,
    )
    try:
        if environment.config.get_bool("remote.log.storage.system.enable"):
            check_other_directory(properties, environment.seams.files)
        if environment.metadata.image.diskless_topics:
            check_same_store(
                diskless_store_url(
                    properties.get(URL, ""),
                    properties.get(f"{PREFIX}prefix", ""),
                    environment.cluster_id,
                ),
                environment.directories.metadata.path / REMEMBERED_STORE,
                environment.seams.files,
            )
        return await environment.seams.offload.run(opened, lane=OBJECTS_LANE)
    except ValueError as error:
        raise WrongConfig(str(error)) from None


def check_same_store(url: str, remembered_in: Path, files: Files) -> None:
    """Check that the store is the one that this broker has used, or the same directory at another path.

    Otherwise, this broker could not read the objects of the others, and they could not read its own. Raises ValueError.
    """
    from odradek.seams.store_directory import MARKER_FILE, recorded_store
    from odradek.storage.tiered.store_location import directory_of_store

    before, marker = recorded_store(files, remembered_in)
    directory = directory_of_store(url)
    now = url if directory is None else str(directory)
    if before in (None, now):
        return
    if directory is not None and marker:
        with suppress(OSError):
            if bytes(files.read(Path(directory / MARKER_FILE))).decode() == marker:
                return
    raise ValueError(
        f"{URL} is {now}, but this broker has the objects of diskless topics in {before}: change it back. If all objects"
        f" have been copied, delete {remembered_in} and start again"
    )


def check_other_directory(properties: Mapping[str, str], files: Files) -> None:
    """Check that tiered storage and diskless topics do not use the same directory, because the identities of both
    stores would be equal. Raises ValueError."""
    from odradek.storage.tiered.remote_storage_settings import RemoteStorageSettings
    from odradek.storage.tiered.store_location import directory_of_store

    tiered = directory_of_store(RemoteStorageSettings(properties).url(files))
    of_any_cluster = directory_of_store(diskless_store_url(properties.get(URL, ""), "", "cluster"))
    diskless = None if of_any_cluster is None else of_any_cluster.parent
    if tiered is not None and diskless in (tiered, tiered.parent):
        raise ValueError(
            f"{URL} is {diskless}, which is the directory of tiered storage: specify another directory"
        )


async def check_store(objects: Objects, seams: Seams) -> None:
    """Check at the start whether the store responds and grants access, and log an error every minute until it does.

    Everything that does not need the store continues in the meantime.
    """
    started = logged_at = None
    while True:
        try:
            await seams.offload.run(
                lambda: next(objects.pages(_NO_OBJECTS), None), lane=OBJECTS_LANE
            )
        except ObjectsUnavailable as error:
            now = seams.clock.monotonic()
            started = now if started is None else started
            if logged_at is None or now - logged_at >= REMIND_SECONDS:
                logged_at = now
                log.error("%s Diskless topics cannot be written or read", _explanation(error))
            await seams.clock.sleep(CHECK_SECONDS)
        else:
            if started is not None:
                seconds = seams.clock.monotonic() - started
                log.warning(
                    "the object store of diskless topics is available after %.0f s", seconds
                )
            return


def _explanation(error: ObjectsUnavailable) -> str:
    if isinstance(error, ObjectDenied):
        return (
            f"the object store of diskless topics denies access ({error}): check its credentials and"
            " permissions."
        )
    return f"the object store of diskless topics is unavailable ({error})."
