"""Transcripts of disablements of tiered storage (KIP-950): config changes, responses of brokers, and failovers.

After a change of the behaviour, rewrite the files in `tests/transcripts/tiering` with ODRADEK_REWRITE=1 and review the
difference. Each command is followed by the records that it commits, and by the state of the topic: the brokers that have
to respond are those to which the active controller sends DisableRemoteTopic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from odradek.protocol.schemas.cluster_records import NoOpRecord
from odradek.protocol.schemas.topic_records import ConfigRecord, PartitionChangeRecord
from odradek.replication.controller.broker_registration import register_broker
from odradek.replication.controller.configs import (
    AlterConfigOp,
    ConfigAlteration,
    incremental_alter_configs,
)
from odradek.replication.controller.image import TOPIC, MetadataImage, TieredState
from odradek.replication.controller.topic_tiering import (
    DisablementProgress,
    complete,
    tiering_record,
)
from odradek.replication.controller.topics import NewTopic, delete_topics
from tests.support.cluster_images import any_config, cluster, committed, create, registration
from tests.support.transcripts import check, transcripts

FILES = transcripts("tiering")


class DisablementRunner:
    """Runs the commands of a transcript on a topic `t` with two partitions on three brokers."""

    def __init__(self) -> None:
        configs = {"remote.storage.enable": "true"}
        topic = NewTopic("t", 2, 3, configs=configs)
        self.image: MetadataImage = create(cluster(3), topic)[0]
        self.topic_id = self.image.topics_by_name["t"].id
        self.progress: DisablementProgress | None = None

    def follow(self, command: str) -> list[str]:
        if match := re.fullmatch(r"set (.*)", command):
            lines = self._set(match[1])
        elif match := re.fullmatch(r"broker (\d) responds", command):
            lines = self._respond(int(match[1]))
        elif match := re.fullmatch(r"broker (\d) restarts", command):
            plan = register_broker(
                self.image,
                registration(int(match[1]), incarnation=1),
                next_offset=self.image.offset + 1,
            )
            lines = self._commit(plan.records)
        elif match := re.fullmatch(r"broker (\d) leads partition (\d)", command):
            lines = self._commit(
                [
                    PartitionChangeRecord(
                        topic_id=self.topic_id, partition_id=int(match[2]), leader=int(match[1])
                    )
                ]
            )
        elif command == "another controller becomes active":
            self.progress, lines = None, []
        elif command == "delete the topic":
            lines = self._commit(delete_topics(self.image, ["t"]).records)
        else:
            raise ValueError(f"unknown command {command!r}")
        return [*lines, f"[{self._state()}]"]

    def _set(self, text: str) -> list[str]:
        changes = [
            ConfigAlteration(name, AlterConfigOp.SET, value)
            for name, _, value in (each.partition("=") for each in text.split(" "))
        ]
        plan = incremental_alter_configs(
            self.image, [((TOPIC, "t"), changes)], validate_config=any_config, list_configs={}
        )
        (result,) = plan.result
        if result.error_message is not None:
            return [f"{result.error_code.name} ({int(result.error_code)}): {result.error_message}"]
        return self._commit(plan.records)

    def _respond(self, broker: int) -> list[str]:
        assert self.progress is not None
        self.progress.responded(broker, self.image)
        if not self.progress.is_complete(self.image):
            return []
        tiering = complete(self.image.tiering_of(self.topic_id), self.progress.epoch)
        return self._commit([tiering_record(self.topic_id, tiering)])

    def _commit(self, records: Sequence[Any]) -> list[str]:
        self.image = committed(self.image, records)
        return [_shown(record) for record in records]

    def _state(self) -> str:
        if self.topic_id not in self.image.topics_by_id:
            return "no topic"
        tiering = self.image.tiering_of(self.topic_id)
        policy = "" if tiering.policy is None else f" with {tiering.policy.value}"
        text = f"{tiering.state.name}{policy}, tiered epoch {tiering.epoch}"
        if tiering.state is not TieredState.DISABLING:
            return text
        if self.progress is None or not self.progress.is_current(self.image):
            self.progress = DisablementProgress(self.topic_id, tiering.epoch)
        return f"{text}, brokers {self.progress.missing(self.image)} have to respond"


def _shown(record: Any) -> str:
    if isinstance(record, ConfigRecord):
        return f"ConfigRecord {record.name}: {record.value}"
    if isinstance(record, NoOpRecord):
        return (
            f"NoOpRecord with tiered epoch {record.tiered_epoch},"
            f" state {TieredState(record.tiered_state).name}, policy {record.tiered_policy or 'none'},"
            f" first epoch {record.tiered_first_epoch}"
        )
    return type(record).__name__


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_tiering_transcripts(path: Path) -> None:
    check(path, DisablementRunner().follow)


def test_transcripts_cover_both_policies() -> None:
    assert {path.stem for path in FILES} == {"delete", "retain"}
