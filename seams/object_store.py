"""Object storage with obstore's synchronous calls, which release the GIL while they wait.

`memory:///` is a new store each time it is opened. `file:///path` is a directory, which is created if it is missing.
`s3://`, `gs://` and `az://` take credentials from options or the environment, as obstore documents. Puts and deletions
in a directory are synced, both files and names; obstore does not do that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property, partial
from itertools import chain
from pathlib import Path as OsPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from odradek.seams.files import Buffer
from odradek.seams.objects import (
    DEFAULT_STORE_TIMEOUTS,
    ObjectDenied,
    ObjectInfo,
    ObjectMissing,
    Objects,
    ObjectsUnavailable,
    StoreTimeouts,
)
from odradek.seams.store_directory import MARKER_FILE, StoreDirectory, record_store_url, sync

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

MULTIPART_BYTES = 8 << 20
"""An object up to this size is sent in one request, a larger one in parts of this size."""
PARTS_AT_ONCE = 3
"""Concurrent parts of an upload, each with `MULTIPART_BYTES` of memory."""
PIECE_BYTES = 128 << 10
PAGE_OBJECTS = 1000

_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist")
_DENIED = re.compile(r"status code: 40[13] |Permission denied \(os error 13\)")
"""Errors of listings, which obstore reports only as text."""
_XML_ERROR = re.compile(r"<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", re.DOTALL)
_UNFINISHED = re.compile(r".+#\d+")
_URLS = "stores are file:///directory, s3://bucket/prefix, gs://bucket, az://container, memory:///"
_OPTION_PREFIXES = ("aws_", "google_", "azure_")
_ENDPOINTS = (
    "aws_endpoint",
    "aws_endpoint_url",
    "aws_endpoint_url_s3",
    "azure_endpoint",
    "azure_storage_endpoint",
)


def open_objects(
    url: str,
    options: Mapping[str, str] | None = None,
    timeouts: StoreTimeouts = DEFAULT_STORE_TIMEOUTS,
    identity_file: str | None = None,
) -> Objects:
    """Open the store at `url` with obstore's options for its kind (`aws_endpoint`, `aws_region`, …).

    Imports obstore. No request is sent to the store. Raises ValueError for an unknown URL or option.
    """
    from obstore.exceptions import BaseError
    from obstore.store import HTTPStore, from_url

    settings: dict[str, Any] = dict(options or {})
    for name in settings:
        if not name.startswith(_OPTION_PREFIXES):  # obstore would panic
            raise ValueError(
                f"{name} is no option of an object store: those begin with "
                + ", ".join(_OPTION_PREFIXES)
            )
    scheme = url.partition(":")[0]
    if scheme not in ("memory", "file"):
        settings |= _client_settings(timeouts)
        allows_http = settings.pop("aws_allow_http", "false").lower() == "true"
        if allows_http or any(
            each.lower().startswith("http://") for each in _endpoints(options or {})
        ):
            settings["client_options"]["allow_http"] = (
                True  # obstore does not read AWS_ALLOW_HTTP for it
            )
    try:
        if scheme == "file":
            open_store = partial(from_url, url, automatic_cleanup=True, **settings)
            return _open_directory(OsPath(unquote(urlsplit(url).path)), identity_file, open_store)
        store = from_url(url, **settings)
    except BaseError as error:
        raise ValueError(f"{url}: {_one_line(error)}; {_URLS}") from error
    except BaseException as error:
        # Rust panics on an option that obstore does not check
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{url}: invalid options of the object store: {error}") from error
    if isinstance(store, HTTPStore):
        raise ValueError(f"{url} is no object store; {_URLS}")
    if identity_file is not None:
        record_store_url(OsPath(identity_file), url)
    return ObjectStoreObjects(lambda: store)


def _endpoints(options: Mapping[str, object]) -> list[str]:
    """Return the endpoints in the options and the environment (the same names in capitals).

    Raises ValueError for an invalid URL, with which obstore would panic when it is first used.
    """
    settings_by_name = {name.lower(): value for name, value in os.environ.items()} | dict(options)
    found = {name: str(settings_by_name[name]) for name in _ENDPOINTS if name in settings_by_name}
    for name, value in found.items():
        if not value.lower().startswith(("http://", "https://")):
            raise ValueError(f"{name} is {value!r}: it must start with https:// or http://")
    return list(found.values())


def _open_directory(
    root: OsPath, identity_file: str | None, open_store: Callable[[], ObjectStore]
) -> Objects:
    try:
        directory = StoreDirectory(root, None if identity_file is None else OsPath(identity_file))
    except OSError as error:
        raise ValueError(
            f"the directory {root} cannot be created: {error.strerror}; specify another one"
        ) from None
    objects = DirectoryObjects(open_store, directory)
    if not directory.has_recorded_marker:
        objects.store  # noqa: B018  raises now if the store cannot be opened
    return objects


def _client_settings(timeouts: StoreTimeouts) -> dict[str, Any]:
    return {
        "retry_config": {
            "max_retries": timeouts.retries,
            "retry_timeout": timedelta(seconds=timeouts.all_retries_seconds),
            "backoff": {
                "init_backoff": timedelta(seconds=timeouts.first_backoff_seconds),
                "max_backoff": timedelta(seconds=timeouts.longest_backoff_seconds),
                "base": 2,
            },
        },
        "client_options": {
            "connect_timeout": timedelta(seconds=timeouts.connect_seconds),
            "timeout": timedelta(seconds=timeouts.request_seconds),
        },
    }


class ObjectStoreObjects(Objects):
    def __init__(self, open_store: Callable[[], ObjectStore]) -> None:
        self._open_store = open_store

    @cached_property
    def store(self) -> ObjectStore:
        """obstore's store; its directory must exist."""
        return self._open_store()

    def put(self, key: str, parts: Iterable[Buffer]) -> None:
        from obstore import put

        coming = _Parts(parts)
        first, whole = coming.up_to(MULTIPART_BYTES)
        try:
            with _translated(key):
                if whole:
                    put(self.store, key, iter(first), use_multipart=False)
                    return
                put(
                    self.store,
                    key,
                    chain(first, coming),
                    chunk_size=MULTIPART_BYTES,
                    max_concurrency=PARTS_AT_ONCE,
                )
        except ObjectsUnavailable:
            coming.raise_own_error()
            raise

    def make_durable(self, key: str) -> None:
        """Do nothing: a store responds after the object is durable."""

    def get(self, key: str) -> Buffer:
        from obstore import get

        with _translated(key):
            return memoryview(get(self.store, key).bytes())

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        from obstore import get_range
        from obstore.exceptions import BaseError, NotFoundError

        if not size:
            self.head(key)
            return b""
        with _translated(key):
            try:
                return memoryview(get_range(self.store, key, start=start, length=size))
            except (NotFoundError, FileNotFoundError):
                raise
            except (BaseError, OSError):
                # A missing object is not an error; stores report it with different errors.
                if start < self.head(key).size:
                    raise
        return b""

    def head(self, key: str) -> ObjectInfo:
        from obstore import head

        with _translated(key):
            found = head(self.store, key)
        return ObjectInfo(key, found["size"], _modified_ms(found))

    def delete(self, key: str) -> None:
        from obstore import delete

        try:
            with _translated(key):
                delete(self.store, key)
        except ObjectMissing:
            pass

    def delete_all(self, keys: Iterable[str]) -> None:
        from obstore import delete

        wanted = list(keys)
        try:
            with _translated(", ".join(wanted)):
                delete(self.store, wanted)
        except ObjectMissing:  # this store reports missing objects, and may have stopped at one
            for key in wanted:
                self.delete(key)

    def pages(self, prefix: str, after: str = "") -> Iterator[Sequence[ObjectInfo]]:
        from obstore import list as list_objects

        with _translated(prefix):
            stream = list_objects(
                self.store, prefix or None, offset=after or None, chunk_size=PAGE_OBJECTS
            )
        while True:
            with _translated(prefix):
                page = next(stream, None)
            if page is None:
                return
            yield [_info(entry) for entry in page]

    def directories(self, prefix: str) -> Sequence[str]:
        from obstore import list_with_delimiter

        with _translated(prefix):
            found = list_with_delimiter(self.store, prefix or None)["common_prefixes"]
        return sorted(each.rstrip("/").rpartition("/")[2] for each in found)

    def outside_directories(self, prefix: str) -> Sequence[ObjectInfo]:
        from obstore import list_with_delimiter

        with _translated(prefix):
            found = list_with_delimiter(self.store, prefix or None)["objects"]
        return sorted(map(_info, found), key=lambda each: each.key)

    def sweep(self, put_before_ms: int) -> Sequence[str]:
        return []


