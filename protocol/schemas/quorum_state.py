"""The `quorum-state` file: one line of JSON that contains a `data_version` (KIP-595, KIP-853)."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from odradek.protocol.schemas.definition import ZERO_UUID, record
from odradek.protocol.schemas.serde import InvalidRecord
from odradek.protocol.uuids import uuid_from_text, uuid_to_text


@record
class QuorumStateData:
    """Election state that a node persists: epoch, leader and vote. Ids and epochs of -1 mean none.

    Version 0 (kraft.version 0) has cluster id, applied offset and voters. Version 1 (kraft.version 1) has the
    directory id of the voted node instead.
    """

    cluster_id: str = ""
    leader_id: int = -1
    leader_epoch: int = -1
    voted_id: int = -1
    voted_directory_id: UUID = ZERO_UUID
    applied_offset: int = 0
    current_voters: tuple[int, ...] | None = ()
    data_version: int = 0


def encode_quorum_state(state: QuorumStateData) -> bytes:
    """Encode the file as Kafka does."""
    fields: dict[str, Any] = {}
    if state.data_version == 0:
        fields["clusterId"] = state.cluster_id
    fields["leaderId"] = state.leader_id
    fields["leaderEpoch"] = state.leader_epoch
    fields["votedId"] = state.voted_id
    if state.data_version == 0:
        fields["appliedOffset"] = state.applied_offset
        voters = state.current_voters
        fields["currentVoters"] = (
            None if voters is None else [{"voterId": voter} for voter in voters]
        )
    else:
        fields["votedDirectoryId"] = uuid_to_text(state.voted_directory_id)
    fields["data_version"] = state.data_version
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_quorum_state(data: bytes) -> QuorumStateData:
    """Decode the file. Raises InvalidRecord if it is malformed or its version is greater than 1."""
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise InvalidRecord(f"quorum state is {type(fields).__name__}, not an object")
        version = _integer(fields, "data_version")
        if version not in (0, 1):
            raise InvalidRecord(f"quorum state of version {version}")
        return QuorumStateData(
            cluster_id=str(fields["clusterId"]) if version == 0 else "",
            leader_id=_integer(fields, "leaderId"),
            leader_epoch=_integer(fields, "leaderEpoch"),
            voted_id=_integer(fields, "votedId"),
            voted_directory_id=_directory(fields) if version == 1 else ZERO_UUID,
            applied_offset=_integer(fields, "appliedOffset") if version == 0 else 0,
            current_voters=_voters(fields["currentVoters"]) if version == 0 else (),
            data_version=version,
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidRecord(f"quorum state: {error!r}") from None


def _directory(fields: Any) -> UUID:
    return uuid_from_text(str(fields["votedDirectoryId"]))


def _voters(found: Any) -> tuple[int, ...] | None:
    return None if found is None else tuple(_integer(voter, "voterId") for voter in found)


def _integer(fields: Any, name: str) -> int:
    value = fields[name]
    if type(value) is not int:
        raise ValueError(f"{name} is {value!r}")
    return value
