"""Fetcher: one task, one connection and one fetch session with the broker of leaders.

Each round determines the next actions of the partitions (`fetcher_partitions.py`), then sends one
request: offset queries if there are any, otherwise Fetch. Changes of logs run concurrently.

A leader without news holds a Fetch for replica.fetch.wait.max.ms, and sends no other response on
that connection meanwhile. So the maximum wait is shorter if a partition is due earlier. If a
partition gets a new leader epoch, producers may be waiting for this follower: the Fetch is
cancelled and its connection closed.

A lost connection delays all partitions together and keeps their pending requests.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Protocol

import trio

from odradek.client.connection import MAX_RESPONSE_BYTES, BrokerConnection, open_connection
from odradek.client.errors import ClientError, Unsupported
from odradek.protocol.apis import FETCH, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from odradek.protocol.errors import ErrorCode, InvalidFrame, error_code
from odradek.protocol.fetch_response_reader import (
    OLDEST_VERSION,
    FetchResponse,
    read_fetch_response,
)
from odradek.replication.fetching.fetch_session_handler import FetchRequestData, TopicIdAndPartition
from odradek.replication.fetching.fetcher_partitions import (
    FetcherPartitions,
    LeaderOffsetQuery,
    LogChanges,
)
from odradek.replication.fetching.leader_requests import (
    EpochQueryOf,
    FetchLimits,
    OffsetQueryOf,
    epochs_request,
    offsets_request,
    read_epoch_ends,
    read_offsets,
    write_fetch,
)
from odradek.replication.partition.follower_role import FollowerRole
from odradek.replication.partition.follower_state import OffsetResult, QueryOffset
from odradek.replication.replication_quota import ReplicationQuota
from odradek.seams.clock import Clock
from odradek.seams.containment import STARTED_AGAIN, Containment
from odradek.seams.network import Address, Network
from odradek.seams.values import value_class
from odradek.storage.log.leader_epoch_cache import EpochEnd

log = logging.getLogger("odradek.fetching")

RESPONSE_BYTES_MAX = MAX_RESPONSE_BYTES // 2
"""Limit of the records in a response, so that the whole response fits the limit of the connection.
"""
FIRST_RECONNECT_SECONDS = 0.05
CANCEL_INTERVAL_SECONDS = 1.0
"""Minimum time between two cancellations of a held Fetch because of new leader epochs."""
TURN_BYTES = 256 << 10
TURN_PARTITIONS = 50
"""Partitions handled before other tasks run: about half a millisecond."""


@value_class
class ReplicaFetcherConfig:
    """Configs of fetchers, with Kafka's defaults; times in ms, sizes in bytes."""

    fetchers: int = 1
    """num.replica.fetchers: fetchers for each leader's broker"""
    fetch_max_bytes: int = 1 << 20
    """replica.fetch.max.bytes: limit for each partition"""
    response_max_bytes: int = 10 << 20
    """replica.fetch.response.max.bytes"""
    min_bytes: int = 1
    """replica.fetch.min.bytes"""
    wait_max_ms: int = 500
    """replica.fetch.wait.max.ms"""
    back_off_ms: int = 1000
    """replica.fetch.backoff.ms"""
    socket_timeout_ms: int = 30_000
    """replica.socket.timeout.ms"""


class FetcherContext(LogChanges, Protocol):
    """Services of the node that a fetcher uses."""

    @property
    def node_id(self) -> int: ...

    @property
    def broker_epoch(self) -> int: ...

    @property
    def settings(self) -> ReplicaFetcherConfig: ...

    @property
    def quota(self) -> ReplicationQuota: ...

    @property
    def network(self) -> Network: ...

    @property
    def clock(self) -> Clock: ...

    def address_of(self, broker_id: int) -> Address | None:
        """Return the inter-broker address of a broker; None if it is unknown."""
        ...


