"""Transcripts of a partition: commands ("> …"), and the messages and states that follow.

Read the files in `tests/transcripts/partition` together with KIP-101, KIP-279, KIP-497 and KIP-903. A log
is shown as its records with their epochs, `a0 b0 c1`, "up to" its high watermark. After a change of the
behaviour, rewrite the files with ODRADEK_REWRITE=1 and review the difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.replication.partition.simulated_partition import CONTROLLER, Message, SimulatedPartition
from tests.support.controller_stub import Image
from tests.support.transcripts import check, transcripts

FILES = transcripts("partition")
TICK_MS = 60
"""More than replica.lag.time.max.ms."""


class TranscriptRunner:
    """Runs the commands of a transcript. Messages are delivered unless a command delays them."""

    def __init__(self) -> None:
        self._begin(SimulatedPartition())

    def _begin(self, world: SimulatedPartition) -> None:
        self.world = world
        self._settle(_is_image)

    def follow(self, command: str) -> list[str]:
        self.world.lines.clear()
        for pattern, act in _COMMANDS:
            if match := re.fullmatch(pattern, command):
                act(self, *match.groups())
                break
        else:
            raise ValueError(f"unknown command {command!r}")
        world = self.world  # `world_of` replaces it
        return [*world.lines, world.describe_replicas(), f"[{world.controller.described()}]"]

    def _settle(self, wanted: Callable[[Message], bool]) -> None:
        while found := next(filter(wanted, self.world.sent), None):
            self.world.deliver(found)

    def world_of(self, min_isr: str, older: str | None) -> None:
        self._begin(SimulatedPartition(min_isr=int(min_isr), compares=older is None))

    def write(self, node: str, text: str) -> None:
        for each in text.split():
            self.world.write(self.world.nodes[int(node)], each)

    def copy(self, node: str, last: str) -> None:
        """Copy from the highest copied offset to `last`, as one segment."""
        self.world.copy(self.world.nodes[int(node)], int(last) + 1)

    def leave_disk(self, node: str, offset: str) -> None:
        self.world.leave_disk(self.world.nodes[int(node)], int(offset))

    def fetch(self, nodes: str) -> None:
        """Run a fetch of each node in turn, after pending changes of its log."""
        for each in nodes.split():
            node = self.world.nodes[int(each)]
            self.world.now_ms += 10
            node.advance()
            self._settle(partial(_is_fetch_of, node.id))

    def ask(self, node: str) -> None:
        self.world.nodes[int(node)].advance()

    def settle_fetches(self) -> None:
        self._settle(lambda message: CONTROLLER not in (message.sender, message.to))

    def crash(self, node: str, end: str | None) -> None:
        end_offset = None if end is None else int(end)
        crashed = self.world.nodes[int(node)]
        self.world.crash(crashed, end_offset=end_offset, high_watermark=crashed.log.high_watermark)

    def start(self, node: str) -> None:
        self.world.start(self.world.nodes[int(node)])

    def fence(self, node: str) -> None:
        self.world.controller.fence(int(node))
        self.world.spread()

    def unfence(self, node: str) -> None:
        self.world.controller.unfence(int(node))
        self.world.spread()

    def prefer(self, node: str) -> None:
        self.world.controller.prefer(int(node))
        self.world.spread()

    def elect_uncleanly(self, node: str) -> None:
        self.world.was_unclean = True
        self.world.controller.elect_uncleanly(int(node))
        self.world.spread()

    def images(self, nodes: str) -> None:
        """Deliver the newest image, which includes all earlier ones."""
        wanted = {int(each) for each in nodes.split()}
        self._settle(lambda message: _is_image(message) and message.to in wanted)

    def alter(self) -> None:
        self._settle(lambda message: message.to == CONTROLLER)

    def alter_behind(self) -> None:
        (asked,) = [message for message in self.world.sent if message.to == CONTROLLER]
        self.world.respond_behind(asked)

    def altered(self) -> None:
        self._settle(lambda message: message.sender == CONTROLLER and not _is_image(message))

    def pass_time(self) -> None:
        self.world.now_ms += TICK_MS
        for node in self.world.nodes.values():
            if node.up and node.leader is not None:
                node.do(node.leader.tick(self.world.now_ms))


def _is_image(message: Message) -> bool:
    return isinstance(message.content, Image)


def _is_fetch_of(follower: int, message: Message) -> bool:
    ends = (message.sender, message.to)
    return follower in ends and CONTROLLER not in ends


_COMMANDS: list[tuple[str, Callable[..., None]]] = [
    (
        r"min.insync.replicas is (\d)(, and Fetch has no diverging epochs)?",
        TranscriptRunner.world_of,
    ),
    (r"(\d) writes (.+)", TranscriptRunner.write),
    (r"([\d ]+) fetch(?:es)?", TranscriptRunner.fetch),
    (r"(\d) copies up to (\d+)", TranscriptRunner.copy),
    (r"the local log of (\d) starts at (\d+)", TranscriptRunner.leave_disk),
    (r"(\d) fetches, and the request is delayed", TranscriptRunner.ask),
    (r"delayed messages arrive", TranscriptRunner.settle_fetches),
    (r"(\d) crashes(?:, and loses its log from (\d))?", TranscriptRunner.crash),
    (r"(\d) starts", TranscriptRunner.start),
    (r"(\d) is fenced", TranscriptRunner.fence),
    (r"(\d) is unfenced", TranscriptRunner.unfence),
    (r"(\d) is preferred", TranscriptRunner.prefer),
    (r"(\d) is elected uncleanly", TranscriptRunner.elect_uncleanly),
    (r"([\d ]+) receives? the image", TranscriptRunner.images),
    (r"the controller handles the request", TranscriptRunner.alter),
    (r"a stale controller handles the request", TranscriptRunner.alter_behind),
    (r"the controller's response arrives", TranscriptRunner.altered),
    (r"time passes", TranscriptRunner.pass_time),
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    check(path, TranscriptRunner().follow)


def test_transcripts_exist() -> None:
    assert len(FILES) >= 6
