"""`odradek topics tiering`: show, disable and enable tiered storage of a topic (KIP-405, KIP-950).

The tiered state, the policies and the progress are Odradek's. For Apache Kafka the command shows the state
according to the configs, and `--enable` works; `--disable` is refused with the configs of Kafka that have the same
purpose.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

from odradek.cli.cluster_connection import add_cluster_subcommand
from odradek.cli.errors import CommandFailed
from odradek.cli.output import ProgressLine, print_json, print_lines, print_now, print_table
from odradek.cli.terminal import hint
from odradek.client import admin
from odradek.client.errors import ClientError, retriable
from odradek.client.metadata import Cluster
from odradek.client.topic_tiering_admin import (
    COPY_DISABLE,
    DISABLE_POLICY,
    ENABLE,
    TieredState,
    TopicTiering,
    describe_topic_tiering,
    has_tiered_state,
    remote_segment_counts,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams import Seams
from odradek.seams.values import value_class

POLL_EVERY_S = 0.5
PROGRESS_EVERY_S = 10.0
"""Interval of progress lines if stderr is not a terminal."""
UNREACHABLE_MAX_S = 300.0
"""How long the cluster may not respond, for example during a restart, before the command fails."""

EPILOG = """\
Without an option, the command shows the tiered state:
  ENABLED     segments are copied to the remote tier, unless remote.log.copy.disable=true
  DISABLING   brokers have not finished their part; changes of tiered storage are refused until then
  DISABLED    all brokers have finished
  NOT_TIERED  tiered storage was never enabled, or was disabled with Kafka's form

--disable has two policies (KIP-950). It sets remote.storage.enable=false and remote.log.disable.policy:
  retain      nothing more is copied; the data in the remote tier remains readable and expires by retention.
              --enable continues the copies, --disable delete deletes the data
  delete      the data in the remote tier is deleted; the log then starts with the data on the disk.
              The deleted data cannot be restored; --enable copies new segments

Kafka's form has no state and no progress:
  odradek configs alter topic TOPIC --set remote.log.copy.disable=true           # as retain
  odradek configs alter topic TOPIC --set remote.storage.enable=false \\
      --set remote.log.delete.on.disable=true                                    # as delete

examples:
  odradek topics tiering orders
  odradek topics tiering orders --disable retain
  odradek topics tiering orders --disable delete --no-wait
  odradek topics tiering orders --wait
  odradek topics tiering orders --enable
