"""The `quorum-state` file: one line of JSON, `data_version` in it (KIP-595, KIP-853)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from odradek.protocol.schemas.definition import ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumState:
    """What a voter must not forget. Ids and epochs of -1 are none.

    Version 0 (kraft.version 0) names the cluster and the voters, version 1 who the vote's directory.
    """

    cluster_id: str = ""
    leader_id: int = -1
    leader_epoch: int = -1
    voted_id: int = -1
    voted_directory_id: UUID = ZERO_UUID
    applied_offset: int = 0
    current_voters: tuple[int, ...] | None = ()
    data_version: int = 0


def encode_quorum_state(state: QuorumState) -> bytes:
    """The file's bytes, as Kafka writes them."""
    raise NotImplementedError


def decode_quorum_state(data: bytes) -> QuorumState:
    """Raises InvalidRecord for a file that is no quorum state."""
    raise NotImplementedError
