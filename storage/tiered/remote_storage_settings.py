"""Creates the RemoteStorageManager from a broker's properties.

The properties are `remote.log.storage.<name>` and, with precedence, `<prefix><name>`, where the
prefix is the value of `remote.log.storage.manager.impl.prefix` (Kafka's, `rsm.config.` by default):

    url                   a directory or its file:// URL, s3://bucket/prefix, gs://…, az://…, memory:///
    prefix                added before the names of all objects
    aws_*, google_*, azure_*  options of that kind of store (aws_endpoint, aws_region, …)
    compression           none, zstd or lz4, in chunks of
    chunk.bytes           this many bytes of the log
    encryption.key.file   keys (encryption.py)
    encryption.enabled    true: encrypt new copies with the first key
    connect.timeout.ms, request.timeout.ms, retries, retry.backoff.ms, retry.backoff.max.ms,
    retry.timeout.ms      timeouts and retries of requests to the store
    dir                   LocalTieredStorage's name for the directory, instead of url

`store_location.py` resolves `url` and `dir` to the location of the objects.

An invalid property raises ValueError with its name and the valid values.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from odradek.seams.files import Path
from odradek.seams.objects import DEFAULT_STORE_TIMEOUTS, StoreTimeouts
from odradek.storage.tiered.chunks import CHUNK_BYTES, Compression
from odradek.storage.tiered.store_location import resolved_url

if TYPE_CHECKING:
    from odradek.seams import Seams
    from odradek.seams.files import Files
    from odradek.storage.tiered.encryption import KeyRing
    from odradek.storage.tiered.object_store import StorageFormat
    from odradek.storage.tiered.remote_storage_manager import RemoteStorageManager

OBJECT_STORE = "odradek.ObjectStore"
LOCAL_TIERED_STORAGE = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
"""Class of Kafka's own tests: a directory with the same file names."""

CLASS_NAME = "remote.log.storage.manager.class.name"
IMPL_PREFIX = "remote.log.storage.manager.impl.prefix"
DEFAULT_IMPL_PREFIX = "rsm.config."
OWN_PREFIX = "remote.log.storage."

_NAMES = (
    "url", "prefix", "dir", "compression", "chunk.bytes", "encryption.key.file",
    "encryption.enabled", "connect.timeout.ms", "request.timeout.ms", "retries", "retry.backoff.ms",
    "retry.backoff.max.ms", "retry.timeout.ms",
)  # fmt: skip
_STORES_OWN = ("aws_", "google_", "azure_")
_FIXED = {"delete.on.close": "false", "delete.enable": "true"}
"""LocalTieredStorage's properties that are supported with this value only."""


def open_remote_storage(
    properties: Mapping[str, str],
    seams: Seams,
    *,
    cluster_id: str = "",
    remembered_in: Path | None = None,
) -> RemoteStorageManager:
    """RemoteStorageManager for the broker's properties. It sends no request, because the store may
    be unavailable when the broker starts. The path of a directory is stored in `remembered_in`,
    so that another directory is not used or created by mistake later."""
    from odradek.seams.store_directory import recorded_location
    from odradek.storage.tiered.object_store import ObjectStoreStorage

    settings = RemoteStorageSettings(properties)
    recorded = None if remembered_in is None else recorded_location(seams.files, remembered_in)
    return ObjectStoreStorage(
        seams.open_objects(
            settings.url(seams.files, recorded),
            settings.store_options(),
            settings.timeouts(),
            None if remembered_in is None else str(remembered_in),
        ),
        seams.entropy,
        form=settings.form(seams.files),
        cluster_id=cluster_id,
    )