class DirectoryObjects(ObjectStoreObjects):
    """Objects as files; the parts of their keys are directories below `root`.

    If another directory is at the path (`store_directory`: unmounted or removed), the store is unavailable, not empty.
    """

    def __init__(self, open_store: Callable[[], ObjectStore], directory: StoreDirectory) -> None:
        super().__init__(open_store)
        self._root = directory.root
        self._check_root = directory.check
        self._begin = directory.ensure_marker

    def put(self, key: str, parts: Iterable[Buffer]) -> None:
        self._check_root()
        self._begin()
        super().put(key, parts)
        self.make_durable(key)
        self._check_root()

    def make_durable(self, key: str) -> None:
        path = self._root / key
        with _translated(key):
            sync(path)
            for directory in path.parents:
                sync(directory)
                if directory == self._root:
                    return

    def get(self, key: str) -> Buffer:
        self._check_root()
        return super().get(key)

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        self._check_root()
        return super().get_range(key, start, size)

    def get_range_into(self, key: str, start: int, into: memoryview) -> int:
        """Read without obstore, which allocates and zeroes new memory for each read and needs three times as long."""
        self._check_root()
        read = 0
        with _translated(key), open(self._root / key, "rb", buffering=0) as file:
            file.seek(start)
            while read < len(into) and (more := file.readinto(into[read:])):
                read += more
        return read

    def head(self, key: str) -> ObjectInfo:
        self._check_root()
        return super().head(key)

    def delete(self, key: str) -> None:
        self.delete_all([key])

    def delete_all(self, keys: Iterable[str]) -> None:
        """Delete durably, because readers without a broker would read an object that a crash restored."""
        directories: dict[OsPath, None] = {}
        for key in keys:
            self._check_root()
            super().delete(key)
            directories[(self._root / key).parent] = None
        for directory in directories:
            self._sync_names(directory)

    def _sync_names(self, directory: OsPath) -> None:
        """Sync a directory, or its parent if it was removed with its last object."""
        with _translated(str(directory)):
            for each in (directory, *directory.parents):
                with suppress(FileNotFoundError):
                    sync(each)
                    return
                if each == self._root:
                    self._check_root()
                    return

    def pages(self, prefix: str, after: str = "") -> Iterator[Sequence[ObjectInfo]]:
        """List directory by directory in the order of keys; obstore lists in the disk's order."""
        from obstore import list_with_delimiter

        self._check_root()
        with _translated(prefix):
            found = list_with_delimiter(self.store, prefix or None)
        objects = [entry for entry in found["objects"] if entry["path"] != MARKER_FILE]
        here = [(entry["path"], _info(entry)) for entry in objects if entry["path"] > after]
        below = [
            (name, None)
            for path in found["common_prefixes"]
            for name in [f"{path}/"]
            if name > after or after.startswith(name)
        ]
        page = []
        for path, info in sorted([*here, *below], key=lambda each: each[0]):
            if info is not None:
                page.append(info)
            if page and (info is None or len(page) == PAGE_OBJECTS):
                yield page
                page = []
            if info is None:
                yield from self.pages(path, after)
        if page:
            yield page

    def directories(self, prefix: str) -> Sequence[str]:
        self._check_root()
        return super().directories(prefix)

    def outside_directories(self, prefix: str) -> Sequence[ObjectInfo]:
        self._check_root()
        return [each for each in super().outside_directories(prefix) if each.key != MARKER_FILE]

    def sweep(self, put_before_ms: int) -> Sequence[str]:
        """Remove incomplete files; obstore writes `<name>#<number>` and renames it."""
        swept = []
        with _translated(str(self._root)):
            for path in sorted(self._root.rglob("*#*")):
                if path.is_dir() or not _UNFINISHED.fullmatch(path.name):
                    continue
                with suppress(FileNotFoundError):  # the upload completed in the meantime
                    if path.stat().st_mtime_ns // 1_000_000 < put_before_ms:
                        path.unlink()
                        swept.append(path.relative_to(self._root).as_posix())
        return swept


