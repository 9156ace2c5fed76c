"""Transcripts of classic groups: each command ("> …") and its effects.

The files in `tests/transcripts/classic_groups` illustrate the KIPs that they name. After a change of the rules, rewrite them with
ODRADEK_REWRITE=1 and review the diff.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.messages import LeavingMember
from odradek.protocol.errors import ErrorCode
from tests.broker.groups.group_shard_driver import GROUP, Stage
from tests.support.transcripts import check, transcripts

FILES = transcripts("classic_groups")
CONFIGS = {
    "group.initial.rebalance.delay.ms": "initial_rebalance_delay_ms",
    "delayed_heartbeat": "delayed_heartbeat_ms",
    "group.max.size": "max_size",
}
OPTION_TYPES: dict[str, Callable[[str], Any]] = {
    "protocols": lambda text: tuple(text.split(",")),
    "topics": lambda text: tuple(text.split(",")),
    "instance": str,
    "session": int,
    "rebalance": int,
    "version": int,
    "type": str,
    "reason": lambda text: text.replace("_", " "),
}
ATTRIBUTES = {
    "instance": "instance_id",
    "session": "session_timeout_ms",
    "rebalance": "rebalance_timeout_ms",
    "type": "protocol_type",
}


class TranscriptRunner:
    """Runs the commands of a transcript on a stage."""

    def __init__(self) -> None:
        self.config: dict[str, int] = {}
        self._stage: Stage | None = None

    @property
    def stage(self) -> Stage:
        if self._stage is None:
            self._stage = Stage(GroupConfig(**self.config))
        return self._stage

    def follow(self, command: str) -> list[str]:
        if command.startswith("config "):
            name, _, value = command.removeprefix("config ").partition("=")
            self.config[CONFIGS[name]] = int(value)
            return []
        self.stage.story.clear()
        self._act(command)
        return [*self.stage.story, self._where_it_stands()]

    def _act(self, command: str) -> None:
        stage = self.stage
        if match := re.fullmatch(r"(\d+) ms pass", command):
            stage.advance(int(match[1]))
        elif match := re.fullmatch(r"the next append fails with (\w+)", command):
            stage.fail_with = ErrorCode[match[1].lower()]
        elif command == "the replicas fall behind":
            stage.holding = True
        elif command == "the replicas catch up":
            stage.holding = False
            stage.release()
        elif command == "the replicas give up":
            stage.holding = False
            stage.release(code=ErrorCode.coordinator_not_available)
        elif command == "the broker restarts":
            stage.restart()
        elif match := re.fullmatch(r"an admin removes (.+)", command):
            stage.leave(*(LeavingMember("", each) for each in match[1].split()))
        else:
            name, verb, *words = command.split()
            self._client_acts(name, verb, dict(word.split("=", 1) for word in words))

    def _client_acts(self, name: str, verb: str, fields: dict[str, str]) -> None:
        stage = self.stage
        if verb in ("joins", "restarts"):
            if verb == "restarts":
                stage.client(name).member_id = ""
            values = {
                ATTRIBUTES.get(key, key): OPTION_TYPES[key](text) for key, text in fields.items()
            }
            stage.join(name, **values)
        elif verb == "syncs":
            stage.sync(name, **{who: text.encode() for who, text in fields.items()})
        elif verb == "heartbeats":
            stage.heartbeat(name)
        elif verb == "leaves":
            stage.leaves(name, fields.get("reason", "").replace("_", " ") or None)
        elif verb == "commits":
            offsets = {}
            for partition, offset in fields.items():
                topic, _, index = partition.rpartition("-")
                offsets[topic, int(index)] = int(offset)
            stage.commit(name, offsets)
        else:
            raise AssertionError(f"unknown command: {verb}")

    def _where_it_stands(self) -> str:
        group = self.stage.shard.groups.get(GROUP)
        if group is None:
            return "[no group]"
        parts = [group.state_name, f"generation {group.generation}"]
        if group.members.by_id:
            parts.append("members " + " ".join(group.members.by_id))
            parts.append(f"leader {group.members.leader_id}")
        if group.members.pending_join_members:
            parts.append("pending " + " ".join(group.members.pending_join_members))
        return f"[{', '.join(parts)}]"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    check(path, TranscriptRunner().follow)


def test_transcripts_exist() -> None:
    assert len(FILES) >= 10
