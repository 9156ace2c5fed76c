"""Loads schemas from a schema registry's REST API, or from a directory.

The driver loads all schemas that a job may need and sends them to the tasks, which therefore need no access and no
password. A directory has a file for each id, such as `7.avsc`, `8.proto` or `9.json`; imports of a `.proto` file
are in the same directory.

Requests to a registry that is temporarily unavailable are retried. Schemas by version and by id are cached in the
process: an export loads schemas before each batch, and then only requests the list of versions.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from http.client import HTTPException, InvalidURL
from pathlib import Path
from threading import Event
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.schemas.column_types import BadSchema
from odradek.seams.values import value_class

log = logging.getLogger("odradek.pipeline")

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"
"""Values of `schemaType` in the REST API; Avro if it is missing."""
TIMEOUT_SECONDS = 30.0
PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each retry."""
BUSY = (429, 500, 502, 503, 504)

_KINDS = {".avsc": AVRO, ".proto": PROTOBUF, ".json": JSON}


class RegistryUnavailable(PipelineError):
    """The registry did not respond, or refused the request."""


class _Busy(RegistryUnavailable):
    """A failed request that may succeed when it is retried."""


@value_class
class Schema:
    """The schema of an id. `references` are all schemas that it uses, directly or indirectly, by the name in the
    reference, each after those that it uses. `origin` is a subject's version, or a file.
    """

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    origin: str = ""

    @property
    def name(self) -> str:
        """Name of the schema in errors."""
        return f"schema {self.id}" + (f" ({self.origin})" if self.origin else "")


def load_schemas(source: str, subjects: Iterable[str], ids: Iterable[int] = ()) -> list[Schema]:
    """Load all versions of the subjects, and the schemas with these ids. `source` is a registry's URL, optionally
    with `user:password@`, or a directory, which has no subjects: all its schemas are loaded. Raises
    RegistryUnavailable, and BadSchema if there is none.
    """
    if "://" not in source:
        found = _in_directory(Path(source))
        wanted = set(ids)
        return [each for each in found if not wanted or each.id in wanted]
    registry = registry_at(source)
    known = {each.id: each for subject in subjects for each in registry.versions(subject)}
    for id in ids:
        if id not in known:
            known[id] = registry.schema(id)
    return [known[id] for id in sorted(known)]


