"""Values of control records: transaction markers, and KRaft's records in the metadata log and snapshots.

The version of a KRaft record is the first field of its body. The version of a transaction marker is a prefix.
"""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from odradek.protocol.schemas.definition import NEVER, StoredRecord, record, struct, structs, wire


@record
class EndTxnMarker(StoredRecord):
    """Transaction marker. The key of the record contains whether it is a commit or an abort."""

    __flexible_from__: ClassVar[int] = NEVER
    coordinator_epoch: int = wire("int32")


@record
class Voter:
    voter_id: int = wire("int32")
    voter_directory_id: UUID = wire("uuid", since=1)


@record
class LeaderChangeMessage(StoredRecord):
    """First record of a KRaft epoch: its leader, and the voters. Version 1 has directory ids."""

    __versions__: ClassVar[range] = range(2)
    version: int = wire("int16")
    leader_id: int = wire("int32")
    voters: tuple[Voter, ...] = structs(Voter)
    granting_voters: tuple[Voter, ...] = structs(Voter)


@record
class SnapshotHeaderRecord(StoredRecord):
    """First record of a snapshot, with the timestamp in ms of the last record that the snapshot contains."""

    version: int = wire("int16")
    last_contained_log_timestamp: int = wire("int64")


@record
class SnapshotFooterRecord(StoredRecord):
    """Last record of a snapshot."""

    version: int = wire("int16")


@record
class KRaftVersionRecord(StoredRecord):
    """Value of kraft.version: 0 for static voters, 1 for voters in the log (KIP-853)."""

    version: int = wire("int16")
    kraft_version: int = wire("int16")


@record
class VoterEndpoint:
    name: str = wire("string")
    host: str = wire("string")
    port: int = wire("uint16")


@record
class KRaftVersionFeature:
    min_supported_version: int = wire("int16")
    max_supported_version: int = wire("int16")


@record
class QuorumVoter:
    voter_id: int = wire("int32")
    voter_directory_id: UUID = wire("uuid")
    endpoints: tuple[VoterEndpoint, ...] = structs(VoterEndpoint)
    kraft_version_feature: KRaftVersionFeature = struct(KRaftVersionFeature)


@record
class VotersRecord(StoredRecord):
    """The set of voters of the quorum (KIP-853)."""

    version: int = wire("int16")
    voters: tuple[QuorumVoter, ...] = structs(QuorumVoter)
