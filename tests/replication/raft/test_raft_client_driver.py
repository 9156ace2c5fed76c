"""The driver of the Raft client with concurrent requests, responses and disk operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from odradek.replication.raft.actions import PersistElectionState, RaftAction, SendRequest
from odradek.replication.raft.election_state import ElectionState
from odradek.replication.raft.messages import (
    ApiVersionsRequest,
    Endpoints,
    RaftRequest,
    RaftResponse,
)
from odradek.replication.raft.metadata_log_writer import MetadataLogWriter
from odradek.replication.raft.network_channel import NodeNotRunning, RequestFailed
from odradek.replication.raft.raft_client_driver import Actions, RaftClientDriver
from tests.replication.raft.raft_clients import machine
from tests.support.metadata_nodes import new_node, raw_log


class Held:
    """Network channel and disk whose operations wait until the test releases them."""

    def __init__(self) -> None:
        self.requests: list[RaftRequest] = []
        self.responses: list[trio.Event] = []
        self.writes: list[trio.Event] = []

    async def send_request(
        self, to: int, endpoints: Endpoints, request: RaftRequest
    ) -> RaftResponse:
        self.requests.append(request)
        self.responses.append(trio.Event())
        await self.responses[-1].wait()
        return RaftResponse()

    async def blocking(self, call: Callable[..., Any], *args: Any) -> None:
        self.writes.append(trio.Event())
        with trio.fail_after(5):  # a failed test does not release it
            await self.writes[-1].wait()


class SilentListener:
    """A listener that ignores all callbacks."""

    def committed(self, high_watermark: int) -> None: ...

    def control_appended(self) -> None: ...

    def quorum_changed(self) -> None: ...

    def quorum_failed(self, error: Exception) -> None: ...


def driver_of(held: Held) -> RaftClientDriver:
    node = new_node()
    log = raw_log(node.disk, formatted=False)
    quorum = machine(1, 2)
    quorum.start(0)  # its actions are dropped
    return RaftClientDriver(
        node.seams,
        log,
        quorum,
        MetadataLogWriter(node.seams, log, held.blocking),
        node_id=1,
        channel=held,
        listener=SilentListener(),
    )


def wanting(*actions: RaftAction) -> Callable[[int], Actions]:
    """Return an event that makes the state machine return these actions."""
    return lambda now_ms: actions


async def test_newer_request_cancels_the_request_in_flight() -> None:
    held = Held()
    driver = driver_of(held)
    older, newer = (
        SendRequest(number, 2, (), ApiVersionsRequest(cluster_id=str(number))) for number in (1, 2)
    )
    write = PersistElectionState(ElectionState())
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        await driver._event(wanting(older))
        for event in (wanting(write, newer), wanting(write)):
            nursery.start_soon(driver._event, event)
            await wait_all_tasks_blocked()
        held.responses[0].set()
        await wait_all_tasks_blocked()
        assert held.requests == [older.request]
        held.writes[0].set()
        await wait_all_tasks_blocked()
        assert len(held.writes) == 2, "the second event is handled"
        assert held.requests == [older.request, newer.request]
        held.writes[1].set()
        nursery.cancel_scope.cancel()


async def test_event_that_sends_to_the_responding_node_is_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The newer request cancels the older one, whose response the event handles."""
    held = Held()
    driver = driver_of(held)
    older, newer, newest = (
        SendRequest(number, 2, (), ApiVersionsRequest(cluster_id=str(number)))
        for number in (1, 2, 3)
    )
    actions = [newer, PersistElectionState(ElectionState()), newest]
    monkeypatch.setattr(
        driver.raft_client, "handle_response", lambda number, response, now_ms: actions
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        await driver._event(wanting(older))
        await wait_all_tasks_blocked()
        held.responses[0].set()
        await wait_all_tasks_blocked()
        held.writes[0].set()
        await wait_all_tasks_blocked()
        assert held.requests == [older.request, newest.request]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("failure", [NodeNotRunning, RequestFailed])
async def test_refused_connection_is_reported_to_the_state_machine(
    failure: type[RequestFailed], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    driver = driver_of(held)
    received: list[tuple[int, bool]] = []

    async def send_request(to: int, endpoints: Endpoints, request: RaftRequest) -> RaftResponse:
        raise failure("no")

    def failed(number: int, now_ms: int, *, refused: bool) -> Actions:
        received.append((number, refused))
        return ()

    monkeypatch.setattr(held, "send_request", send_request)
    monkeypatch.setattr(driver.raft_client, "handle_request_failure", failed)
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        await driver._event(wanting(SendRequest(7, 2, (), ApiVersionsRequest())))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert received == [(7, failure is NodeNotRunning)]


async def test_flush_that_fails_before_it_starts_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = driver_of(Held())

    def notify() -> None:
        raise ValueError("no")

    monkeypatch.setattr(driver, "wake_waiters", notify)
    with pytest.raises(ValueError, match="no"):
        await driver.flush(1)
    assert driver._flushes == 0
