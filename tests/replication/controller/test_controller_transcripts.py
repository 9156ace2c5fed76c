"""Transcripts of the controller's decisions about a partition: commands ("> …"), records, results and states.

Read the files in `tests/transcripts/controller` together with KIP-455 (reassignments), KIP-966 (eligible leader
replicas) and KIP-841. After a change of the behaviour, rewrite the files with ODRADEK_REWRITE=1 and review the
difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import pytest

from odradek.protocol.schemas.topic_records import PartitionChangeRecord
from odradek.replication.controller.alter_partition import ProposedIsr, alter_partitions
from odradek.replication.controller.broker_directories import mark_directories_offline
from odradek.replication.controller.broker_fencing import (
    begin_controlled_shutdown,
    fence_broker,
    unfence_broker,
)
from odradek.replication.controller.broker_registration import register_broker
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.image import MetadataImage, PartitionImage
from odradek.replication.controller.leader_election import elect_leaders
from odradek.replication.controller.partition_change_builder import ElectionType
from odradek.replication.controller.reassignments import (
    Reassignment,
    alter_reassignments,
    list_reassignments,
)
from odradek.replication.controller.topics import NewTopic
from tests.support.cluster_images import (
    cluster,
    committed,
    create,
    directory,
    partition,
    registration,
)
from tests.support.transcripts import check, transcripts

T = TypeVar("T")

FILES = transcripts("controller")
TOPIC = "t"
REPORTED = {
    "replicas": "replicas",
    "adding_replicas": "adding",
    "removing_replicas": "removing",
    "isr": "ISR",
    "eligible_leader_replicas": "ELR",
    "last_known_elr": "last known leader",
    "leader": "leader",
    "leader_recovery_state": "recovery state",
}
"""Record fields in the order of the transcript."""


class TranscriptRunner:
    """Runs the commands of a transcript with the operations of the controller."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.image = MetadataImage()

    def follow(self, command: str) -> list[str]:
        self.story.clear()
        for pattern, act in _COMMANDS:
            if match := re.fullmatch(pattern, command):
                act(self, *match.groups())
                break
        else:
            raise ValueError(f"unknown command {command!r}")
        return [*self.story, f"[{self._stand(self.now)}]"]

    @property
    def now(self) -> PartitionImage:
        return partition(self.image, TOPIC)

    def _perform(self, plan: ControllerResult[T]) -> T:
        """Print, commit and replay the records of an operation."""
        nothing = PartitionChangeRecord(
            partition_id=0, topic_id=self.image.topics_by_name[TOPIC].id
        )
        for record in plan.records:
            if isinstance(record, PartitionChangeRecord):
                self.story.append(f"PartitionChangeRecord: {_rendered(record, nothing)}")
        self.image = committed(self.image, plan.records)
        return plan.result

    def _stand(self, now: PartitionImage) -> str:
        leader = f"{now.leader} leads {now.leader_epoch}" if now.leader >= 0 else "no leader"
        optional = {
            "adding": now.adding_replicas,
            "removing": now.removing_replicas,
            "ELR": now.elr,
            "last known leader": now.last_known_elr,
        }
        return ", ".join(
            [
                f"replicas {_ids(now.replicas)}",
                f"ISR {_ids(now.isr)}",
                *(f"{name} {_ids(which)}" for name, which in optional.items() if which),
                f"{leader}, partition epoch {now.partition_epoch}",
            ]
        )

    # Commands

    def begin(self, brokers: str, replicas: str, min_isr: str, unclean: str | None) -> None:
        configs = {"min.insync.replicas": min_isr}
        if unclean is not None:
            configs["unclean.leader.election.enable"] = "true"
        assignment = {0: _numbers(replicas)}
        self.image, _ = create(
            cluster(int(brokers)), NewTopic(TOPIC, assignments=assignment, configs=configs)
        )

    def reassign(self, replicas: str, as_many: str | None) -> None:
        wanted = [Reassignment(TOPIC, 0, _numbers(replicas))]
        self._reassigned(
            alter_reassignments(self.image, wanted, allow_replication_factor_change=as_many is None)
        )

    def cancel(self) -> None:
        self._reassigned(alter_reassignments(self.image, [Reassignment(TOPIC, 0, None)]))

    def _reassigned(self, plan: ControllerResult[Any]) -> None:
        (error,) = self._perform(plan)
        if error is not None:
            self.story.append(error.code.name.upper())

    def list(self) -> None:
        found = list_reassignments(self.image, None)
        for _, moving in found:
            self.story += [
                f"replicas {_ids(each.replicas)}, adding {_ids(each.adding_replicas)}, "
                f"removing {_ids(each.removing_replicas)}"
                for each in moving.values()
            ]
        if not found:
            self.story.append("no reassignment")

    def alter(self, broker: str, isr: str, partition_epoch: str | None) -> None:
        """Propose an ISR with the current epochs, or with an older partition epoch."""
        node, now = int(broker), self.now
        epoch = now.partition_epoch if partition_epoch is None else int(partition_epoch)
        members = [(each, self.image.brokers[each].epoch) for each in _numbers(isr)]
        topic_id = self.image.topics_by_name[TOPIC].id
        proposed = ProposedIsr(topic_id, 0, now.leader_epoch, epoch, members)
        plan = alter_partitions(self.image, node, self.image.brokers[node].epoch, [proposed])
        (response,) = self._perform(plan)
        reported = response.error_code.name.upper() if response.state is None else "accepted"
        self.story.append(f"-> {broker} {reported}")

    def fence(self, broker: str) -> None:
        node = self.image.brokers[int(broker)]
        self._perform(fence_broker(self.image, node.id, node.epoch))

    def unfence(self, broker: str) -> None:
        node = self.image.brokers[int(broker)]
        self._perform(unfence_broker(self.image, node.id, node.epoch))

    def shut_down(self, broker: str) -> None:
        node = self.image.brokers[int(broker)]
        self._perform(begin_controlled_shutdown(self.image, node.id, node.epoch))

    def come_back(self, broker: str, crashed: str | None) -> None:
        """Register again, fenced; the last shutdown was clean if the broker has its epoch."""
        node = self.image.brokers[int(broker)]
        last = -1 if crashed is not None else node.epoch
        who = registration(node.id, incarnation=self.image.offset, previous_epoch=last)
        self._perform(register_broker(self.image, who, next_offset=self.image.offset + 1))

    def lose_directory(self, broker: str) -> None:
        node = self.image.brokers[int(broker)]
        lost = [directory(node.id)]
        self._perform(mark_directories_offline(self.image, node.id, node.epoch, lost))

    def elect(self, kind: str) -> None:
        election = ElectionType.PREFERRED if kind == "preferred" else ElectionType.UNCLEAN
        (response,) = self._perform(elect_leaders(self.image, election, [(TOPIC, 0)]))
        if response.error is not None:
            self.story.append(response.error.code.name.upper())