class RemoteStorageSettings:
    """Parsed properties of the remote storage. All methods may raise ValueError."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._class_name = properties.get(CLASS_NAME) or ""
        if self._class_name not in (OBJECT_STORE, LOCAL_TIERED_STORAGE):
            raise ValueError(
                f"{CLASS_NAME} is {self._class_name!r}: set it to {OBJECT_STORE}, with "
                f"{OWN_PREFIX}url, or to {LOCAL_TIERED_STORAGE}, with "
                f"{DEFAULT_IMPL_PREFIX}dir; Java plug-ins are not supported"
            )
        prefix = properties.get(IMPL_PREFIX) or DEFAULT_IMPL_PREFIX
        self._values: dict[str, str] = {}
        self._property_names: dict[str, str] = {}
        for beginning in (OWN_PREFIX, prefix):
            for name, value in sorted(properties.items()):
                if name.startswith(beginning) and not _is_kafkas(name):
                    self._take(name, name.removeprefix(beginning), value)

    def url(self, files: Files, recorded: str | None = None) -> str:
        """URL of the store; `recorded` is the directory that this node used as its store before."""
        name = "url"
        if self._class_name == LOCAL_TIERED_STORAGE and "dir" in self._values:
            name = "dir"
        given = self._values.get(name, "")
        if name == "url" and "://" not in given and not given.startswith(("/", "~")):
            raise ValueError(
                f"{self._where('url')} is {given!r}: set it to the URL of a store, like "
                "file:///var/lib/tiered, s3://bucket/prefix, gs://bucket or az://container"
            )
        try:
            return resolved_url(
                given, files, prefix=self._values.get("prefix", ""), recorded=recorded
            )
        except ValueError as error:
            raise ValueError(f"{self._where(name)}: {error}") from None

    def store_options(self) -> dict[str, str]:
        return {name: value for name, value in self._values.items() if name.startswith(_STORES_OWN)}

    def timeouts(self) -> StoreTimeouts:
        usual = DEFAULT_STORE_TIMEOUTS
        return StoreTimeouts(
            connect_seconds=self._seconds("connect.timeout.ms", usual.connect_seconds),
            request_seconds=self._seconds("request.timeout.ms", usual.request_seconds),
            retries=self._number("retries", usual.retries, least=0),
            first_backoff_seconds=self._seconds("retry.backoff.ms", usual.first_backoff_seconds),
            longest_backoff_seconds=self._seconds(
                "retry.backoff.max.ms", usual.longest_backoff_seconds
            ),
            all_retries_seconds=self._seconds("retry.timeout.ms", usual.all_retries_seconds),
        )

    def form(self, files: Files) -> StorageFormat:
        from odradek.storage.tiered.object_store import StorageFormat

        named = self._values.get("compression", Compression.NONE.value)
        try:
            compression = Compression(named)
        except ValueError:
            kinds = ", ".join(each.value for each in Compression)
            raise self._wrong("compression", f"one of {kinds}") from None
        encrypts = self._values.get("encryption.enabled", "false").lower()
        if encrypts not in ("true", "false"):
            raise self._wrong("encryption.enabled", "true or false")
        key_file = self._values.get("encryption.key.file")
        if encrypts == "true" and not key_file:
            raise self._wrong("encryption.key.file", "the path of a file with keys")
        return StorageFormat(
            compression=compression,
            chunk_bytes=self._number("chunk.bytes", CHUNK_BYTES, least=1024),
            keys=self._key_ring(files, key_file) if key_file else None,
            encrypts=encrypts == "true",
        )

    def _key_ring(self, files: Files, path: str) -> KeyRing:
        from odradek.storage.tiered.encryption import KeyRing, check_installed

        try:
            check_installed()
            return KeyRing.parse(files.read(Path(path)).decode())
        except (OSError, ValueError) as error:
            raise ValueError(f"{self._where('encryption.key.file')}: {path}: {error}") from error

    def _take(self, name: str, short: str, value: str) -> None:
        if short.startswith(("aws.", "google.", "azure.")):
            short = short.replace(".", "_")
        served = _FIXED.get(short)
        if served is not None:
            if value != served:
                raise ValueError(f"{name} is {value!r}: only {served!r} is supported")
            return
        if short not in _NAMES and not short.startswith(_STORES_OWN):
            close = get_close_matches(short, _NAMES, 1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"{name} is not a property of the remote storage{meant}")
        self._values[short] = value
        self._property_names[short] = name

    def _number(self, short: str, default: int, *, least: int) -> int:
        text = self._values.get(short)
        if text is None:
            return default
        if not text.isdecimal() or not least <= int(text) < 1 << 31:
            raise self._wrong(short, f"a whole number from {least} on")
        return int(text)

    def _seconds(self, short: str, default: float) -> float:
        return self._number(short, round(default * 1000), least=1) / 1000

    def _wrong(self, short: str, may_be: str) -> ValueError:
        return ValueError(
            f"{self._where(short)} is {self._values.get(short, '')!r}: set it to {may_be}"
        )

    def _where(self, short: str) -> str:
        return self._property_names.get(short, f"{OWN_PREFIX}{short}")


def _is_kafkas(name: str) -> bool:
    return name.startswith(f"{OWN_PREFIX}manager.") or name == f"{OWN_PREFIX}system.enable"