class Registry:
    """Client of a registry's REST API, for reading."""

    def __init__(self, url: str, pause: Callable[[float], object] | None = None) -> None:
        self._pause = pause or Event().wait
        self._cached: dict[str, Schema] = {}
        """Loaded schemas by path."""
        self._versions: dict[str, set[Any]] = {}
        """Versions of each subject at the last request."""
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise RegistryUnavailable(f"the registry's address is not a URL: {error}") from None
        self._authorization: dict[str, str] = {}
        if parts.username is not None:
            given = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            token = base64.b64encode(given.encode()).decode()
            self._authorization = {"Authorization": f"Basic {token}"}
        host = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))

    def versions(self, subject: str) -> list[Schema]:
        """Return all versions of a subject, including soft-deleted ones, because their records may remain."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        numbers = self._get(f"{path}?deleted=true")
        if not isinstance(numbers, list) or not all(isinstance(each, int) for each in numbers):
            raise _invalid_response(f"{self._url}{path}", TypeError("it is not a list of versions"))
        # After a permanent deletion, version numbers may be reused.
        if self._versions.get(subject, set()).difference(numbers):
            for each in [each for each in self._cached if each.startswith(f"{path}/")]:
                del self._cached[each]
        self._versions[subject] = set(numbers)
        return [
            self._cached_schema(f"{path}/{each}?deleted=true", {}, f"version {each} of {subject}")
            for each in numbers
        ]

    def schema(self, id: int) -> Schema:
        return self._cached_schema(f"/schemas/ids/{id}", {"id": id})

    def _cached_schema(self, path: str, more: Mapping[str, Any], origin: str = "") -> Schema:
        """Return the schema at a path, loading it and missing fields if it is not cached."""
        found = self._cached.get(path)
        if found is None:
            found = self._cached[path] = self._load_schema(path, more, origin)
        return found

    def _load_schema(self, path: str, more: Mapping[str, Any], origin: str) -> Schema:
        response = self._get(path)
        references: dict[str, str] = {}
        try:
            self._load_references(response, references)
            kind = response.get("schemaType") or AVRO
            fields = {**response, **more}
            id, text = fields["id"], fields["schema"]
            if not isinstance(id, int) or not isinstance(text, str):
                raise TypeError("its id is not a number, or its schema is not a string")
            return Schema(id, kind, text, tuple(references.items()), origin)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _invalid_response(f"{self._url}{path}", error) from None

    def _load_references(self, response: Mapping[str, Any], references: dict[str, str]) -> None:
        for each in response.get("references") or ():
            if each["name"] not in references:
                subject, version = quote(each["subject"], safe=""), each["version"]
                used = self._get(f"/subjects/{subject}/versions/{version}?deleted=true")
                self._load_references(used, references)
                references[each["name"]] = used["schema"]

    def _get(self, path: str) -> Any:
        for pause_s in PAUSES_SECONDS:
            try:
                return self._get_once(path)
            except _Busy as error:
                log.info("retrying in %s s: %s", pause_s, error)
            self._pause(pause_s)
        return self._get_once(path)

    def _get_once(self, path: str) -> Any:
        headers = {"Accept": "application/vnd.schemaregistry.v1+json", **self._authorization}
        where = f"{self._url}{path}"
        try:
            with urlopen(Request(where, headers=headers), timeout=TIMEOUT_SECONDS) as response:
                return json.load(response)
        except HTTPError as error:
            status = f"{error.code} {error.reason}"
            if error.code == 404:
                raise BadSchema(
                    f"{where}: {status}: the registry has no such subject or id"
                ) from None
            if error.code in (401, 403):
                status += "; give credentials with read access in the URL: user:password@host"
            kind = _Busy if error.code in BUSY else RegistryUnavailable
            raise kind(f"{where}: {status}") from None
        except (URLError, HTTPException, OSError) as error:
            kind = RegistryUnavailable if _is_permanent(error) else _Busy
            raise kind(f"{where}: {error}: run it again when the registry responds") from None
        except (ValueError, RecursionError) as error:
            raise _invalid_response(where, error) from None


def _is_permanent(error: Exception) -> bool:
    """Whether a retry is useless: the request timed out, or the URL is invalid, for which the reason is a text."""
    reason = getattr(error, "reason", error)
    is_no_url = isinstance(error, InvalidURL) or not isinstance(reason, (OSError, HTTPException))
    return is_no_url or isinstance(reason, TimeoutError)


@lru_cache(maxsize=8)
def registry_at(url: str) -> Registry:
    """Return the process's shared client of a registry."""
    return Registry(url)


def _invalid_response(where: str, error: Exception) -> RegistryUnavailable:
    return RegistryUnavailable(f"{where}: the response is not that of a schema registry: {error!r}")


def _in_directory(directory: Path) -> list[Schema]:
    found = []
    try:
        files = sorted(each for each in directory.iterdir() if each.suffix in _KINDS)
        texts = {each.name: each.read_text() for each in files}
    except OSError as error:
        raise RegistryUnavailable(
            f"{error.filename or directory}: {error.strerror}: a registry is a URL, or a"
            " directory with ID.avsc, ID.proto and ID.json"
        ) from None
    except UnicodeDecodeError as error:
        raise RegistryUnavailable(f"{directory}: {error}") from None
    protos = tuple((name, text) for name, text in texts.items() if name.endswith(".proto"))
    for each in files:
        if each.stem.isdecimal():
            kind = _KINDS[each.suffix]
            others = tuple(p for p in protos if p[0] != each.name) if kind == PROTOBUF else ()
            found.append(Schema(int(each.stem), kind, texts[each.name], others, str(each)))
    if not found:
        raise BadSchema(f"{directory} has no file ID.avsc, ID.proto or ID.json")
    return sorted(found, key=lambda each: each.id)
