"""Recovery of the metadata log directory at start, and the resulting quorum state.

All control records of the log apply, committed or not: a voter uses the newest voter set it has. A
single voter also applies all other records, because its disk is the majority. Other nodes load the
newest snapshot, and replay the log once they learn the high watermark.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final
from uuid import UUID

import trio

from odradek.protocol.records.batch import Batch
from odradek.protocol.uuids import uuid_to_text
from odradek.replication.controller.features import SUPPORTED_FEATURES
from odradek.replication.controller.image import (
    ControllerImage,
    Endpoint,
    InvalidMetadata,
    MetadataImage,
)
from odradek.replication.raft.bootstrap import FIRST_SNAPSHOT, format_directory, is_formatted
from odradek.replication.raft.election_state import ElectionState
from odradek.replication.raft.errors import InvalidQuorum
from odradek.replication.raft.metadata_batch_loader import (
    MetadataBatchLoader,
    MetadataTransaction,
    control_changes,
)
from odradek.replication.raft.metadata_loader import read_snapshot
from odradek.replication.raft.metadata_log import MetadataLog
from odradek.replication.raft.snapshots import SnapshotId
from odradek.replication.raft.voter_history import ControlChange, VoterHistory
from odradek.replication.raft.voters import Voter, VoterEndpoint
from odradek.seams import Seams
from odradek.seams.files import Path
from odradek.seams.values import value_class

log = logging.getLogger("odradek.metadata")

SNAPSHOT_REMEDY: Final = (
    "the log does not contain its records: restore it, or, if other controllers have the metadata, "
    "start with an empty directory, as another voter"
)


@value_class
class QuorumMember:
    """Identity and quorum configs of this node.

    `controller_listeners` are the advertised endpoints on which other nodes reach this controller,
    `controller_listener` is the name of the listener that requests are sent to. `static_voters`
    is `controller.quorum.voters` (node id to host and port), `bootstrap_servers` is
    `controller.quorum.bootstrap.servers` without this node.
    """

    node_id: int
    cluster_id: str
    directory_id: UUID
    controller_listeners: tuple[Endpoint, ...] = ()
    controller_listener: str = "CONTROLLER"
    static_voters: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    bootstrap_servers: tuple[tuple[str, int], ...] = ()
    can_become_voter: bool = True

    @property
    def configures_no_other_controller(self) -> bool:
        """Whether no other controller is configured, so that this node may create a quorum."""
        others = self.bootstrap_servers or set(self.static_voters) - {self.node_id}
        return self.can_become_voter and not others

    @property
    def voter(self) -> Voter:
        """This node's voter entry."""
        return Voter(
            self.node_id,
            self.directory_id,
            tuple(
                VoterEndpoint(each.name, each.host, each.port) for each in self.controller_listeners
            ),
        )

    def registration(self, incarnation_id: UUID) -> ControllerImage:
        return ControllerImage(
            id=self.node_id,
            incarnation_id=incarnation_id,
            endpoints=self.controller_listeners,
            features=SUPPORTED_FEATURES,
        )

    def voters_before_the_log(self) -> list[Voter]:
        """The static voters, used while the log contains no voter set (kraft.version 0)."""
        if self.configures_no_other_controller:
            return [self.voter]
        return [
            Voter(id, endpoints=(VoterEndpoint(self.controller_listener, host, port),))
            for id, (host, port) in self.static_voters.items()
        ]

    def history(self, changes: Iterable[ControlChange]) -> VoterHistory:
        """Voter history from static voters and control records."""
        return VoterHistory(self.voters_before_the_log(), changes)


@value_class
class RecoveredQuorum:
    """Image, open transaction and election state; `applied_bytes` is the log size included in
    the image."""

    directory: Path
    member: QuorumMember
    election: ElectionState
    history: VoterHistory
    image: MetadataImage
    transactions: MetadataTransaction
    applied_bytes: int

    @property
    def is_only_voter(self) -> bool:
        """Whether this node is the only voter."""
        return _is_only_voter(self.member, self.history)

    def other_voters_error(self) -> InvalidQuorum:
        """The error for a node that cannot reach the other voters."""
        member, voters = self.member, self.history.voters
        if voters.ids == (member.node_id,):
            (voter,) = voters
            local, theirs = uuid_to_text(member.directory_id), uuid_to_text(voter.directory_id)
            return InvalidQuorum(
                f"the voter in {self.directory} has directory id {theirs}, but meta.properties of that "
                f"directory has {local}: if the file was damaged or lost its directory.id, set "
                f"directory.id={theirs} in it"
            )
        return _belongs_to_others(self.directory, member, voters.ids)


def _belongs_to_others(
    directory: Path, member: QuorumMember, voters: Sequence[int]
) -> InvalidQuorum:
    return InvalidQuorum(
        f"{directory} belongs to a quorum of the nodes {sorted(voters)}; this node, "
        f"{member.node_id}, has no configuration to reach them"
    )


def _is_only_voter(member: QuorumMember, history: VoterHistory) -> bool:
    voters = history.voters
    return member.can_become_voter and len(voters) == 1 and voters.includes(member.voter.key)


