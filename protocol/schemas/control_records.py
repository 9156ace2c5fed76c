"""Values of control records: transaction markers, and what KRaft writes to its log and snapshots.

In a KRaft value the version is the body's first field; a transaction marker's is a prefix.
"""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from odradek.protocol.schemas.definition import NEVER, record, struct, structs, wire


@record
class EndTxnMarker:
    """The end of a transaction; the record's key says commit or abort."""

    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    coordinator_epoch: int = wire("int32")


@record
class Voter:
    voter_id: int = wire("int32")
    voter_directory_id: UUID = wire("uuid", since=1)


@record
class LeaderChangeMessage:
    """The first record of a KRaft epoch: who leads it, and who voted. Version 1 has directory ids."""

    __versions__: ClassVar[range] = range(2)
    __flexible_from__: ClassVar[int] = 0
    version: int = wire("int16")
    leader_id: int = wire("int32")
    voters: tuple[Voter, ...] = structs(Voter)
    granting_voters: tuple[Voter, ...] = structs(Voter)


@record
class SnapshotHeaderRecord:
    """The first record of a snapshot; the timestamp is the last contained record's, in ms."""

    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    version: int = wire("int16")
    last_contained_log_timestamp: int = wire("int64")


@record
class SnapshotFooterRecord:
    """The last record of a snapshot."""

    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    version: int = wire("int16")


@record
class KRaftVersionRecord:
    """The version of KRaft: 0 static voters, 1 voters in the log (KIP-853)."""

    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
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
class VotersRecord:
    """The voters of the quorum (KIP-853)."""

    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    version: int = wire("int16")
    voters: tuple[QuorumVoter, ...] = structs(QuorumVoter)
