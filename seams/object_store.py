"""Object storage through obstore's synchronous calls, which release the GIL while they wait.

`memory:///` is a store of its own each time it is opened, `file:///path` a directory made when
missing, `s3://`, `gs://` and `az://` take their credentials from options or the environment as
obstore documents. Retries are few and short here: who calls has a policy of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from odradek.seams.files import Buffer
from odradek.seams.objects import ObjectInfo, ObjectMissing, Objects, ObjectsUnavailable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

MULTIPART_BYTES = 8 << 20
"""An object up to this size is one request; a larger one goes in parts of it."""

_OPTION_PREFIXES = ("aws_", "google_", "azure_")
_LOCAL_SCHEMES = ("memory:", "file:")


def open_objects(url: str, options: Mapping[str, str] | None = None) -> Objects:
    """The store at `url`; `options` are obstore's for its kind (`aws_endpoint`, `aws_region`, …).

    Imports obstore, which nothing else in the house does. ValueError for a URL or option that
    obstore does not know.
    """
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    settings: dict[str, Any] = dict(options or {})
    for name in settings:
        if not name.startswith(_OPTION_PREFIXES):  # obstore would panic
            raise ValueError(f"{name} is no option of an object store ({_OPTION_PREFIXES})")
    if url.startswith("file:"):
        settings.setdefault("mkdir", True)
    if not url.startswith(_LOCAL_SCHEMES):
        settings["retry_config"] = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}
        if any(str(value).startswith("http://") for value in settings.values()):
            settings["client_options"] = {"allow_http": True}
    try:
        return ObjectStoreObjects(from_url(url, **settings))
    except BaseError as error:
        raise ValueError(f"{url}: {_first_line(error)}") from error


class ObjectStoreObjects:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def put(self, key: str, parts: Iterable[Buffer]) -> None:
        from obstore import put

        kept = list(parts)
        with _translated(key):
            if sum(map(len, kept)) <= MULTIPART_BYTES:
                put(self._store, key, b"".join(kept), use_multipart=False)
            else:
                put(self._store, key, iter(kept), chunk_size=MULTIPART_BYTES)

    def get(self, key: str) -> Buffer:
        from obstore import get

        with _translated(key):
            return memoryview(get(self._store, key).bytes())

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        from obstore import get_range
        from obstore.exceptions import BaseError

        if not size:
            self.head(key)
            return b""
        with _translated(key):
            try:
                return memoryview(get_range(self._store, key, start=start, length=size))
            except (BaseError, OSError):
                # Nothing there is no error to us; stores say it in as many words as there are.
                if start < self.head(key).size:
                    raise
        return b""

    def head(self, key: str) -> ObjectInfo:
        from obstore import head

        with _translated(key):
            return ObjectInfo(key, head(self._store, key)["size"])

    def delete(self, key: str) -> None:
        from obstore import delete

        try:
            with _translated(key):
                delete(self._store, key)
        except ObjectMissing:
            pass

    def list(self, prefix: str) -> list[ObjectInfo]:
        from obstore import list as list_objects

        with _translated(prefix):
            found = [
                ObjectInfo(entry["path"], entry["size"])
                for entry in list_objects(self._store, prefix or None).collect()
            ]
        return sorted(found, key=lambda info: info.key)


@contextmanager
def _translated(key: str) -> Iterator[None]:
    from obstore.exceptions import BaseError, NotFoundError

    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        raise ObjectMissing(key) from error
    except (BaseError, OSError) as error:
        raise ObjectsUnavailable(f"{key}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """obstore adds the debug form of its Rust error below."""
    return str(error).partition("\n")[0]
