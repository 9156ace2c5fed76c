"""Who is in a classic group: members, static names, pending ids, and the protocol they can agree on.

Invariants: every static name leads to a member; the leader is a member, and there is one whenever
there are members; a member id is pending or a member's, never both; `supported[name]` counts the
members that support a protocol; `awaiting_join` counts those who wait in JoinGroup.
Iteration is in the order of joining, so that equal histories give equal groups.
"""

from __future__ import annotations

from collections import Counter

from odradek.broker.groups.actions import NO_ERROR, Protocols, StoredMember, Waiter
from odradek.protocol.errors import ErrorCode
from odradek.seams.values import state_class


@state_class
class Member:
    """One member; `deadline_ms` is when its session ends unless it is heard of (None: no timer)."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    joining: Waiter | None = None
    """Who waits for the answer to JoinGroup; set by the roster, which counts them."""
    syncing: Waiter | None = None
    beating: Waiter | None = None
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
    def is_alive_by_waiting(self) -> bool:
        """Whoever waits for us needs no heartbeat, except a new member that may be long gone."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    def stored(self, protocol: str, assignment: bytes) -> StoredMember:
        return StoredMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            assignment,
        )


class Roster:
    """See the module."""

    def __init__(self, protocol_type: str | None = None, leader_id: str | None = None) -> None:
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        """Instance id to member id."""
        self.pending: dict[str, int] = {}
        """Ids given out that nobody joined with yet, and until when they are kept (ms)."""
        self.unsynced: dict[str, None] = {}
        """Who has yet to sync in this generation, in order."""
        self.supported: Counter[str] = Counter()
        self.awaiting_join = 0
        self.leader_id = leader_id
        self.protocol_type = protocol_type

    def __len__(self) -> int:
        return len(self.members)

    # Coming and going

    def add(self, member: Member, waiter: Waiter | None) -> None:
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
        self.set_joining(member, waiter)

    def remove(self, member_id: str) -> None:
        """Forget a member or a pending id; the next in line becomes the leader if it was that."""
        self.pending.pop(member_id, None)
        self.unsynced.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self.set_joining(member, None)
        self.supported.subtract(name for name, _ in member.protocols)
        if member.instance_id is not None:
            del self.static[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def rename(self, member_id: str, new_id: str) -> Member:
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
        if member_id in self.unsynced:
            self.unsynced = {
                (new_id if each == member_id else each): None for each in self.unsynced
            }
        return member

    def update(
        self,
        member: Member,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        waiter: Waiter | None,
    ) -> None:
        """Take over what a member says of itself when it joins again."""
        self.supported.subtract(name for name, _ in member.protocols)
        self.supported.update(name for name, _ in protocols)
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self.set_joining(member, waiter)

    def set_joining(self, member: Member, waiter: Waiter | None) -> None:
        self.awaiting_join += (waiter is not None) - (member.joining is not None)
        member.joining = waiter

    # What they are together

    @property
    def all_joined(self) -> bool:
        return len(self.members) == self.awaiting_join and not self.pending

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
        if self.members[self.leader_id].joining is not None:
            return True
        for member in self.members.values():
            if member.joining is not None:
                self.leader_id = member.member_id
                return True
        return False

    def agrees_on_any(self, names: list[str]) -> bool:
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
