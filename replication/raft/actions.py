"""What the quorum's state machine wants done; the driver does it, in the order given.

Nothing behind a `Persist` may happen before it is on the disk. If it fails, the node ends: what it
promised is no longer known; where there is no room for it, it has promised nothing, and waits. Actions
that change the log are answered with an event (`Quorum.appended`, `truncated`, `installed`) before any
other event comes in.
"""

from __future__ import annotations

from typing import Any

from odradek.replication.raft.election_state import ElectionState
from odradek.replication.raft.messages import Endpoints, Request, Response
from odradek.replication.raft.snapshots import SnapshotId
from odradek.replication.raft.voters import Voter
from odradek.seams.values import value_class


@value_class
class Persist:
    """Make the election durable before anything else is done."""

    election: ElectionState


@value_class
class StartEpoch:
    """Lead: append the epoch's LeaderChangeMessage, and in the same batch what `quorum` holds.

    `quorum` is the level of kraft.version and the voters: the first leader of all writes to the log
    what the directory was formatted with, and a later one its own new endpoints. Then `appended`.
    """

    epoch: int
    voters: tuple[int, ...]
    granted: tuple[int, ...]
    quorum: tuple[int, tuple[Voter, ...]] | None = None


@value_class
class AppendVoters:
    """Append a VotersRecord, after a KRaftVersionRecord if there is a level; then `appended`, or
    `not_appended` if there is no room."""

    epoch: int
    voters: tuple[Voter, ...]
    kraft_version: int | None = None


@value_class
class AppendFetched:
    """Append what a Fetch brought, if it follows on the log's end, and flush the whole log if
    `durable`; then `appended`, even if there was nothing or the batches were broken."""

    records: Any
    epoch: int
    durable: bool


@value_class
class Truncate:
    """Cut the log to this end; then `truncated`."""

    end_offset: int


@value_class
class BeginSnapshot:
    """Open a new file for a snapshot that the leader sends; one begun before is given up. Where there is
    no room, `snapshot_given_up`; the same holds for what follows."""

    snapshot_id: SnapshotId


@value_class
class AppendSnapshot:
    """The next bytes of that file."""

    position: int
    data: bytes


@value_class
class InstallSnapshot:
    """The file is whole: publish it, empty the log, go on at its end; then `installed`."""

    snapshot_id: SnapshotId


@value_class
class Committed:
    """All below this offset is committed."""

    high_watermark: int


@value_class
class Send:
    """Ask a node; then `responded` or `failed` with this number, in any order, at any time or never.

    `to` is the node's id, or ANYONE: one of the bootstrap servers, not the same as the last time.
    `endpoints` are where it listens, if it is a node. Numbers begin anew with each `Quorum`: an answer
    to what a former one asked, before a restart, must not be told to this one.
    """

    number: int
    to: int
    endpoints: Endpoints
    request: Request


@value_class
class Reply:
    """Answer a request; the records or bytes of a fetch are the driver's to put in."""

    request: Request
    respond: Response


Action = (
    Persist
    | StartEpoch
    | AppendVoters
    | AppendFetched
    | Truncate
    | BeginSnapshot
    | AppendSnapshot
    | InstallSnapshot
    | Committed
    | Send
    | Reply
)
