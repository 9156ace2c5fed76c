"""Request log: a line for each response, at level DEBUG (Kafka's `kafka.request.logger`).

A connection that is accepted while the level is enabled wraps its routes. Other connections do not pay for the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any
from uuid import UUID

from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.route import Route
from odradek.protocol.apis import find_api
from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.image import TopicImage
from odradek.seams.network import Address

Topics = Mapping[UUID, TopicImage]

log = logging.getLogger("odradek.request")

SHOWN_MAX = 10
"""Topics of a request, and errors of a response, in one line."""

_NAMES = (
    "name",
    "topic",
    "topic_name",
    "group_id",
    "transactional_id",
    "resource_name",
    "topic_id",
)
_INDEXES = ("index", "partition_index", "partition")


class LoggedRoutes:
    """Routes of one connection that log its responses. A connection handles one request at a time."""

    def __init__(self, find_route: Callable[[int], Route | None], peer: Address) -> None:
        self._find_route = find_route
        self._peer = peer
        self._routes: dict[int, Route | None] = {}
        self._request = ""
        """Client id and topics of the current request."""
        self._topics: Topics = {}

    def find(self, api_key: int) -> Route | None:
        """Return the route of an API, which logs its responses."""
        if api_key not in self._routes:
            route = self._find_route(api_key)
            self._routes[api_key] = None if route is None else self._logging(route)
        return self._routes[api_key]

    def _logging(self, route: Route) -> Route:
        async def handler(request: Any, ctx: RequestContext) -> Any:
            self._remember(request, ctx)
            return await route.handler(request, ctx)

        def handler_nowait(request: Any, ctx: RequestContext) -> Any:
            self._remember(request, ctx)
            assert route.handler_nowait is not None
            return route.handler_nowait(request, ctx)

        def write(api_key: int, version: int, values: Any) -> Any:
            self._log(api_key, version, values)
            return route.write(api_key, version, values)

        def write_steps(api_key: int, version: int, values: Any) -> Any:
            assert route.write_steps is not None
            steps = route.write_steps(api_key, version, values)
            if steps is not None:  # otherwise `write` writes and logs it
                self._log(api_key, version, values)
            return steps

        return replace(
            route,
            handler=handler,
            write=write,
            handler_nowait=None if route.handler_nowait is None else handler_nowait,
            write_steps=None if route.write_steps is None else write_steps,
        )

    def _remember(self, request: Any, ctx: RequestContext) -> None:
        self._topics = ctx.services.metadata.image.topics_by_id
        named = _shown(_named_topics(request, self._topics))
        self._request = f", client {ctx.client_id}" + (f", topics {named}" if named else "")

    def _log(self, api_key: int, version: int, values: Any) -> None:
        if log.isEnabledFor(logging.DEBUG):
            api = find_api(api_key)
            log.debug(
                "Completed %s v%d from %s%s: %s",
                api_key if api is None else api.title,
                version,
                self._peer,
                self._request,
                _shown(_errors(values, self._topics)) or ErrorCode.none.name.upper(),
            )


def _shown(texts: Iterator[str]) -> str:
    shown: list[str] = []
    for text in texts:
        if len(shown) == SHOWN_MAX:
            shown.append("…")
            break
        shown.append(text)
    return ", ".join(shown)


def _named_topics(request: Any, topics: Topics) -> Iterator[str]:
    for topic in getattr(request, "topics", None) or ():
        name = _label_of_tuple(topic, topics, "") if isinstance(topic, tuple) else topic
        yield name if isinstance(name, str) else _label(_values(name), topics, "")


def _errors(values: Any, topics: Topics, owner: str = "") -> Iterator[str]:
    """Names of error codes in a response, each after the topic or partition that it belongs to."""
    if isinstance(values, list | tuple):
        if isinstance(values, tuple):
            owner = _label_of_tuple(values, topics, owner)
        for each in values:
            yield from _errors(each, topics, owner)
        return
    found = _values(values)
    owner = _label(found, topics, owner)
    code = found.get("error_code")
    if code:
        yield f"{owner} {ErrorCode(code).name.upper()}".lstrip()
    for each in found.values():
        if isinstance(each, list | tuple):
            yield from _errors(each, topics, owner)


def _values(values: Any) -> Mapping[str, Any]:
    if isinstance(values, Mapping):
        return values
    if is_dataclass(values):
        return {each.name: getattr(values, each.name) for each in fields(values)}
    slots: tuple[str, ...] = getattr(values, "__slots__", ())
    return {name: getattr(values, name) for name in slots if hasattr(values, name)}


def _label_of_tuple(values: tuple[Any, ...], topics: Topics, owner: str) -> str:
    """Label of a topic as (name, topic ID, partitions), or of a partition as (requested, result)."""
    if len(values) > 1 and isinstance(values[1], UUID):
        return _label({"name": values[0], "topic_id": values[1]}, topics, owner)
    if values and isinstance(values[0], str):
        return values[0]
    found = _values(values[0]) if values else {}
    return _label({name: found.get(name) for name in ("topic", "topic_id")}, topics, owner)


def _label(values: Mapping[str, Any], topics: Topics, owner: str) -> str:
    """Name in `values`, and the partition in `values` with this name or the owner's."""
    for name in _NAMES:
        found = values.get(name)
        if found:
            owner = topics[found].name if found in topics else str(found)
            break
    for name in _INDEXES:
        if isinstance(values.get(name), int):
            return f"{owner}-{values[name]}"
    return owner
