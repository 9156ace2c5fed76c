"""Contents of a DescribeQuorum response (KIP-595, KIP-836, KIP-853)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.replication.raft.voters import ReplicaKey, Voter
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.replication.raft.leader_state import ReplicaState
    from odradek.replication.raft.metadata_log import MetadataLog
    from odradek.replication.raft.raft_client_driver import RaftClientDriver


@value_class
class ReplicaInfo:
    """Progress of a replica as known to the leader (KIP-836). Times are wall-clock ms; -1 is never."""

    key: ReplicaKey
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


@value_class
class QuorumInfo:
    """State of the quorum. `replicas` (voters) and `observers` are only known to the leader."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    log_end_offset: int
    voters: tuple[Voter, ...]
    kraft_version: int
    replicas: tuple[ReplicaInfo, ...] = ()
    observers: tuple[ReplicaInfo, ...] = ()


def describe_quorum(
    driver: RaftClientDriver, metadata_log: MetadataLog, *, wall_ms: int
) -> QuorumInfo:
    """Describe the quorum at `wall_ms`. The leader itself counts as caught up now."""
    quorum, leadership = driver.raft_client, driver.raft_client.leadership
    end_offset, now_ms = metadata_log.end_offset, driver.now_ms
    replicas: tuple[ReplicaInfo, ...] = ()
    observers: tuple[ReplicaInfo, ...] = ()
    if leadership is not None:

        def info(progress: ReplicaState) -> ReplicaInfo:
            if progress.key.id == leadership.key.id:  # in a static quorum without directory id
                return ReplicaInfo(progress.key, end_offset, wall_ms, wall_ms)
            return ReplicaInfo(
                progress.key,
                progress.end_offset,
                _wall_ms(progress.last_fetch_ms),
                _wall_ms(progress.last_caught_up_ms),
            )

        def _wall_ms(at_ms: int) -> int:
            return -1 if at_ms < 0 else wall_ms - (now_ms - at_ms)

        replicas = tuple(info(each) for each in leadership.voter_progress())
        observers = tuple(info(each) for each in leadership.observer_progress(now_ms))
    return QuorumInfo(
        leader_id=quorum.leader_id,
        leader_epoch=quorum.epoch,
        high_watermark=driver.high_watermark,
        log_end_offset=end_offset,
        voters=tuple(quorum.voters),
        kraft_version=quorum.kraft_version,
        replicas=replicas,
        observers=observers,
    )