"""
KAFKA_FORM = """\
the cluster does not have {policy} (KIP-950), which Apache Kafka lacks. Kafka's configs are:
  odradek configs alter topic {topic} {options}"""
KAFKA_OPTIONS = {
    "retain": "--set remote.log.copy.disable=true",
    "delete": "--set remote.storage.enable=false --set remote.log.delete.on.disable=true",
}


def add_tiering_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    parser = add_cluster_subcommand(
        commands,
        "tiering",
        "show, disable or enable tiered storage of a topic",
        run_tiering,
        epilog=EPILOG,
    )
    parser.add_argument("topic", metavar="TOPIC")
    change = parser.add_mutually_exclusive_group()
    change.add_argument(
        "--disable",
        choices=list(KAFKA_OPTIONS),
        metavar="POLICY",
        help="disable tiered storage, and retain or delete the data in the remote tier",
    )
    change.add_argument("--enable", action="store_true", help="enable tiered storage")
    parser.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        help="wait while the state is DISABLING, and show the progress (default with --disable). Ctrl-C ends only"
        " the command: the disablement continues",
    )


@value_class
class TieringReport:
    """Tiered storage of a topic for the output. The last two are only known from Odradek."""

    topic: str
    state: str
    segments: Mapping[int, int | None]
    """Remote log segments of each partition; None if unknown."""
    without_leader: tuple[int, ...] = ()
    tiering: TopicTiering | None = None
    copy_disable: bool = False
    """Whether tiered storage is enabled with remote.log.copy.disable=true."""

    @property
    def is_disabling(self) -> bool:
        return self.tiering is not None and self.tiering.state is TieredState.DISABLING

    @property
    def responded(self) -> str:
        brokers = () if self.tiering is None else self.tiering.brokers
        return f"{sum(each.is_done for each in brokers)} of {len(brokers)}"

    @property
    def segment_count(self) -> int | None:
        """Remote log segments of all partitions; None if a number is unknown."""
        counts = [count for count in self.segments.values() if count is not None]
        return sum(counts) if len(counts) == len(self.segments) else None

    def progress(self) -> str:
        count = self.segment_count
        left = "unknown" if count is None else str(count)
        return (
            f"{self.topic}: {self.state}, brokers that have finished: {self.responded},"
            f" remote segments: {left}"
        )

    def document(self) -> dict[str, Any]:
        tiering = self.tiering
        return {
            "topic": self.topic,
            "state": self.state,
            "epoch": None if tiering is None else tiering.epoch,
            "policy": None if tiering is None else tiering.policy,
            "copy_disable": self.copy_disable,
            "brokers": [] if tiering is None else broker_rows(tiering),
            "remote_segments": self.segment_count,
            "partitions": [
                {
                    "partition": index,
                    "has_leader": index not in self.without_leader,
                    "remote_segments": count,
                }
                for index, count in self.segments.items()
            ],
        }


def broker_rows(tiering: TopicTiering) -> list[dict[str, Any]]:
    """Rows of the brokers for JSON."""
    return [
        {"broker": each.broker_id, "finished": each.is_done, "reason": each.reason}
        for each in tiering.brokers
    ]


async def run_tiering(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    topic = args.topic
    await cluster.topic(topic)
    if args.disable is not None:
        await _disable(cluster, topic, args.disable)
    elif args.enable:
        await _alter(cluster, topic, {ENABLE: "true"})
    report = await _report(cluster, topic)
    waits = args.disable is not None if args.wait is None else args.wait
    if waits and report.is_disabling:
        try:
            report = await _wait(cluster, seams, report, is_json=args.json)
        except KeyboardInterrupt:
            hint(
                f"\nThe disablement continues. `odradek topics tiering {topic}` shows its progress."
            )
            raise
    if args.json:
        print_json(report.document())
    else:
        _print(report)
    return 0


async def _disable(cluster: Cluster, topic: str, policy: str) -> None:
    """Disable tiered storage, unless it is disabled with this policy. Raises CommandFailed."""
    before = await _report(cluster, topic)
    if before.state == "NOT_TIERED":
        raise CommandFailed(
            f"topic {topic} is not tiered\n`odradek topics tiering {topic} --enable` enables tiered storage"
        )
    tiering = before.tiering
    if tiering is None:
        options = KAFKA_OPTIONS[policy]
        raise CommandFailed(KAFKA_FORM.format(policy=DISABLE_POLICY, topic=topic, options=options))
    if tiering.state is not TieredState.DISABLED or tiering.policy != policy:
        await _alter(cluster, topic, {ENABLE: "false", DISABLE_POLICY: policy})


async def _alter(cluster: Cluster, topic: str, configs: Mapping[str, str]) -> None:
    changes = [
        admin.ConfigChange(admin.ConfigOperation.SET, name, value)
        for name, value in configs.items()
    ]
    await admin.alter_configs(cluster, admin.ResourceType.TOPIC, topic, changes)


async def _report(cluster: Cluster, topic: str) -> TieringReport:
    """Tiered state, progress and remote segments, or the state according to the configs if the cluster has no
    tiered state."""
    keys = [ENABLE, COPY_DISABLE]
    entries = await admin.describe_configs(cluster, admin.ResourceType.TOPIC, topic, keys=keys)
    is_set = {entry.name: entry.value == "true" for entry in entries}
    copy_disable = is_set.get(ENABLE, False) and is_set.get(COPY_DISABLE, False)
    if await has_tiered_state(cluster, topic):
        return replace(await _odradek_report(cluster, topic), copy_disable=copy_disable)
    partitions = (await cluster.topic(topic)).partitions
    state = "ENABLED" if is_set.get(ENABLE) else "NOT_TIERED"
    return TieringReport(topic, state, dict.fromkeys(partitions), copy_disable=copy_disable)


async def _odradek_report(cluster: Cluster, topic: str) -> TieringReport:
    (tiering,) = await cluster.retrying(
        lambda: describe_topic_tiering(cluster, [topic]), unless=_is_unknown_topic
    )
    counts = await remote_segment_counts(cluster, topic)
    partitions = cluster.topics[topic].partitions.values()
    without_leader = tuple(each.index for each in partitions if each.leader < 0)
    return TieringReport(topic, state_of(tiering), counts, without_leader, tiering)


def _is_unknown_topic(error: Exception) -> bool:
    return isinstance(error, KafkaError) and error.code is ErrorCode.unknown_topic_or_partition


def state_of(tiering: TopicTiering) -> str:
    """Name of the tiered state for the output."""
    is_tiered = tiering.is_tiered or tiering.state is not TieredState.ENABLED
    return tiering.state.name if is_tiered else "NOT_TIERED"


async def _wait(
    cluster: Cluster, seams: Seams, report: TieringReport, *, is_json: bool
) -> TieringReport:
    """Show progress until the state is no longer DISABLING."""
    clock = seams.clock
    line = ProgressLine(clock.monotonic)
    printed_at, responded_at = -inf, clock.monotonic()
    try:
        while report.is_disabling:
            line.show(report.progress())
            if not (is_json or line.is_shown) and clock.monotonic() - printed_at > PROGRESS_EVERY_S:
                print_now(report.progress())
                printed_at = clock.monotonic()
            await clock.sleep(POLL_EVERY_S)
            try:
                report = await _odradek_report(cluster, report.topic)
                responded_at = clock.monotonic()
            except (ClientError, KafkaError) as error:
                is_temporary = isinstance(error, ClientError) or retriable(error)
                is_late = clock.monotonic() - responded_at > UNREACHABLE_MAX_S
                if _is_unknown_topic(error) or is_late or not is_temporary:
                    raise
    finally:
        line.end()
    return report


def _print(report: TieringReport) -> None:
    tiering = report.tiering
    rows: list[tuple[str, object]] = [("state", report.state)]
    if tiering is not None:
        rows += [("policy", tiering.policy), ("tiered epoch", tiering.epoch)]
        if report.is_disabling:
            rows.append(("finished brokers", report.responded))
        rows.append(("remote segments", report.segment_count))
    if report.without_leader:
        rows.append(("without leader", "partitions " + ", ".join(map(str, report.without_leader))))
    print_lines(
        [
            report.topic,
            *(f"  {name:<16}  {'-' if value is None else value}" for name, value in rows),
        ]
    )
    if report.copy_disable:
        hint(
            f"\nNothing is copied, because {COPY_DISABLE}=true. To copy segments:\n"
            f"  odradek configs alter topic {report.topic} --unset {COPY_DISABLE}"
        )
    if tiering is None:
        print_lines(
            ["", "The cluster has no tiered state (KIP-950); the state is that of the configs."]
        )
    elif report.is_disabling:
        print_lines([""])
        print_table(
            ["BROKER", "FINISHED", "REASON"],
            [
                (
                    each.broker_id,
                    "yes" if each.is_done else "no",
                    _reason(each.is_done, each.reason),
                )
                for each in tiering.brokers
            ],
        )


def _reason(is_done: bool, reason: str | None) -> str | None:
    return None if is_done else reason or "no response yet"
