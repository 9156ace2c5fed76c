"""Members of a classic group: static members, pending member ids, and supported protocols.

Invariants: every instance id maps to a member; a group with members has a leader; a member id is
pending or in use, never both; `supported_protocols` counts the members per protocol;
`waiting_join_count` counts the members that wait in JoinGroup. Members are in join order.
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
    """A member of a classic group. `deadline_ms` is when its session expires; None is no timer."""

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
    """The pending JoinGroup; set by `ClassicGroupMembers.set_waiting_join`, which counts them."""
    waiting_sync: Future | None = None
    """The pending SyncGroup."""
    waiting_heartbeat: Future | None = None
    """The delayed Heartbeat; see `ClassicRebalance.heartbeat_delay_until_ms`."""
    is_new: bool = False
    """The member has not completed a JoinGroup yet, so it can't send heartbeats."""
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
        """Whether the member waits in JoinGroup or SyncGroup and so needs no heartbeat. A new
        member may have disconnected, so its session expires all the same."""
        return not self.is_new and (self.waiting_join is not None or self.waiting_sync is not None)

    def to_metadata(self, protocol: str, assignment: bytes) -> ClassicMemberMetadata:
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
    """The members of one group by member id, its pending member ids, and its leader."""

    def __init__(self) -> None:
        self.by_id: dict[str, ClassicGroupMember] = {}
        self.static_members: dict[str, str] = {}
        """Instance id to member id."""
        self.pending_join_members: dict[str, int] = {}
        """Member ids returned with MEMBER_ID_REQUIRED that have not joined, and when they expire (ms)."""
        self.pending_sync_members: dict[str, None] = {}
        """Members that have not sent SyncGroup in this generation, in join order."""
        self.supported_protocols: Counter[str] = Counter()
        self.waiting_join_count = 0
        self.leader_id: str | None = None
        self.protocol_type: str | None = None

    def __len__(self) -> int:
        return len(self.by_id)

    # Adding and removing

    def add(self, member: ClassicGroupMember, future: Future | None) -> None:
        assert member.member_id not in self.by_id, f"{member.member_id} is a member already"
        if not self.by_id:
            self.protocol_type = member.protocol_type
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members, f"{member.instance_id} is taken"
            self.static_members[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.by_id[member.member_id] = member
        self.pending_join_members.pop(member.member_id, None)
        self.supported_protocols.update(name for name, _ in member.protocols)
        self.set_waiting_join(member, future)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending member id. If it was the leader, the first member becomes leader."""
        self.pending_join_members.pop(member_id, None)
        self.pending_sync_members.pop(member_id, None)
        member = self.by_id.pop(member_id, None)
        if member is None:
            return
        self.set_waiting_join(member, None)
        self.supported_protocols.subtract(name for name, _ in member.protocols)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.by_id), None)

    def rename(self, member_id: str, new_id: str) -> ClassicGroupMember:
        """Give a member a new id. Its instance id, leadership and place in the order stay."""
        assert new_id not in self.by_id, f"{new_id} is a member already"
        self.by_id = {
            (new_id if known_id == member_id else known_id): member
            for known_id, member in self.by_id.items()
        }
        member = self.by_id[new_id]
        member.member_id = new_id
        if member.instance_id is not None:
            self.static_members[member.instance_id] = new_id
        if self.leader_id == member_id:
            self.leader_id = new_id
        if member_id in self.pending_sync_members:
            self.pending_sync_members = {
                (new_id if known_id == member_id else known_id): None
                for known_id in self.pending_sync_members
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
        """Apply the fields of a JoinGroup request to a member that rejoins."""
        self.supported_protocols.subtract(name for name, _ in member.protocols)
        self.supported_protocols.update(name for name, _ in protocols)
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self.set_waiting_join(member, future)

    def set_waiting_join(self, member: ClassicGroupMember, future: Future | None) -> None:
        self.waiting_join_count += (future is not None) - (member.waiting_join is not None)
        member.waiting_join = future

    # Queries

    @property
    def all_joined(self) -> bool:
        return len(self.by_id) == self.waiting_join_count and not self.pending_join_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)

    def is_leader(self, member_id: str) -> bool:
        return self.leader_id == member_id

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """UNKNOWN_MEMBER_ID for an unknown member, FENCED_INSTANCE_ID if another member has the instance id."""
        if instance_id is not None:
            holder = self.static_members.get(instance_id)
            if holder is None:
                return ErrorCode.unknown_member_id
            if holder != member_id:
                return ErrorCode.fenced_instance_id
        if member_id not in self.by_id:
            return ErrorCode.unknown_member_id
        return NO_ERROR

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, or elect the first member that has. False if none has."""
        if self.leader_id is None:
            return False
        if self.by_id[self.leader_id].waiting_join is not None:
            return True
        for member in self.by_id.values():
            if member.waiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def supports_any_protocol(self, names: list[str]) -> bool:
        """Whether every member supports one of these protocols."""
        return any(self.supported_protocols[name] == len(self.by_id) for name in names)

    def select_protocol(self) -> str:
        """Select the protocol with the most votes. Each member votes for the first of its protocols
        that all members support; of equal counts the earliest vote wins."""
        member_count = len(self.by_id)
        votes: Counter[str] = Counter()
        for member in self.by_id.values():
            votes[
                next(
                    name
                    for name, _ in member.protocols
                    if self.supported_protocols[name] == member_count
                )
            ] += 1
        return max(votes, key=votes.__getitem__)
