"""Minimal members of a classic consumer group: JoinGroup, SyncGroup and Heartbeat over plain sockets.

One loop serves many sockets. A member with an assignment sends a heartbeat every `BEAT_S` seconds until all members
are settled, so the coordinator is measured and not a client's heartbeat interval. The group leader assigns each
member the partition of its own number, so no assignor is measured.
"""

from __future__ import annotations

import enum
import selectors
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from odradek.bench.model import WorkloadFailed
from odradek.bench.raw_connection import RawConnection, must_be_none
from odradek.client.assignors import RANGE, write_assignment, write_subscription
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition

BEAT_S = 0.005
RETRY_S = 0.005
SESSION_MS = 30_000
REBALANCE_MS = 60_000
TIMEOUT_S = 90.0

_COMING = frozenset(
    (
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    )
)
_AGAIN = frozenset(
    (ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation, ErrorCode.unknown_member_id)
)


_NUMBER = struct.Struct(">i")


class _MemberState(enum.Enum):
    JOINING = enum.auto()
    SYNCING = enum.auto()
    BEATING = enum.auto()
    """A heartbeat is in flight."""
    RESTING = enum.auto()
    """The member has an assignment; the next heartbeat is due at `due`."""
    PUT_OFF = enum.auto()
    """The coordinator is not available yet; the next JoinGroup is due at `due`."""


class Member:
    """One member with its own connection, driven by the responses."""

    def __init__(self, address: tuple[str, int], group: str, topic: str) -> None:
        self.wire = RawConnection(address)
        self.due = 0.0
        self.generation = -1
        self.members = 0
        """Number of members in this generation; known only to the group leader."""
        self.state = _MemberState.RESTING
        self.assigned = False
        self._group = group
        self._topic = topic
        self._member_id = ""
        self._joins = 0

    @property
    def waits(self) -> bool:
        """Return whether the member acts next, at `due`; otherwise a response is pending."""
        return self.state in (_MemberState.RESTING, _MemberState.PUT_OFF)

    def join(self) -> None:
        """Send a JoinGroup with new metadata, so that it starts a rebalance."""
        self.state, self.assigned = _MemberState.JOINING, False
        self._send(
            apis.JOIN_GROUP,
            {
                "session_timeout": SESSION_MS,
                "rebalance_timeout": REBALANCE_MS,
                "protocols": [{"name": RANGE, "metadata": self._subscription()}],
                "reason": "",
            },
        )

    def _subscription(self) -> bytes:
        self._joins += 1
        without_data = write_subscription([self._topic])[: -_NUMBER.size]
        return without_data + _NUMBER.pack(_NUMBER.size) + _NUMBER.pack(self._joins)

    def act(self) -> None:
        """Send the request that is due at `due`."""
        if self.state is _MemberState.PUT_OFF:
            self.join()
        else:
            self._beat()

    def _beat(self) -> None:
        self.state = _MemberState.BEATING
        self._send(apis.HEARTBEAT, {"generation_id": self.generation})

    def leave(self) -> None:
        """Send a LeaveGroup and wait for the response."""
        if self._member_id:
            who = {"member_id": self._member_id, "group_instance_id": None, "reason": None}
            values = {"group_id": self._group, "member_id": self._member_id, "members": [who]}
            self.wire.request(apis.LEAVE_GROUP, values)
        self.wire.close()

    def responded(self, now: float) -> None:
        """Read a received response, and send the next request."""
        response = self.wire.receive()
        if self.state is _MemberState.JOINING:
            self._joined(response, now)
        elif self.state is _MemberState.SYNCING:
            self._synced(response, now)
        elif response.error_code in _AGAIN:
            self.join()
        else:
            must_be_none(response.error_code, "a heartbeat")
            self.state, self.due = _MemberState.RESTING, now + BEAT_S

    def _joined(self, response: Any, now: float) -> None:
        # KIP-394: join again with the member id
        if response.error_code == ErrorCode.member_id_required:
            self._member_id = response.member_id
            self.join()
            return
        if response.error_code in _COMING:
            self.state, self.due = _MemberState.PUT_OFF, now + RETRY_S
            return
        must_be_none(response.error_code, "joining")
        self._member_id, self.generation = response.member_id, response.generation_id
        leads = response.leader == response.member_id
        self.members = len(response.members) if leads else 0
        self.state = _MemberState.SYNCING
        self._send(
            apis.SYNC_GROUP,
            {
                "generation_id": self.generation,
                "protocol_name": RANGE,
                "assignments": self._assign(response.members) if leads else [],
            },
        )

    def _assign(self, members: Sequence[Any]) -> list[Mapping[str, Any]]:
        return [
            {
                "member_id": row.member_id,
                "assignment": write_assignment([TopicPartition(self._topic, index)]),
            }
            for index, row in enumerate(members)
        ]

    def _synced(self, response: Any, now: float) -> None:
        if response.error_code in _AGAIN:
            self.join()
            return
        must_be_none(response.error_code, "the assignment")
        if not response.assignment:
            raise WorkloadFailed("a member got an empty assignment")
        self.assigned = True
        self.state, self.due = _MemberState.RESTING, now + BEAT_S

    def _send(self, api: apis.Api, values: Mapping[str, Any]) -> None:
        who = {
            "group_id": self._group,
            "member_id": self._member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
        }
        known = {k: v for k, v in who.items() if k != "protocol_type" or api is not apis.HEARTBEAT}
        self.wire.send(api, {**known, **values})


def settled(members: Sequence[Member]) -> bool:
    """Return whether all members, and no others, have an assignment of the same generation."""
    return (
        all(member.assigned for member in members)
        and len({member.generation for member in members}) == 1
        and sum(member.members for member in members) == len(members)
    )


def drive(
    members: Sequence[Member], done: Callable[[Sequence[Member]], bool], *, beating: bool = True
) -> None:
    """Run the members until `done`. Raises WorkloadFailed after `TIMEOUT_S` seconds."""
    end = time.perf_counter() + TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        for member in members:
            selector.register(member.wire.socket, selectors.EVENT_READ, member)
        while not done(members):
            now = time.perf_counter()
            if now > end:
                raise WorkloadFailed(f"the group was not settled after {TIMEOUT_S:g} s")
            wake = end
            for member in members if beating else ():
                if member.waits:
                    if member.due <= now:
                        member.act()
                    else:
                        wake = min(wake, member.due)
            for key, _ in selector.select(wake - now):
                key.data.responded(time.perf_counter())


def quiet(members: Sequence[Member]) -> None:
    """Receive the responses to heartbeats in flight."""
    drive(members, lambda each: all(member.waits for member in each), beating=False)


def find_coordinator(wire: RawConnection, group: str) -> None:
    """Retry FindCoordinator until it succeeds. Raises WorkloadFailed for an error that is not retriable."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        keys = {"key": group, "coordinator_keys": [group], "key_type": 0}
        response = wire.request(apis.FIND_COORDINATOR, keys)
        rows = getattr(response, "coordinators", None)
        code = rows[0].error_code if rows else response.error_code
        if code not in _COMING or time.monotonic() > end:
            must_be_none(code, "finding the coordinator")
            return
        time.sleep(RETRY_S)
