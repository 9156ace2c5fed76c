"""Stories of transactions, told line by line: what happens ("> …") and all that comes of it.

The files under `tests/transcripts/transactions` are meant to be read beside KIP-98 and KIP-890.
Whoever changes the rules writes them anew with ODRADEK_REWRITE=1 and reads the difference.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from odradek.broker.transactions.messages import MarkerResult, ProducerIdAndEpoch
from odradek.protocol.errors import ErrorCode
from tests.broker.transactions.stage import Stage, partition, where_it_stands
from tests.transcripts.retelling import check, transcripts

FILES = transcripts("transactions")


class Teller:
    """Follows a transcript's commands on a stage."""

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
        elif command == "the partitions answer":
            stage.partitions_wait = False
            stage.respond_markers()
        elif match := re.fullmatch(r"(\S+) (is gone|can't now|knows somebody newer)", command):
            outcome = {
                "is gone": MarkerResult.GONE,
                "can't now": MarkerResult.RETRY,
                "knows somebody newer": MarkerResult.FENCED,
            }
            stage.respond_markers({partition(match[1]): outcome[match[2]]})
        else:
            self._producer_acts(*command.removesuffix(", unheard").split(), unheard=command)

    def _producer_acts(self, name: str, verb: str, *words: str, unheard: str) -> None:
        stage, heard = self.stage, not unheard.endswith(", unheard")
        if verb == "knows":
            stage.client(name).version = int(words[0].removeprefix("transaction.version="))
        elif verb == "begins":
            stage.begin(name, as_itself=words == ("as", "itself"), heard=heard)
        elif verb == "adds":
            stage.add(name, *words)
        elif verb == "verifies":
            stage.verify(name, *words)
        elif verb in ("commits", "aborts"):
            stage.end(name, is_commit=verb == "commits", heard=heard)
        else:
            raise AssertionError(f"nobody {verb}")

    def _move_epoch(self, producer_id: int, epoch: int) -> None:
        """As if so many transactions had been."""
        transaction = self.stage.transaction
        assert transaction is not None
        assert transaction.metadata.producer_id == producer_id
        transaction.metadata = replace(transaction.metadata, epoch=epoch)
        for client in self.stage.clients.values():
            if client.producer.producer_id == producer_id:
                client.producer = ProducerIdAndEpoch(producer_id, epoch)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    check(path, Teller().follow)


def test_transcripts_exist() -> None:
    assert len(FILES) >= 12
