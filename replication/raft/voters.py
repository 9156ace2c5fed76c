"""Who votes in the metadata quorum (KIP-853): ids, directories, endpoints; how the quorum stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.protocol.schemas.control_records import VotersRecord

KRAFT_VERSIONS = (0, 1)
"""The levels of kraft.version that this node supports; 1 has voters in the log."""


@value_class
class VoterEndpoint:
    listener: str
    host: str
    port: int


@value_class
class Voter:
    """One voter. Its directory tells it from one with the same id and an empty disk."""

    id: int
    directory_id: UUID
    endpoints: tuple[VoterEndpoint, ...] = ()
    kraft_versions: tuple[int, int] = KRAFT_VERSIONS


@value_class
class QuorumInfo:
    """What DescribeQuorum tells of a quorum, in short."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    log_end_offset: int
    voters: tuple[Voter, ...]
    kraft_version: int


def voters_record(voters: Sequence[Voter]) -> VotersRecord:
    from odradek.protocol.schemas import control_records as schemas

    return schemas.VotersRecord(
        version=0,
        voters=tuple(
            schemas.QuorumVoter(
                voter_id=voter.id,
                voter_directory_id=voter.directory_id,
                endpoints=tuple(
                    schemas.VoterEndpoint(name=each.listener, host=each.host, port=each.port)
                    for each in voter.endpoints
                ),
                kraft_version_feature=schemas.KRaftVersionFeature(
                    min_supported_version=voter.kraft_versions[0],
                    max_supported_version=voter.kraft_versions[1],
                ),
            )
            for voter in voters
        ),
    )


def voters_of(record: VotersRecord) -> tuple[Voter, ...]:
    return tuple(
        Voter(
            id=voter.voter_id,
            directory_id=voter.voter_directory_id,
            endpoints=tuple(
                VoterEndpoint(each.name, each.host, each.port) for each in voter.endpoints
            ),
            kraft_versions=(
                voter.kraft_version_feature.min_supported_version,
                voter.kraft_version_feature.max_supported_version,
            ),
        )
        for voter in record.voters
    )
