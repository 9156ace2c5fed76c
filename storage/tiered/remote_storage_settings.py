"""Creates the RemoteStorageManager from a broker's properties.

The properties are `remote.log.storage.<name>` and, with precedence, `<prefix><name>`, where the
prefix is the value of `remote.log.storage.manager.impl.prefix` (Kafka's, `rsm.config.` by default):

    url                   a directory or its file:// URL, s3://bucket/prefix, gs://…, az://…, memory:///
    prefix                added before the names of all objects
    compression           none, zstd or lz4, in chunks of
    chunk.bytes           this many bytes of the log
    encryption.key.file   keys (encryption.py)
    encryption.enabled    true: encrypt new copies with the first key
    dir                   LocalTieredStorage's name for the directory, instead of url

and those of every object store (`store_properties.py`). `store_location.py` resolves `url` and
`dir` to the location of the objects.

An invalid property raises ValueError with its name and the valid values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from odradek.seams.files import Path
from odradek.storage.store_properties import StoreProperties
from odradek.storage.tiered.chunks import CHUNK_BYTES, Compression
from odradek.storage.tiered.store_location import resolved_url

if TYPE_CHECKING:
    from odradek.seams import Seams
    from odradek.seams.files import Files
    from odradek.seams.objects import StoreTimeouts
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
    "url", "prefix", "dir", "compression", "chunk.bytes", "encryption.key.file", "encryption.enabled",
)  # fmt: skip
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
        self._properties = StoreProperties("the remote storage", OWN_PREFIX, _NAMES)
        for beginning in (OWN_PREFIX, prefix):
            for name, value in sorted(properties.items()):
                if name.startswith(beginning) and not _is_kafkas(name):
                    self._take(name, name.removeprefix(beginning), value)

    def url(self, files: Files, recorded: str | None = None) -> str:
        """URL of the store; `recorded` is the directory that this node used as its store before."""
        name = "url"
        if self._class_name == LOCAL_TIERED_STORAGE and "dir" in self._properties:
            name = "dir"
        given = self._properties.get(name)
        if name == "url" and "://" not in given and not given.startswith(("/", "~")):
            raise ValueError(
                f"{self._properties.full_name('url')} is {given!r}: set it to the URL of a store, like "
                "file:///var/lib/tiered, s3://bucket/prefix, gs://bucket or az://container"
            )
        try:
            return resolved_url(
                given, files, prefix=self._properties.get("prefix"), recorded=recorded
            )
        except ValueError as error:
            raise ValueError(f"{self._properties.full_name(name)}: {error}") from None

    def store_options(self) -> dict[str, str]:
        return self._properties.options()

    def timeouts(self) -> StoreTimeouts:
        return self._properties.timeouts()

    def form(self, files: Files) -> StorageFormat:
        from odradek.storage.tiered.object_store import StorageFormat

        properties = self._properties
        named = properties.get("compression", Compression.NONE.value)
        try:
            compression = Compression(named)
        except ValueError:
            kinds = ", ".join(each.value for each in Compression)
            raise properties.wrong("compression", f"one of {kinds}") from None
        encrypts = properties.get("encryption.enabled", "false").lower()
        if encrypts not in ("true", "false"):
            raise properties.wrong("encryption.enabled", "true or false")
        key_file = properties.get("encryption.key.file")
        if encrypts == "true" and not key_file:
            raise properties.wrong("encryption.key.file", "the path of a file with keys")
        return StorageFormat(
            compression=compression,
            chunk_bytes=properties.number("chunk.bytes", CHUNK_BYTES, least=1024),
            keys=self._key_ring(files, key_file) if key_file else None,
            encrypts=encrypts == "true",
        )

    def _key_ring(self, files: Files, path: str) -> KeyRing:
        from odradek.storage.tiered.encryption import KeyRing, check_installed

        try:
            check_installed()
            return KeyRing.parse(files.read(Path(path)).decode())
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{self._properties.full_name('encryption.key.file')}: {path}: {error}"
            ) from error

    def _take(self, name: str, short: str, value: str) -> None:
        served = _FIXED.get(short)
        if served is None:
            self._properties.take(name, short, value)
        elif value != served:
            raise ValueError(f"{name} is {value!r}: only {served!r} is supported")


def _is_kafkas(name: str) -> bool:
    return name.startswith(f"{OWN_PREFIX}manager.") or name == f"{OWN_PREFIX}system.enable"