class ReplicaFetcher:
    """Fetcher of one broker. `run` returns after `stop`; all other methods are synchronous."""

    def __init__(self, leader_id: int, number: int, context: FetcherContext) -> None:
        """`number` distinguishes the fetchers of one broker."""
        self.leader_id = leader_id
        self.name = f"broker-{context.node_id}-fetcher-{number}"
        self._context = context
        self._clock = context.clock
        self._partitions = FetcherPartitions(context.node_id, context.quota, context, context.clock)
        self._woken = trio.Event()
        self._life = trio.CancelScope()
        self._connection_scope: trio.CancelScope | None = None
        self._connected_to: Address | None = None
        self._fetch_scope: trio.CancelScope | None = None
        """Cancel scope of a Fetch that the leader may be holding."""
        self._cancelled_at = -CANCEL_INTERVAL_SECONDS
        self._reconnect_seconds = FIRST_RECONNECT_SECONDS
        self._containment: Containment[str] = Containment(
            "a replica fetcher", consequence=STARTED_AGAIN
        )
        self._was_refused = False
        """Whether the last Fetch response had a top-level error."""

    def __repr__(self) -> str:
        return f"<{self.name} at broker {self.leader_id}, {len(self)} partitions>"

    # Partitions

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, key: TopicIdAndPartition, role: FollowerRole) -> None:
        """Add a partition, or handle a new leader epoch of a known one."""
        self._partitions.add(key, role)
        self._woken.set()
        now = self._clock.monotonic()
        if self._fetch_scope is not None and now - self._cancelled_at >= CANCEL_INTERVAL_SECONDS:
            self._cancelled_at = now
            self._fetch_scope.cancel()

    def remove(self, key: TopicIdAndPartition) -> None:
        self._partitions.remove(key)
        self._woken.set()

    def recheck(self, key: TopicIdAndPartition) -> None:
        """Recheck the partition after a change of its log."""
        self._partitions.recheck(key)
        self._woken.set()

    def brokers_changed(self) -> None:
        """Handle a change of the broker's address or registration."""
        is_elsewhere = self._context.address_of(self.leader_id) != self._connected_to
        if self._connection_scope is not None and is_elsewhere:
            self._connection_scope.cancel()
        self._reconnect_seconds = FIRST_RECONNECT_SECONDS
        self._woken.set()

    def stop(self) -> None:
        """End `run`: no partition is left to fetch."""
        self._life.cancel()

    # The connection

    async def run(self) -> None:
        with self._life:
            await self._containment.keep_running(f"broker {self.leader_id}", self._run)

    async def _run(self) -> None:
        while True:
            address = self._context.address_of(self.leader_id)
            if address is None:
                await self._wait(None)
                continue
            try:
                with trio.CancelScope() as self._connection_scope:
                    self._connected_to = address
                    await self._fetch_from(address)
            finally:
                self._connection_scope = self._connected_to = None
                self._partitions.session.lost()

    async def _wait(self, seconds: float | None) -> None:
        """Wait for a change, at most this long."""
        with trio.move_on_after(float("inf") if seconds is None else seconds):
            await self._woken.wait()
        self._woken = trio.Event()

    async def _fetch_from(self, address: Address) -> None:
        """Connect and fetch until the connection ends; after an error, wait for the back-off."""
        failure: ClientError | None = None
        async with trio.open_nursery() as nursery:
            try:
                connection = await open_connection(
                    self._context.network,
                    address,
                    nursery,
                    client_id=self.name,
                    timeout_s=self._timeout_s,
                )
                await self._fetch_on(connection)
            except ClientError as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            await self._failed(failure)

    @property
    def _timeout_s(self) -> float:
        return self._context.settings.socket_timeout_ms / 1000

    async def _failed(self, failure: ClientError) -> None:
        seconds = self._reconnect_seconds
        level = logging.WARNING if seconds == FIRST_RECONNECT_SECONDS else logging.DEBUG
        log.log(
            level,
            "%s: Error sending fetch request to node %d: %s",
            self.name,
            self.leader_id,
            failure,
        )
        most = self._context.settings.back_off_ms / 1000
        self._reconnect_seconds = min(2 * seconds, max(most, FIRST_RECONNECT_SECONDS))
        await self._clock.sleep(min(seconds, most))

    async def _fetch_on(self, connection: BrokerConnection) -> None:
        """Fetch until the connection is lost or cancelled. Raises ClientError."""
        version = connection.version_of(FETCH)
        if version < OLDEST_VERSION:
            raise Unsupported(f"Fetch version {version} has no topic ids")
        partitions = self._partitions
        while True:
            await self._check_partitions()
            queries = partitions.take_offset_queries()
            if queries:
                await self._query_offsets(connection, queries)
            elif not len(partitions.session):
                next_ms = partitions.ms_to_next()
                await self._wait(None if next_ms is None else next_ms / 1000)
            elif not await self._fetch(connection, version):
                return

    async def _check_partitions(self) -> None:
        """Determine the next actions of all partitions to check; other tasks run in between."""
        partitions = self._partitions
        partitions.begin_round()
        for count in itertools.count(1):
            size_bytes = partitions.check_next()
            if size_bytes is None:
                return
            if size_bytes or count % TURN_PARTITIONS == 0:
                await trio.lowlevel.checkpoint()

    # Requests

    async def _fetch(self, connection: BrokerConnection, version: int) -> bool:
        """Send one Fetch and handle its response; False if it was cancelled. Raises ClientError."""
        request = self._partitions.session.plan()
        body = write_fetch(
            version,
            request,
            self._limits(request),
            node_id=self._context.node_id,
            broker_epoch=self._context.broker_epoch,
        )
        with trio.CancelScope() as self._fetch_scope:
            try:
                response = await connection.exchange(
                    FETCH, version, body, timeout_s=self._timeout_s
                )
            finally:
                self._fetch_scope = None
            try:
                await self._handle_response(read_fetch_response(response))
            except InvalidFrame as garbage:
                raise connection.invalid_response(FETCH, garbage) from garbage
            return True
        return False

    def _limits(self, request: FetchRequestData) -> FetchLimits:
        settings = self._context.settings
        max_wait_ms = (
            self._partitions.max_wait_ms(settings.wait_max_ms) if request.is_complete else 0
        )
        return FetchLimits(
            max_bytes=min(settings.response_max_bytes, RESPONSE_BYTES_MAX),
            partition_max_bytes=settings.fetch_max_bytes,
            min_bytes=settings.min_bytes,
            max_wait_ms=max_wait_ms,
        )

    async def _handle_response(self, response: FetchResponse) -> None:
        partitions, code = self._partitions, error_code(response.error_code)
        if code is not ErrorCode.none:
            await self._refused(code)
            return
        self._was_refused = False
        self._reconnect_seconds = FIRST_RECONNECT_SECONDS
        partitions.session.responded(response.session_id)
        size_bytes = count = 0
        for data in response.partitions:
            size_bytes += partitions.handle_partition_response(data)
            count += 1
            if size_bytes >= TURN_BYTES or count >= TURN_PARTITIONS:
                size_bytes = count = 0
                await trio.lowlevel.checkpoint()

    async def _refused(self, code: ErrorCode) -> None:
        """Begin a new session after a top-level error; the second time in a row after a back-off."""
        log.info(
            "%s: Node %d was unable to process the fetch request: %s",
            self.name,
            self.leader_id,
            code.name,
        )
        self._partitions.session.lost()
        if self._was_refused:
            await self._clock.sleep(self._context.settings.back_off_ms / 1000)
        self._was_refused = True

    async def _query_offsets(
        self, connection: BrokerConnection, queries: Sequence[LeaderOffsetQuery]
    ) -> None:
        """Send the offset queries. Raises ClientError; the queries without a result then fail."""
        offsets: list[OffsetQueryOf] = []
        epochs: list[EpochQueryOf] = []
        for each in queries:
            partition, query = each.role.partition, each.query
            if isinstance(query, QueryOffset):
                offsets.append((partition.topic, partition.index, query))
            else:
                epochs.append((partition.topic, partition.index, query))
        found: dict[tuple[str, int], OffsetResult | EpochEnd | ErrorCode] = {}
        node_id, timeout_ms = self._context.node_id, self._context.settings.socket_timeout_ms
        try:
            if offsets:
                wanted = offsets_request(offsets, node_id=node_id, timeout_ms=timeout_ms)
                response = await connection.request(LIST_OFFSETS, wanted, timeout_s=self._timeout_s)
                found |= read_offsets(response)
            if epochs:
                wanted = epochs_request(epochs, node_id=node_id)
                response = await connection.request(
                    OFFSET_FOR_LEADER_EPOCH, wanted, timeout_s=self._timeout_s
                )
                found |= read_epoch_ends(response)
        finally:
            for each in queries:
                self._partitions.offsets_received(each, found)
