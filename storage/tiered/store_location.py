"""Resolves what a user gives as the object store, a directory or a URL, to the store's URL.

A directory and its `file://` URL mean the same store for every command and config: relative paths and `~` are
expanded, percent-encoding is decoded in URLs, and symbolic links are kept. The objects are in one of two directories:

    DIR/kafka-tiered-storage    as in Kafka's LocalTieredStorage; every new store is created there
    DIR                         if it is a store itself: it has the marker of a store, or directories of partitions

A resolved URL resolves to itself. URLs of object storage (s3://…, gs://…, az://…, memory:///) are returned unchanged.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path as OsPath
from urllib.parse import quote, unquote

from odradek.seams.files import Files, Path
from odradek.storage.tiered.object_names import parse_directory

LOCAL_STORE = "kafka-tiered-storage"
"""Directory of LocalTieredStorage's store within its `dir`."""

_EXAMPLES = "a directory or a URL like s3://bucket/prefix, gs://bucket or az://container"
_FILE_URL = "file://"


def directory_of(target: str) -> OsPath | None:
    """Return the absolute directory that a path or `file://` URL names; None for a URL of object storage.

    Raises ValueError for an empty text, for one that looks like a mistyped URL, which would become a directory,
    and for a `file://` URL of another host.
    """
    if not target.strip():
        raise ValueError(f"is empty: specify {_EXAMPLES}")
    scheme, separator, rest = target.partition("://")
    if separator:
        if scheme.lower() != "file":
            return None
        return _absolute(_path_of_url(target, rest))
    if ":" in target.partition("/")[0]:
        raise ValueError(f"{target!r} is not a valid URL: specify {_EXAMPLES}")
    return _absolute(target)


def resolved_url(
    target: str, files: Files, *, prefix: str = "", recorded: str | None = None
) -> str:
    """Return the URL of the store that a directory or a URL names.

    `prefix` is added before the names of all objects. `recorded` is the directory that a node used as its store
    before: the store may be unmounted. Raises ValueError as `directory_of`, and if two directories are stores.
    """
    prefix = prefix.strip("/")
    directory = directory_of(target)
    if directory is None:
        return f"{target.rstrip('/')}/{prefix}" if prefix else target
    outer, inner = directory / prefix, directory / LOCAL_STORE / prefix
    return f"{_FILE_URL}{quote(str(_store_directory(outer, inner, files, recorded)))}"


def directory_of_store(url: str) -> OsPath | None:
    """Return the directory of a resolved URL; None for object storage."""
    return OsPath(unquote(url.removeprefix(_FILE_URL))) if url.startswith(_FILE_URL) else None


def _store_directory(outer: OsPath, inner: OsPath, files: Files, recorded: str | None) -> OsPath:
    is_outer, is_inner = _is_store(outer, files), _is_store(inner, files)
    if is_outer and is_inner:
        known = [each for each in (outer, inner) if str(each) == recorded]
        if not known:
            raise ValueError(
                f"{outer} and {inner} are both object stores: move one of them to another directory"
            )
        return known[0]
    if is_inner or files.is_directory(Path(inner)):
        return outer if is_outer else inner
    if is_outer or recorded == str(outer) or outer.name == LOCAL_STORE:
        return outer
    return inner


def _is_store(directory: OsPath, files: Files) -> bool:
    """Whether the directory has a marker of a store, or directories of partitions."""
    from odradek.seams.store_directory import MARKER_FILE

    names: list[str] = []
    with suppress(OSError):  # a missing directory
        names = files.list(Path(directory))
    return any(name == MARKER_FILE or parse_directory(name) is not None for name in names)


def _path_of_url(url: str, rest: str) -> str:
    """Return the path of a `file://` URL. A path after `~` is in the user's home directory."""
    path = unquote(rest)
    if path.lower().startswith("localhost/"):
        path = path[len("localhost") :]
    if not path.startswith(("/", "~")):
        raise ValueError(
            f"{url!r} is not the URL of a directory: write {_FILE_URL}/directory with three slashes,"
            f" or the path {rest!r}"
        )
    return path


def _absolute(path: str) -> OsPath:
    absolute = OsPath(path).expanduser().absolute()
    if ".." in absolute.parts:
        # Only the file system knows the parent of a symbolic link's target
        end = len(absolute.parts) - absolute.parts[::-1].index("..")
        absolute = OsPath(*absolute.parts[:end]).resolve().joinpath(*absolute.parts[end:])
    return OsPath("/", *absolute.parts[1:])  # one leading slash: pathlib keeps two
