"""Transcripts of a quorum, line by line: the events ("> …") and their effects.

The files under `tests/transcripts/quorum` are meant to be read with KIP-595, KIP-996 and KIP-853.
Each ends with the role, epoch, high watermark and log end of the nodes. After a change of the
rules, rewrite them with ODRADEK_REWRITE=1 and read the difference.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.replication.raft.transcript_quorum import Stage, add, remove
from tests.support.transcripts import check, transcripts

FILES = transcripts("quorum")


class TranscriptRunner:
    """Runs the commands of a transcript."""

    def __init__(self) -> None:
        self.stage = Stage(3, 3)

    def follow(self, command: str) -> list[str]:
        self.stage.lines.clear()
        self._act(command)
        return [*self.stage.lines, self.stage.describe_nodes()]

    def _act(self, command: str) -> None:
        stage = self.stage
        if match := re.fullmatch(r"(\d) nodes, the first (\d) vote", command):
            self.stage = Stage(int(match[1]), int(match[2]))
        elif command == "messages arrive":
            stage.arrive()
        elif command == "messages are lost":
            stage.lose()
        elif match := re.fullmatch(r"(\d) (adds|removes) (\d)", command):
            change = add if match[2] == "adds" else remove
            stage.change(int(match[1]), change(int(match[3])))
        elif match := re.fullmatch(r"(\d) writes (\w+)", command):
            stage.write(int(match[1]), match[2])
        else:
            node, what = command.split(" ", 1)
            {
                "times out": stage.time_out,
                "retries": stage.retry,
                "is partitioned": stage.partition_node,
                "is killed": stage.kill,
                "loses power": stage.lose_power,
                "starts": stage.start,
                "is reachable": stage.down.discard,
                "shuts down": stage.shut_down,
            }[what](int(node))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    check(path, TranscriptRunner().follow)


def test_transcripts_exist() -> None:
    assert len(FILES) >= 6
