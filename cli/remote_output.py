"""Output of `odradek remote`: tables and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from odradek.cli.dump_output import time_text
from odradek.cli.output import human_bytes, print_json, print_lines, print_table
from odradek.cli.remote_give_up import LostTopic, LostTopics, TieringForm
from odradek.cli.remote_summaries import SummaryWriter
from odradek.protocol.uuids import uuid_to_text
from odradek.storage.tiered.audit import (
    AuditFinding,
    RemoteStorageAudit,
    SegmentStatus,
    StorageUsage,
)
from odradek.storage.tiered.segment_metadata import TopicIdPartition

MEANINGS: Mapping[SegmentStatus, str] = {
    SegmentStatus.WHOLE: "complete",
    SegmentStatus.INCOMPLETE: "INCOMPLETE: objects of the segment are missing",
    SegmentStatus.MISSING: "MISSING: in the metadata, but not in the store",
    SegmentStatus.COPYING: "its copy is in progress, or the leader will remove it",
    SegmentStatus.DELETING: "its deletion is in progress",
    SegmentStatus.DANGLING: "garbage: not in the metadata",
    SegmentStatus.YOUNG: "not in the metadata, but recent: its copy may be in progress",
    SegmentStatus.UNCLEAR: "not in the metadata read here, but the metadata is incomplete: not removed",
    SegmentStatus.FOREIGN: "its partition is not in the metadata of the cluster: not removed",
    SegmentStatus.STRAY: "not an object of a segment: not removed",
}


def print_partitions(audit: RemoteStorageAudit, *, as_json: bool) -> None:
    """Print a row for each partition with objects or findings."""
    rest = _by_partition(audit.findings)
    partitions = sorted({*audit.usages, *(each for each in rest if each is not None)}, key=_order)
    if as_json:
        print_json(
            {
                "partitions": [
                    _tally_json(each, audit.usages.get(each, StorageUsage()), rest.get(each, []))
                    for each in partitions
                ],
                "stray": [each.stray.key for each in audit.findings if each.stray is not None],
            }
        )
        return
    print_table(
        ("TOPIC", "PARTITION", "TOPIC-ID", "SEGMENTS", "OBJECTS", "BYTES", "FINDINGS"),
        (
            (
                each.topic,
                each.partition,
                uuid_to_text(each.topic_id),
                tally.segments,
                tally.objects,
                human_bytes(tally.size_bytes),
                _counted(rest.get(each, [])),
            )
            for each in partitions
            for tally in [audit.usages.get(each, StorageUsage())]
        ),
    )
    _print_strays(audit)


def print_segments(findings: Sequence[AuditFinding], *, as_json: bool) -> None:
    """Print a row for each segment, by partition and offset."""
    if as_json:
        print_json({"segments": [_finding_json(each) for each in findings]})
        return
    print_table(
        ("TOPIC", "PARTITION", "OFFSETS", "SEGMENT", "BYTES", "STORED", "STATUS"),
        (
            (
                each.partition.topic,
                each.partition.partition,
                _offsets(each),
                _segment_id(each),
                human_bytes(None if each.stored is None else each.stored.size_bytes),
                "-" if each.stored is None else time_text(each.stored.newest_ms),
                each.status.value,
            )
            for each in findings
            if each.partition is not None
        ),
    )


def print_verified(
    audit: RemoteStorageAudit, problems: Sequence[str], *, as_json: bool, quick: bool
) -> None:
    total = _total(audit)
    if as_json:
        print_json(
            {
                **_sum_json(total),
                "bytesRead": not quick,
                "problems": list(problems),
                "findings": [_finding_json(each) for each in audit.findings],
            }
        )
        return
    print_lines(problems)
    _print_findings(audit.findings)
    losses = sum(each.status.is_loss for each in audit.findings)
    garbage = sum(each.status.is_garbage for each in audit.findings)
    unclear = sum(each.status is SegmentStatus.UNCLEAR for each in audit.findings)
    read = "" if quick else ", read and verified"
    print_lines(
        [
            f"{total.segments} segments, {total.objects} objects, {human_bytes(total.size_bytes)}{read}: "
            f"{len(problems)} problems, {losses} segments missing or incomplete, {garbage} garbage"
            + (f", {unclear} unclear" if unclear else "")
        ]
    )


def print_collected(
    audit: RemoteStorageAudit,
    garbage: Sequence[AuditFinding],
    swept: Sequence[str],
    *,
    executed: bool,
    as_json: bool,
) -> None:
    of_it = StorageUsage()
    for each in garbage:
        if each.stored is not None:
            of_it.add(each.stored)
        elif each.stray is not None:
            of_it.add_object(each.stray)
    rest = [each for each in audit.findings if not each.status.is_garbage]
    if as_json:
        print_json(
            {
                "executed": executed,
                "garbage": {**_sum_json(of_it), "found": [_finding_json(each) for each in garbage]},
                "unfinishedUploads": list(swept),
                "findings": [_finding_json(each) for each in rest],
            }
        )
        return
    _print_findings(audit.findings)
    done = "removed" if executed else "not removed; use --execute to remove them"
    size = human_bytes(of_it.size_bytes)
    print_lines([f"{of_it.segments} segments of garbage, {of_it.objects} objects, {size}: {done}"])
    if swept:
        print_lines([f"removed {len(swept)} incomplete uploads"])


def print_given_up(losses: LostTopics, *, executed: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "executed": executed,
                "directory": None if losses.directory is None else str(losses.directory),
                "topics": [_lost_json(each) for each in losses.topics],
                "left": losses.left,
            }
        )
        return
    if losses.directory is not None:
        done = "is now the store" if executed else "not yet the store; use --execute"
        print_lines([f"{losses.directory} {done}"])
    for topic in losses.topics:
        of = f"{len(topic.lost)} partitions, {human_bytes(topic.size_bytes)}"
        done = "given up" if executed else "not yet given up; use --execute"
        if topic.form is not TieringForm.ENABLED:
            done += ". Tiered storage remains disabled"
        print_lines([f"{topic.name}: {topic.segments} segments of {of}: {done}"])
        print_lines(
            f"{topic.name}-{partition} now starts at offset {offset}"
            for partition, offset in sorted(topic.begins_at.items())
        )
    print_lines(f"{each}: not changed" for each in losses.left)
    if not losses.topics and not losses.left and losses.directory is None:
        print_lines(["no topic is lost: the store has segments of each tiered topic"])


def print_summarized(made: SummaryWriter, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "partitions": made.partitions,
                "segments": made.segments,
                "summarizedByLeaders": made.by_leaders,
                "problems": made.problems,
            }
        )
        return
    print_lines(made.problems)
    print_lines(
        [
            f"{made.segments} segments of {made.partitions} partitions summarized; "
            f"{made.by_leaders} partitions have a summary written by their leader"
        ]
    )


def _print_findings(findings: Iterable[AuditFinding]) -> None:
    for each in findings:
        if each.stray is not None:
            print_lines([f"{each.stray.key}: {MEANINGS[each.status]}"])
        elif each.stored is not None:
            key = each.stored.removal_order()[0]
            missing = ", ".join(each.stored.missing(each.metadata))
            more = f" ({missing})" if each.status is SegmentStatus.INCOMPLETE else ""
            print_lines([f"{key[: key.rindex('.')]}: {MEANINGS[each.status]}{more}"])
        elif each.metadata is not None:
            print_lines([f"{each.metadata.id}, offsets {_offsets(each)}: {MEANINGS[each.status]}"])


def _print_strays(audit: RemoteStorageAudit) -> None:
    strays = [each for each in audit.findings if each.stray is not None]
    if strays:
        print_lines([f"{len(strays)} objects do not belong to a segment"])


def _by_partition(
    findings: Iterable[AuditFinding],
) -> dict[TopicIdPartition | None, list[AuditFinding]]:
    found: dict[TopicIdPartition | None, list[AuditFinding]] = {}
    for each in findings:
        found.setdefault(each.partition, []).append(each)
    return found


def _order(partition: TopicIdPartition) -> tuple[str, int, str]:
    return partition.topic, partition.partition, uuid_to_text(partition.topic_id)


def _counted(findings: Iterable[AuditFinding]) -> str:
    counts = Counter(each.status for each in findings)
    return ", ".join(f"{counts[each]} {each.value}" for each in SegmentStatus if counts[each])


def _total(audit: RemoteStorageAudit) -> StorageUsage:
    total = StorageUsage()
    for each in audit.usages.values():
        total.segments += each.segments
        total.objects += each.objects
        total.size_bytes += each.size_bytes
        total.log_bytes += each.log_bytes
    return total


def _offsets(finding: AuditFinding) -> str:
    if finding.metadata is not None:
        return f"{finding.metadata.start_offset}..{finding.metadata.end_offset}"
    return "-" if finding.stored is None else f"{finding.stored.start_offset}.."


def _segment_id(finding: AuditFinding) -> str:
    found = finding.stored or finding.metadata
    return "-" if found is None else uuid_to_text(found.id.id)


def _lost_json(topic: LostTopic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topicId": uuid_to_text(topic.topic_id),
        "tieredStorage": topic.form.value,
        "partitions": [
            {
                "partition": each.partition,
                "segments": segments,
                "bytes": size_bytes,
                "beginsAt": topic.begins_at.get(each.partition),
            }
            for each, (segments, size_bytes) in sorted(
                topic.lost.items(), key=lambda item: item[0].partition
            )
        ],
    }


def _tally_json(
    partition: TopicIdPartition, tally: StorageUsage, rest: Iterable[AuditFinding]
) -> dict[str, Any]:
    counts = Counter(each.status for each in rest)
    return {
        **_partition_json(partition),
        **_sum_json(tally),
        "notWhole": {each.value: counts[each] for each in SegmentStatus if counts[each]},
    }


def _sum_json(tally: StorageUsage) -> dict[str, Any]:
    return {
        "segments": tally.segments,
        "objects": tally.objects,
        "bytes": tally.size_bytes,
        "logBytes": tally.log_bytes,
    }


def _partition_json(partition: TopicIdPartition) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "topicId": uuid_to_text(partition.topic_id),
    }


def _finding_json(finding: AuditFinding) -> dict[str, Any]:
    shown: dict[str, Any] = {"status": finding.status.value}
    if finding.partition is not None:
        shown |= _partition_json(finding.partition)
        shown["segmentId"] = _segment_id(finding)
    if finding.metadata is not None:
        shown["startOffset"] = finding.metadata.start_offset
        shown["endOffset"] = finding.metadata.end_offset
        shown["state"] = finding.metadata.state.name
    if finding.stored is not None:
        shown["startOffset"] = finding.stored.start_offset
        shown["putMs"] = finding.stored.newest_ms
        shown["objects"] = {each.key: each.size for each in finding.stored.objects.values()}
    if finding.stray is not None:
        shown["key"] = finding.stray.key
    return shown