def _rendered(record: PartitionChangeRecord, nothing: PartitionChangeRecord) -> str:
    changed = {each.name for each in fields(record)}
    return ", ".join(
        f"{reported} {_value(getattr(record, name))}"
        for name, reported in REPORTED.items()
        if name in changed and getattr(record, name) != getattr(nothing, name)
    )


def _value(value: Any) -> str:
    return str(value) if isinstance(value, int) else _ids(value)


def _ids(brokers: Sequence[int]) -> str:
    return " ".join(map(str, brokers)) or "-"


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split()]


_COMMANDS: list[tuple[str, Callable[..., None]]] = [
    (
        r"(\d) brokers; replicas ([\d ]+); min.insync.replicas (\d)(; unclean elections)?",
        TranscriptRunner.begin,
    ),
    (r"reassign to ([\d ]+)(, keeping the replication factor)?", TranscriptRunner.reassign),
    (r"cancel", TranscriptRunner.cancel),
    (r"list", TranscriptRunner.list),
    (r"(\d) proposes ISR ([\d ]+)(?:, knowing partition epoch (\d+))?", TranscriptRunner.alter),
    (r"(\d) is fenced", TranscriptRunner.fence),
    (r"(\d) is unfenced", TranscriptRunner.unfence),
    (r"(\d) starts a controlled shutdown", TranscriptRunner.shut_down),
    (r"(\d) registers(, after an unclean shutdown)?", TranscriptRunner.come_back),
    (r"the directory of (\d) fails", TranscriptRunner.lose_directory),
    (r"(preferred|unclean) leader election", TranscriptRunner.elect),
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    check(path, TranscriptRunner().follow)


def test_transcripts_exist() -> None:
    assert len(FILES) >= 8