class _Parts:
    """Iterator over the parts of a put for obstore; it keeps errors of reading the parts.

    obstore copies a part while it holds the GIL, so the parts are small.
    """

    def __init__(self, parts: Iterable[Buffer]) -> None:
        self._pieces = _pieces(parts)
        self._error: BaseException | None = None

    def __iter__(self) -> _Parts:
        return self

    def __next__(self) -> Buffer:
        try:
            return next(self._pieces)
        except StopIteration:
            raise
        except BaseException as error:
            self._error = error
            raise

    def up_to(self, size: int) -> tuple[list[Buffer], bool]:
        """Read parts up to more than `size` bytes; also return whether these are all parts."""
        taken: list[Buffer] = []
        total = 0
        for part in self:
            taken.append(part)
            total += len(part)
            if total > size:
                return taken, False
        return taken, True

    def raise_own_error(self) -> None:
        if self._error is not None:
            raise self._error


def _pieces(parts: Iterable[Buffer]) -> Iterator[Buffer]:
    for part in parts:
        if len(part) <= PIECE_BYTES:
            yield part
            continue
        view = memoryview(part)
        for start in range(0, len(view), PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]


def _info(entry: ObjectMeta) -> ObjectInfo:
    return ObjectInfo(entry["path"], entry["size"], _modified_ms(entry))


