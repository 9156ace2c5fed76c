"""Members of a classic group: static members, pending member ids, and supported protocols.

Invariants: every instance id maps to a member; a group with members has a leader; a member id is
pending or in use, never both; `supported` counts members per protocol; `waiting_join_count` counts
members that wait in JoinGroup. Iteration is in join order.
"""

from __future__ import annotations

from collections import Counter

from odradek.broker.groups.messages import (
    NO_ERROR,
    ClassicMemberMetadata,
    Future,
    SupportedProtocols,
)
from odradek.protocol.errors import ErrorCode
from odradek.seams.values import state_class


@state_class
class ClassicGroupMember:
    """One member; `deadline_ms` is when its session ends unless it is heard of (None: no timer)."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: SupportedProtocols
    assignment: bytes = b""
    waiting_join: Future | None = None
    """Who waits for the answer to JoinGroup; set by the roster, which counts them."""
    waiting_sync: Future | None = None
    waiting_heartbeat: Future | None = None
    """Whose heartbeat waits for others to arrive."""
    is_new: bool = False
    """Has not got through a join yet, so it has no way to send heartbeats."""
    deadline_ms: int | None = None

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise AssertionError(f"{self.member_id} does not support {protocol}")

    @property
    def is_waiting_for_coordinator(self) -> bool:
        """Whoever waits for us needs no heartbeat, except a new member that may be long gone."""
        return not self.is_new and (self.waiting_join is not None or self.waiting_sync is not None)

    def stored(self, protocol: str, assignment: bytes) -> ClassicMemberMetadata:
        return ClassicMemberMetadata(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            assignment,
        )


class ClassicGroupMembers:
    """See the module."""

    def __init__(self, protocol_type: str | None = None, leader_id: str | None = None) -> None:
        self.members: dict[str, ClassicGroupMember] = {}
        self.static: dict[str, str] = {}
        """Instance id to member id."""
        self.pending: dict[str, int] = {}
        """Ids given out that nobody joined with yet, and until when they are kept (ms)."""
        self.pending_sync_members: dict[str, None] = {}
        """Who has yet to sync in this generation, in order."""
        self.supported: Counter[str] = Counter()
        self.waiting_join_count = 0
        self.leader_id = leader_id
        self.protocol_type = protocol_type

    def __len__(self) -> int:
        return len(self.members)

    # Coming and going

    def add(self, member: ClassicGroupMember, future: Future | None) -> None:
        assert member.member_id not in self.members, f"{member.member_id} is a member already"
        if not self.members:
            self.protocol_type = member.protocol_type
        if member.instance_id is not None:
            assert member.instance_id not in self.static, f"{member.instance_id} is taken"
            self.static[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self.pending.pop(member.member_id, None)
        self.supported.update(name for name, _ in member.protocols)
        self.set_waiting_join(member, future)

    def remove(self, member_id: str) -> None:
        """Forget a member or a pending id; the next in line becomes the leader if it was that."""
        self.pending.pop(member_id, None)
        self.pending_sync_members.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self.set_waiting_join(member, None)
        self.supported.subtract(name for name, _ in member.protocols)
        if member.instance_id is not None:
            del self.static[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def rename(self, member_id: str, new_id: str) -> ClassicGroupMember:
        """The same member under another id, leader and static name included, in the same place."""
        assert new_id not in self.members, f"{new_id} is a member already"
        self.members = {
            (new_id if each == member_id else each): member for each, member in self.members.items()
        }
        member = self.members[new_id]
        member.member_id = new_id
        if member.instance_id is not None:
            self.static[member.instance_id] = new_id
        if self.leader_id == member_id:
            self.leader_id = new_id
        if member_id in self.pending_sync_members:
            self.pending_sync_members = {
                (new_id if each == member_id else each): None for each in self.pending_sync_members
            }
        return member

    def update(
        self,
        member: ClassicGroupMember,
        protocols: SupportedProtocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        future: Future | None,
    ) -> None:
        """Take over what a member says of itself when it joins again."""
        self.supported.subtract(name for name, _ in member.protocols)
        self.supported.update(name for name, _ in protocols)
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self.set_waiting_join(member, future)

    def set_waiting_join(self, member: ClassicGroupMember, future: Future | None) -> None:
        self.waiting_join_count += (future is not None) - (member.waiting_join is not None)
        member.waiting_join = future

    # What they are together

    @property
    def all_joined(self) -> bool:
        return len(self.members) == self.waiting_join_count and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asks for."""
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0)

    def is_leader(self, member_id: str) -> bool:
        return self.leader_id == member_id

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID where a newer member took the static name."""
        if instance_id is not None:
            holder = self.static.get(instance_id)
            if holder is None:
                return ErrorCode.unknown_member_id
            if holder != member_id:
                return ErrorCode.fenced_instance_id
        if member_id not in self.members:
            return ErrorCode.unknown_member_id
        return NO_ERROR

    def elect_joined_leader(self) -> bool:
        """Keep a leader who has joined, or take the first who has. False if nobody has."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].waiting_join is not None:
            return True
        for member in self.members.values():
            if member.waiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def supports_any_protocol(self, names: list[str]) -> bool:
        """Whether every member supports one of these protocols."""
        return any(self.supported[name] == len(self.members) for name in names)

    def select_protocol(self) -> str:
        """What most members like best of what all support; the first in line breaks a tie."""
        everyone = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[
                next(name for name, _ in member.protocols if self.supported[name] == everyone)
            ] += 1
        return max(votes, key=votes.__getitem__)
