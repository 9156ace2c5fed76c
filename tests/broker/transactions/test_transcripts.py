"""Transcripts of transactions: each command ("> …") and its effects.

The files in `tests/transcripts/transactions` illustrate KIP-98 and KIP-890. After a change of the rules, rewrite them with
ODRADEK_REWRITE=1 and review the diff.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from odradek.broker.transactions.messages import MarkerResult, ProducerIdAndEpoch
from odradek.protocol.errors import ErrorCode
from tests.broker.transactions.transaction_shard_driver import Stage, partition, where_it_stands
from tests.support.transcripts import check, transcripts

FILES = transcripts("transactions")


class TranscriptRunner:
    """Runs the commands of a transcript on a stage."""

    def __init__(self) -> None:
        self.stage = Stage()

    def follow(self, command: str) -> list[str]:
        self.stage.story.clear()
        self._act(command)
        return [*self.stage.story, where_it_stands(self.stage)]

    def _act(self, command: str) -> None:
        stage = self.stage
        if match := re.fullmatch(r"transaction\.version=(\d)", command):
            stage.version = int(match[1])
        elif match := re.fullmatch(r"(\d+) (ms|minutes|days) pass", command):
            stage.advance(
                int(match[1]) * {"ms": 1, "minutes": 60_000, "days": 86_400_000}[match[2]]
            )
        elif match := re.fullmatch(r"the next append fails with (\w+)", command):
            stage.fail_with = ErrorCode[match[1].lower()]
        elif command == "the replicas fall behind":
            stage.holding = True
        elif command == "the replicas catch up":
            stage.holding = False
            stage.release()
        elif command == "the replicas give up":
            stage.holding = False
            stage.release(ErrorCode.coordinator_not_available)
        elif command == "the broker is killed and starts again":
            stage.restart()
        elif match := re.fullmatch(r"the epoch of (\d+) is (\d+)", command):
            self._move_epoch(int(match[1]), int(match[2]))
        else:
            self._others_act(command)

    def _others_act(self, command: str) -> None:
        stage = self.stage
        if command == "the partitions are slow":
            stage.partitions_wait = True
        elif command == "the partitions respond":
            stage.partitions_wait = False
            stage.respond_markers()
        elif match := re.fullmatch(
            r"(\S+) (is deleted|is not available|has a newer epoch)", command
        ):
            outcome = {
                "is deleted": MarkerResult.GONE,
                "is not available": MarkerResult.RETRY,
                "has a newer epoch": MarkerResult.FENCED,
            }
            stage.respond_markers({partition(match[1]): outcome[match[2]]})
        else:
            self._producer_acts(*command.removesuffix(", response lost").split(), unheard=command)

    def _producer_acts(self, name: str, verb: str, *words: str, unheard: str) -> None:
        stage, is_received = self.stage, not unheard.endswith(", response lost")
        if verb == "knows":
            stage.client(name).version = int(words[0].removeprefix("transaction.version="))
        elif verb == "begins":
            stage.begin(name, as_itself=words == ("as", "itself"), is_received=is_received)
        elif verb == "adds":
            stage.add(name, *words)
        elif verb == "verifies":
            stage.verify(name, *words)
        elif verb in ("commits", "aborts"):
            stage.end(name, is_commit=verb == "commits", is_received=is_received)
        else:
            raise AssertionError(f"unknown command: {verb}")

    def _move_epoch(self, producer_id: int, epoch: int) -> None:
        """Set the epoch as after this number of transactions."""
        transaction = self.stage.transaction
        assert transaction is not None
        assert transaction.metadata.producer_id == producer_id
        transaction.metadata = replace(transaction.metadata, epoch=epoch)
        for client in self.stage.clients.values():
            if client.producer.producer_id == producer_id:
                client.producer = ProducerIdAndEpoch(producer_id, epoch)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    check(path, TranscriptRunner().follow)


def test_transcripts_exist() -> None:
    assert len(FILES) >= 12
