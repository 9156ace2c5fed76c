"""Voters of the metadata quorum: ids, directory ids and endpoints (Kafka's `VoterSet`; KIP-853)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.protocol.schemas.control_records import VotersRecord

KRAFT_VERSIONS = (0, 1)
"""Supported range of kraft.version; with 1, the voters are in the log."""

NO_LEADER: Final = -1
NO_DIRECTORY: Final = UUID(int=0)


class ReplicaKey(NamedTuple):
    """Node id and directory id of a replica. A node with a new metadata directory is a new replica."""

    id: int
    directory_id: UUID = NO_DIRECTORY


@value_class
class VoterEndpoint:
    listener: str
    host: str
    port: int


@value_class
class Voter:
    """One voter. The directory id of a static voter (kraft.version 0) is unknown (NO_DIRECTORY)."""

    id: int
    directory_id: UUID = NO_DIRECTORY
    endpoints: tuple[VoterEndpoint, ...] = ()
    kraft_versions: tuple[int, int] = KRAFT_VERSIONS

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.id, self.directory_id)

    def describes_same_voter(self, other: Voter) -> bool:
        """Whether both are equal except for the order of the endpoints, which each leader chooses."""
        unordered = replace(other, endpoints=self.endpoints)
        return self == unordered and {*self.endpoints} == {*other.endpoints}

    def is_replica(self, key: ReplicaKey) -> bool:
        """Whether the key is this voter's; an unknown directory id of the voter matches any."""
        return self.id == key.id and self.directory_id in (NO_DIRECTORY, key.directory_id)


class VoterSet:
    """Immutable set of voters, sorted by id."""

    def __init__(self, voters: Iterable[Voter] = ()) -> None:
        self._by_id = {voter.id: voter for voter in sorted(voters, key=lambda each: each.id)}

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._by_id == other._by_id

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"VoterSet({list(self)})"

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._by_id)

    @property
    def majority(self) -> int:
        return len(self._by_id) // 2 + 1

    def get(self, voter_id: int) -> Voter | None:
        return self._by_id.get(voter_id)

    def includes(self, key: ReplicaKey) -> bool:
        voter = self._by_id.get(key.id)
        return voter is not None and voter.is_replica(key)

    def endpoints(self, voter_id: int) -> tuple[VoterEndpoint, ...]:
        voter = self._by_id.get(voter_id)
        return () if voter is None else voter.endpoints

    def added(self, voter: Voter) -> VoterSet | None:
        """Voter set with `voter`; None if there is a voter with its id, with any directory."""
        return None if voter.id in self._by_id else VoterSet((*self, voter))

    def removed(self, key: ReplicaKey) -> VoterSet | None:
        """Voter set without the voter; None if it is no voter or the only one."""
        voter = self._by_id.get(key.id)
        if voter is None or voter.key != key or len(self) == 1:
            return None
        return VoterSet([each for each in self if each.id != key.id])

    def updated(self, voter: Voter, *, any_directory: bool = False) -> VoterSet | None:
        """Voter set with new data of `voter`; None if it is no voter."""
        old = self._by_id.get(voter.id)
        if old is None or not (any_directory or old.is_replica(voter.key)):
            return None
        return VoterSet([voter if each.id == voter.id else each for each in self])


def voters_record(voters: Iterable[Voter]) -> VotersRecord:
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