async def recover_quorum(
    seams: Seams,
    directory: Path,
    metadata_log: MetadataLog,
    member: QuorumMember,
    blocking: Callable[..., Awaitable[Any]],
    find_partitions: Callable[[], Path | None] = lambda: None,
) -> RecoveredQuorum:
    """Recover and read the log. `find_partitions` returns a directory that contains partitions,
    and may block.

    Raises InvalidMetadata, InvalidQuorum, OSError, LogFailed.
    """
    election: ElectionState = await blocking(
        _open, seams, directory, metadata_log, member, find_partitions
    )
    replay, start = await _read_newest(metadata_log, blocking)
    quorum = MetadataBatchLoader()
    await _replay_log(metadata_log, start, quorum, lambda batch: batch.is_control)
    changes = [*replay.changes, *quorum.changes]
    history = member.history(changes)
    names_voters = any(change.voters for change in changes)
    if (
        member.configures_no_other_controller
        and not names_voters
        and set(quorum.static_voters) - {member.node_id}
    ):
        raise _belongs_to_others(directory, member, quorum.static_voters)
    size_bytes = 0
    if _is_only_voter(member, history):
        if metadata_log.end_offset == 0:
            await blocking(_refuse_with_partitions, metadata_log, find_partitions)
        size_bytes = await _replay_log(metadata_log, start, replay, lambda batch: True)
    if metadata_log.has_lost_records:
        await _handle_lost_records(metadata_log, member, history, blocking)
    image = replay.finish().image
    return RecoveredQuorum(
        directory, member, election, history, image, replay.transactions, size_bytes
    )


async def _handle_lost_records(
    metadata_log: MetadataLog,
    member: QuorumMember,
    history: VoterHistory,
    blocking: Callable[..., Awaitable[Any]],
) -> None:
    """Log what the loss of synced records means for this node. Raises OSError, LogFailed."""
    end, acknowledged = metadata_log.end_offset, metadata_log.acknowledged_end
    if _is_only_voter(member, history):
        await blocking(metadata_log.accept_loss)
        consequence = "This node is the only voter and continues without them"
    elif history.voters.includes(member.voter.key):
        consequence = (
            "This voter starts no election and votes only for controllers that have them, until it has fetched them "
            "from the leader"
        )
    else:
        consequence = "They are fetched from the leader again"
    log.error(
        "%s ends at offset %d, but this node had synced it up to offset %d (epoch %d): records are lost. %s",
        metadata_log.directory,
        end,
        acknowledged.end_offset,
        acknowledged.epoch,
        consequence,
    )


async def _read_newest(
    metadata_log: MetadataLog, blocking: Callable[..., Awaitable[Any]]
) -> tuple[MetadataBatchLoader, int]:
    """Load the newest snapshot and return its end offset. A damaged one is removed if the log
    contains its records. Raises InvalidMetadata."""
    snapshots = metadata_log.snapshots
    while (newest := snapshots.newest) is not None:
        try:
            return await read_snapshot(metadata_log, newest, blocking), newest.end_offset
        except InvalidMetadata as error:
            if not await _is_in_the_log(metadata_log, newest):
                raise InvalidMetadata(f"{error}: {SNAPSHOT_REMEDY}") from None
            log.warning("%s: it is removed, because the log contains its records", error)
        await blocking(snapshots.remove, newest)
    return MetadataBatchLoader(), 0


async def _is_in_the_log(metadata_log: MetadataLog, snapshot: SnapshotId) -> bool:
    """Whether the log contains all that the newest snapshot adds to earlier ones."""
    *_, before = (None, *metadata_log.snapshots.ids[:-1])
    if metadata_log.start_offset > (0 if before is None else before.end_offset):
        return False
    if snapshot != FIRST_SNAPSHOT:
        return True
    control = MetadataBatchLoader()
    await _replay_log(metadata_log, 0, control, lambda batch: batch.is_control)
    return any(change.voters for change in control.changes)


async def _replay_log(
    metadata_log: MetadataLog,
    start: int,
    replay: MetadataBatchLoader,
    wanted: Callable[[Batch], bool],
) -> int:
    """Apply the `wanted` batches from offset `start`; returns their size in bytes. Raises
    InvalidMetadata."""
    size_bytes = 0
    for found in metadata_log.batches(start):
        for batch in filter(wanted, found):
            replay.batch(batch)
            size_bytes += batch.size
        await trio.lowlevel.checkpoint()
    return size_bytes


def _open(
    seams: Seams,
    directory: Path,
    metadata_log: MetadataLog,
    member: QuorumMember,
    find_partitions: Callable[[], Path | None],
) -> ElectionState:
    """Open the log and read the election state; blocks on the disk."""
    files = seams.files
    if member.configures_no_other_controller and not is_formatted(files, directory):
        _refuse_with_partitions(metadata_log, find_partitions)
        format_directory(files, directory, member.voter, now_ms=seams.clock.wall_ms())
    if not files.is_directory(metadata_log.directory):
        files.make_directory(metadata_log.directory)
        files.sync_directory(directory)
    metadata_log.open(lambda whole: _is_only_voter(member, member.history(control_changes(whole))))
    return metadata_log.quorum_state.read() or ElectionState()


def _refuse_with_partitions(
    metadata_log: MetadataLog, find_partitions: Callable[[], Path | None]
) -> None:
    """Raise InvalidQuorum if there are partitions: a topic is in the log before its partitions
    exist, so an empty log means that the metadata was lost."""
    directory = find_partitions()
    if directory is not None:
        raise InvalidQuorum(
            f"{metadata_log.directory} has no records, but {directory} has partitions, which would become "
            f"stray: restore it, or move them away to start a new cluster"
        )