def _modified_ms(entry: ObjectMeta) -> int:
    return round(entry["last_modified"].timestamp() * 1000)


@contextmanager
def _translated(key: str) -> Iterator[None]:
    from obstore.exceptions import (
        BaseError,
        NotFoundError,
        PermissionDeniedError,
        UnauthenticatedError,
    )

    try:
        yield
    except (NotFoundError, FileNotFoundError, IsADirectoryError) as error:
        if _NO_BUCKET.search(str(error)):
            raise ObjectsUnavailable(_error_text(key, error)) from error
        raise ObjectMissing(key) from error
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        raise ObjectDenied(_error_text(key, error)) from error
    except (TypeError, ValueError) as error:  # a name that the store cannot have
        raise ObjectsUnavailable(_error_text(key, error)) from error
    except (BaseError, OSError) as error:
        kind = ObjectDenied if _DENIED.search(str(error)) else ObjectsUnavailable
        raise kind(_error_text(key, error)) from error


def _error_text(key: str, error: Exception) -> str:
    return f"{key}: {_one_line(error)}" if key else _one_line(error)


def _one_line(error: Exception) -> str:
    """Format an error in one line, without the debug output of obstore and the XML of the store."""
    text = str(error)
    line = text.partition("\n")[0]
    if (response := _XML_ERROR.search(text)) is None:
        return line
    return f"{line.partition('<')[0].rstrip(' :')}: {response[1]}: {response[2]}"
