"""Transcripts of consumer groups: each command ("> …") and its effects.

The files in `tests/transcripts/consumer_groups` illustrate KIP-848. After a change of the rules, rewrite them with
ODRADEK_REWRITE=1 and review the diff.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odradek.broker.groups.config import (
    ConsumerGroupConfig,
    ConsumerGroupMigrationPolicy,
    GroupConfig,
)
from odradek.broker.groups.messages import LeavingMember
from odradek.protocol.errors import ErrorCode
from tests.broker.groups.consumer.consumer_group_driver import ConsumerStage, Owned
from tests.support.transcripts import check, transcripts

FILES = transcripts("consumer_groups")
CONFIGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "group.initial.rebalance.delay.ms": ("initial_rebalance_delay_ms", int),
    "group.consumer.max.size": ("consumer_max_size", int),
    "group.consumer.migration.policy": ("migration_policy", ConsumerGroupMigrationPolicy),
    "group.consumer.assignors": ("consumer_assignors", lambda text: tuple(text.split(","))),
}
SETTINGS = {
    "consumer.session.timeout.ms": "session_timeout_ms",
    "consumer.assignment.interval.ms": "assignment_interval_ms",
}
OPTION_TYPES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "topics": ("topics", lambda text: tuple(filter(None, text.split(",")))),
    "regex": ("regex", str),
    "instance": ("instance_id", str),
    "rebalance": ("rebalance_timeout_ms", int),
    "session": ("session_timeout_ms", int),
    "assignor": ("assignor", str),
    "protocols": ("protocols", lambda text: tuple(text.split(","))),
}


class TranscriptRunner:
    """Runs the commands of a transcript on a stage."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.settings: dict[str, int] = {"assignment_interval_ms": 0}
        self._stage: ConsumerStage | None = None

    @property
    def stage(self) -> ConsumerStage:
        if self._stage is None:
            settings = ConsumerGroupConfig(**self.settings)
            self._stage = ConsumerStage(GroupConfig(**self.config), settings)
        return self._stage

    def follow(self, command: str) -> list[str]:
        if command.startswith("config "):
            name, _, value = command.removeprefix("config ").partition("=")
            if name in SETTINGS:
                self.settings[SETTINGS[name]] = int(value)
            else:
                attribute, read = CONFIGS[name]
                self.config[attribute] = read(value)
            return []
        self.stage.story.clear()
        self._act(command)
        return [*self.stage.story, self.stage.where_it_stands()]

    def _act(self, command: str) -> None:
        stage = self.stage
        if match := re.fullmatch(r"(\d+) ms pass", command):
            stage.advance(int(match[1]))
        elif match := re.fullmatch(r"topic (\S+) has (\d+) partitions", command):
            stage.set_topic(match[1], int(match[2]))
        elif match := re.fullmatch(r"topic (\S+) is deleted", command):
            stage.set_topic(match[1], 0)
        elif match := re.fullmatch(r"the next append fails with (\w+)", command):
            stage.fail_with = ErrorCode[match[1].lower()]
        elif command == "the broker restarts":
            stage.restart()
        elif command == "expressions take their time":
            stage.resolving = False
        elif command == "expressions are matched":
            stage.resolve()
        elif match := re.fullmatch(r"an admin removes (.+)", command):
            stage.leave(*(LeavingMember("", each) for each in match[1].split()))
        else:
            name, verb, *words = command.split()
            self._client_acts(name, verb, words)

    def _client_acts(self, name: str, verb: str, words: list[str]) -> None:
        stage = self.stage
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        values = {
            OPTION_TYPES[key][0]: OPTION_TYPES[key][1](text)
            for key, text in fields.items()
            if key in OPTION_TYPES
        }
        match verb:
            case "joins":
                stage.join_new(name, **values)
            case "restarts":
                stage.consumer(name).member_id = ""
                stage.join_new(name, **values)
            case "heartbeats":
                stage.beat(name, reconciles=words != ["holding", "on"])
            case "subscribes":
                stage.subscribe(name, *values.get("topics", ()), regex=values.get("regex"))
            case "leaves":
                stage.leave_new(name, -2 if words == ["for", "now"] else -1)
            case "commits":
                self._commits(name, fields)
            case "loses":  # the response to its last heartbeat was lost
                stage.consumer(name).epoch = int(fields["epoch"])
            case _:
                self._classic_acts(name, verb, values, fields)

    def _classic_acts(
        self, name: str, verb: str, values: dict[str, Any], fields: dict[str, str]
    ) -> None:
        stage = self.stage
        match verb:
            case "classic-joins":
                stage.join(name, **values)
            case "classic-restarts":
                stage.consumer(name).member_id = ""
                stage.join(name, **values)
            case "classic-syncs":
                stage.sync_with(name, **{who: owned(text) for who, text in fields.items()})
            case "classic-heartbeats":
                stage.heartbeat(name)
            case "classic-leaves":
                stage.leaves(name)
            case _:
                raise AssertionError(f"unknown command: {verb}")

    def _commits(self, name: str, fields: dict[str, str]) -> None:
        epoch = int(fields.pop("epoch", self.stage.consumer(name).epoch))
        offsets = {}
        for partition, offset in fields.items():
            topic, _, index = partition.rpartition("-")
            offsets[topic, int(index)] = int(offset)
        self.stage.commit_new(name, offsets, epoch)


def owned(text: str) -> Owned:
    """`t:0,1;u:2`."""
    found: Owned = {}
    for part in filter(None, text.split(";")):
        topic, _, partitions = part.partition(":")
        found[topic] = tuple(int(each) for each in partitions.split(","))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    check(path, TranscriptRunner().follow)


def test_transcripts_exist() -> None:
    assert len(FILES) >= 10
