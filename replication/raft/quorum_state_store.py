"""The `quorum-state` file: epoch, leader and vote, replaced atomically (Kafka's
`FileQuorumStateStore`; KIP-595, KIP-853)."""

from __future__ import annotations

from typing import Final

from odradek.protocol.schemas.quorum_state import (
    QuorumStateData,
    decode_quorum_state,
    encode_quorum_state,
)
from odradek.protocol.schemas.serde import InvalidRecord
from odradek.replication.raft.election_state import ElectionState
from odradek.seams.files import Files, Path

NAME = "quorum-state"
NEWEST_VERSION = 1
REMEDY: Final = (
    "restore the file, or, if other controllers have the log, start with an empty directory, as another "
    "voter; if this is the only controller, remove the file: its vote is not needed"
)


class QuorumStateStore:
    """Reads and writes `quorum-state` in the metadata log's directory."""

    def __init__(self, files: Files, log_directory: Path) -> None:
        self._files = files
        self._path = log_directory / NAME

    def read(self) -> ElectionState | None:
        """Election state in the file; None if there is no file. Raises InvalidRecord if it is corrupt."""
        if not self._files.exists(self._path):
            return None
        try:
            state = decode_quorum_state(self._files.read(self._path))
        except InvalidRecord as error:
            raise InvalidRecord(f"{self._path}: {error.message}: {REMEDY}") from None
        return ElectionState(
            epoch=max(state.leader_epoch, 0),
            leader_id=state.leader_id,
            voted_id=state.voted_id,
            voted_directory_id=state.voted_directory_id,
        )

    def write(
        self, election: ElectionState, *, kraft_version: int = 1, voters: tuple[int, ...] = ()
    ) -> None:
        """Replace the file; durable when this returns.

        While kraft.version is 0, the file contains `voters`, and the vote has no directory id.
        """
        state = QuorumStateData(
            leader_id=election.leader_id,
            leader_epoch=election.epoch,
            voted_id=election.voted_id,
            voted_directory_id=election.voted_directory_id,
            current_voters=voters,
            data_version=min(kraft_version, NEWEST_VERSION),
        )
        self._files.write_new(self._path, encode_quorum_state(state))
