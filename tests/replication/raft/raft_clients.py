"""Raft clients for tests, and access to the messages in their actions."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from odradek.replication.raft.actions import RaftAction, SendRequest, SendResponse
from odradek.replication.raft.election_state import ElectionState
from odradek.replication.raft.messages import RaftResponse
from odradek.replication.raft.quorum_state import QuorumSettings
from odradek.replication.raft.raft_client import RaftClient
from odradek.replication.raft.voter_history import ControlChange, VoterHistory
from odradek.replication.raft.voters import ReplicaKey, Voter, VoterEndpoint
from tests.replication.raft.memory_raft_log import MemoryLog


def voter(node_id: int, port: int = 9093) -> Voter:
    """Return voter n with directory id n."""
    return Voter(node_id, UUID(int=node_id), (VoterEndpoint("C", f"h{node_id}", port),))


def key(node_id: int) -> ReplicaKey:
    return voter(node_id).key


def machine(
    me: int,
    *others: int,
    observes: bool = False,
    election: ElectionState | None = None,
    log: MemoryLog | Sequence[int] = (),
    kraft_version: int = 0,
    settings: QuorumSettings | None = None,
) -> RaftClient:
    """Return a client that is not started and has no jitter. `log` may be the epochs of its records."""
    voters = [voter(each) for each in (*others, *(() if observes else (me,)))]
    changes = [
        ControlChange(-1, kraft_version=kraft_version),
        ControlChange(-1, voters=tuple(voters)),
    ]
    memory = log if isinstance(log, MemoryLog) else MemoryLog(log)
    dynamic = kraft_version > 0
    return RaftClient(
        voter(me),
        memory,
        VoterHistory(() if dynamic else voters, changes if dynamic else ()),
        election or ElectionState(),
        settings=settings,
    )


def sent(actions: Sequence[RaftAction]) -> list[SendRequest]:
    return [each for each in actions if isinstance(each, SendRequest)]


def reply(actions: Sequence[RaftAction]) -> RaftResponse:
    (found,) = [each.response for each in actions if isinstance(each, SendResponse)]
    return found
