"""`odradek topics`: list, describe, create, alter, trim and delete topics, show their offsets, and disable tiered
storage."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from odradek.cli.cluster_connection import (
    add_cluster_subcommand,
    base64_uuid,
    key_value,
    partition_list,
    run_cluster_subcommand,
)
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.offset_arguments import (
    HELP,
    OffsetArgument,
    OffsetAtTimestamp,
    parse_offset,
    resolve_offsets,
)
from odradek.cli.output import print_json, print_lines, print_table
from odradek.cli.topic_tiering import add_tiering_parser, broker_rows, state_of
from odradek.client import admin
from odradek.client.consumer import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, list_offsets
from odradek.client.errors import ClientError
from odradek.client.metadata import Cluster, Topic
from odradek.client.topic_tiering_admin import (
    COPY_DISABLE,
    DISABLE_POLICY,
    ENABLE,
    describe_topic_tiering,
    has_tiered_state,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams import Seams

EPILOG = """\
examples:
  odradek topics create orders --partitions 6 --config retention.ms=86400000
  odradek topics list
  odradek topics describe orders
  odradek topics offsets orders --at s@1700000000000
  odradek topics alter orders --partitions 12 --config retention.ms=3600000
  odradek topics trim orders --before 1000
  odradek topics tiering orders --disable retain
  odradek topics delete orders
"""


_TIERS = {
    "earliest-local": OffsetAtTimestamp(EARLIEST_LOCAL),
    "latest-tiered": OffsetAtTimestamp(LATEST_TIERED),
}


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "topics",
        help="list, describe, create, alter and delete topics",
        description="List, describe, create, alter, trim and delete topics, and disable their tiered storage.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="SUBCOMMAND")

    listing = add_cluster_subcommand(commands, "list", "list the topics", list_topics)
    listing.add_argument("--internal", action="store_true", help="include internal topics")

    describing = add_cluster_subcommand(
        commands, "describe", "show the partitions and configs of topics", describe
    )
    describing.add_argument(
        "topics", nargs="*", metavar="TOPIC", help="a topic (default: all topics)"
    )

    _add_create_parser(commands)

    _add_alter_parser(commands)

    deleting = add_cluster_subcommand(commands, "delete", "delete topics and their records", delete)
    deleting.add_argument("topics", nargs="+", metavar="TOPIC")
    deleting.add_argument(
        "--if-exists", action="store_true", help="succeed if a topic does not exist"
    )

    _add_offset_parsers(commands)
    add_tiering_parser(commands)
    return parser


def _add_create_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    creating = add_cluster_subcommand(commands, "create", "create a topic", create)
    creating.add_argument("topic", metavar="TOPIC")
    creating.add_argument(
        "-p",
        "--partitions",
        type=int,
        default=-1,
        metavar="N",
        help="number of partitions (default: num.partitions of the brokers)",
    )
    creating.add_argument(
        "-r",
        "--replication-factor",
        type=int,
        default=-1,
        metavar="N",
        help="replication factor (default: default.replication.factor of the brokers)",
    )
    creating.add_argument(
        "--assign",
        metavar="BROKERS",
        help="brokers of the replicas of each partition: 1:2,2:1 is two partitions with two replicas each",
    )
    _config_arguments(creating)
    creating.add_argument(
        "--if-not-exists", action="store_true", help="succeed if the topic exists"
    )
    creating.add_argument(
        "--validate-only",
        action="store_true",
        help="validate the request without creating the topic",
    )


def _add_alter_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    altering = add_cluster_subcommand(commands, "alter", "add partitions and alter configs", alter)
    altering.add_argument("topic", metavar="TOPIC")
    altering.add_argument(
        "-p", "--partitions", type=int, metavar="N", help="new number of partitions"
    )
    _config_arguments(altering)
    altering.add_argument(
        "--unset",
        metavar="KEY",
        action="append",
        default=[],
        help="restore the default value; can be repeated",
    )


def _add_offset_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    offsets = add_cluster_subcommand(
        commands, "offsets", "show offsets of each partition", show_offsets
    )
    offsets.add_argument("topics", nargs="+", metavar="TOPIC")
    offsets.add_argument(
        "--at",
        metavar="OFFSET",
        type=_parse_offset_spec,
        help=f"{HELP}, earliest-local or latest-tiered (default: beginning and end)",
    )

    trimming = add_cluster_subcommand(commands, "trim", "delete the records before an offset", trim)
    trimming.add_argument("topic", metavar="TOPIC")
    trimming.add_argument(
        "--before",
        metavar="OFFSET",
        type=parse_offset,
        required=True,
        help=f"first offset that is kept: {HELP}",
    )
    trimming.add_argument(
        "-p",
        "--partitions",
        type=partition_list,
        metavar="LIST",
        help="partitions, such as 0,3,5-7 (default: all)",
    )


def run(args: argparse.Namespace) -> int:
    return run_cluster_subcommand(args)


def _config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c",
        "--config",
        metavar="KEY=VALUE",
        type=key_value,
        action="append",
        default=[],
        help="a topic config; can be repeated",
    )


async def list_topics(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    await cluster.refresh(None)
    shown = [
        cluster.topics[name]
        for name in sorted(cluster.topics)
        if args.internal or not cluster.topics[name].internal
    ]
    if args.json:
        print_json(
            [
                {"name": t.name, "partitions": len(t.partitions), "internal": t.internal}
                for t in shown
            ]
        )
    else:
        print_table(
            ["TOPIC", "PARTITIONS", "REPLICAS"],
            [(t.name, len(t.partitions), _replication(t)) for t in shown],
        )
    return 0


async def describe(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    topics = await _known(cluster, args.topics)
    described = [await _description(cluster, topic) for topic in topics]
    if args.json:
        print_json(described)
        return 0
    for number, topic in enumerate(described):
        if number:
            print_lines([""])
        configs = ", ".join(f"{key}={value}" for key, value in topic["configs"].items())
        print_lines(
            [
                f"{topic['name']}{' (internal)' if topic['internal'] else ''}",
                f"  id       {topic['id'] or '-'}",
                f"  configs  {configs or '(none set)'}",
                *_tiering_lines(topic["tiering"]),
                "",
            ]
        )
        print_table(
            ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "OFFLINE"],
            [
                (
                    row["partition"],
                    row["leader"],
                    row["leader_epoch"],
                    *(",".join(map(str, row[key])) for key in ("replicas", "isr", "offline")),
                )
                for row in topic["partitions"]
            ],
        )
    return 0


def _tiering_lines(tiering: dict[str, Any] | None) -> list[str]:
    if tiering is None:
        return []
    if tiering["error"] is not None:
        return [f"  tiered   unknown: {tiering['error']}"]
    parts = [tiering["state"]]
    parts += [f"nothing is copied ({COPY_DISABLE}=true)"] if tiering["copy_disable"] else []
    parts += [] if tiering["policy"] is None else [f"policy {tiering['policy']}"]
    parts += [f"tiered epoch {tiering['epoch']}"] if tiering["epoch"] else []
    brokers = tiering["brokers"]
    finished = sum(each["finished"] for each in brokers)
    parts += [f"{finished} of {len(brokers)} brokers have finished"] if brokers else []
    return [f"  tiered   {', '.join(parts)}"]


async def create(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    assignments = _assignments(args.assign) if args.assign else {}
    if assignments and (args.partitions, args.replication_factor) != (-1, -1):
        raise WrongUsage("--assign cannot be used with --partitions or --replication-factor")
    wanted = admin.NewTopic(
        args.topic, args.partitions, args.replication_factor, dict(args.config), assignments
    )
    try:
        (made,) = await admin.create_topics(cluster, [wanted], validate_only=args.validate_only)
    except KafkaError as error:
        if not (args.if_not_exists and error.code == ErrorCode.topic_already_exists):
            raise
        return _print_result(
            args, f"{args.topic} already exists", {"name": args.topic, "created": False}
        )
    if not args.validate_only:
        await _wait_until_visible(cluster, made.name)
    shape = f"{made.partitions} partitions, replication factor {made.replication_factor}"
    verb = "is valid" if args.validate_only else "created"
    row = {
        "name": made.name,
        "created": not args.validate_only,
        "id": base64_uuid(made.topic_id),
        "partitions": made.partitions,
        "replication_factor": made.replication_factor,
    }
    return _print_result(args, f"{made.name} {verb}: {shape}", row)


async def alter(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    changes = [
        admin.ConfigChange(admin.ConfigOperation.SET, key, value) for key, value in args.config
    ] + [admin.ConfigChange(admin.ConfigOperation.DELETE, key) for key in args.unset]
    if args.partitions is None and not changes:
        raise WrongUsage("odradek topics alter: specify --partitions, --config or --unset")
    if args.partitions is not None:
        await admin.create_partitions(cluster, args.topic, args.partitions)
    if changes:
        await admin.alter_configs(cluster, admin.ResourceType.TOPIC, args.topic, changes)
    return _print_result(args, f"{args.topic} altered", {"name": args.topic, "altered": True})


async def delete(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    deleted = []
    for name in args.topics:
        try:
            await admin.delete_topics(cluster, [name])
        except KafkaError as error:
            missing = error.code == ErrorCode.unknown_topic_or_partition
            if not (args.if_exists and missing):
                raise
        else:
            deleted.append(name)
    text = f"deleted: {', '.join(deleted)}" if deleted else "nothing to delete"
    return _print_result(args, text, {"deleted": deleted})


def _parse_offset_spec(text: str) -> OffsetArgument:
    """Parse an offset argument, including the special offsets of tiered storage."""
    return _TIERS[text] if text in _TIERS else parse_offset(text)


async def show_offsets(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    rows: list[dict[str, Any]] = []
    for topic in await _known(cluster, args.topics):
        where = [TopicPartition(topic.name, index) for index in topic.partitions]
        if args.at is None:
            first = await list_offsets(cluster, dict.fromkeys(where, EARLIEST))
            end = await list_offsets(cluster, dict.fromkeys(where, LATEST))
            rows += [
                {
                    "topic": topic.name,
                    "partition": part.partition,
                    "first": first[part].offset,
                    "end": end[part].offset,
                    "records": end[part].offset - first[part].offset,
                }
                for part in where
            ]
        else:
            rows += await _offsets_at(cluster, where, args.at)
    if args.json:
        print_json(rows)
    elif args.at is None:
        columns = ["TOPIC", "PARTITION", "FIRST", "END", "RECORDS"]
        print_table(columns, [tuple(row.values()) for row in rows])
    else:
        print_table(["TOPIC", "PARTITION", "OFFSET"], [tuple(row.values()) for row in rows])
    return 0


async def _offsets_at(
    cluster: Cluster, where: list[TopicPartition], at: OffsetArgument
) -> list[dict[str, Any]]:
    """Look up one offset per partition; None if no record is at or after the timestamp."""
    if isinstance(at, OffsetAtTimestamp):
        found = await list_offsets(cluster, dict.fromkeys(where, at.timestamp_ms))
        offsets = {part: response.offset for part, response in found.items()}
    else:
        offsets = await resolve_offsets(cluster, dict.fromkeys(where, at))
    return [
        {
            "topic": part.topic,
            "partition": part.partition,
            "offset": offset if (offset := offsets[part]) >= 0 else None,
        }
        for part in where
    ]


async def trim(args: argparse.Namespace, cluster: Cluster, seams: Seams) -> int:
    (topic,) = await _known(cluster, [args.topic])
    wanted = args.partitions if args.partitions is not None else list(topic.partitions)
    where = [TopicPartition(topic.name, index) for index in wanted]
    before = await resolve_offsets(cluster, dict.fromkeys(where, args.before))
    first = await admin.delete_records(cluster, before)
    rows = [{"topic": w.topic, "partition": w.partition, "first": first[w]} for w in where]
    if args.json:
        print_json(rows)
    else:
        print_table(["TOPIC", "PARTITION", "FIRST"], [tuple(row.values()) for row in rows])
    return 0


async def _known(cluster: Cluster, names: Iterable[str]) -> list[Topic]:
    """Look up topics by name, or all that are not internal. Raises CommandFailed for a missing one."""
    wanted = list(names)
    if not wanted:
        await cluster.refresh(None)
        return [
            cluster.topics[name]
            for name in sorted(cluster.topics)
            if not cluster.topics[name].internal
        ]
    errors = await cluster.refresh(wanted)
    if errors:
        raise errors[0]
    missing = [name for name in wanted if name not in cluster.topics]
    if missing:
        raise CommandFailed(f"topic {missing[0]} does not exist")
    return [cluster.topics[name] for name in wanted]


async def _wait_until_visible(cluster: Cluster, name: str) -> None:
    """Wait until the brokers have the topic's metadata, so that the next command finds it.

    The controller responds before the brokers have replayed its records.
    """

    async def attempt() -> None:
        for partition in (await cluster.topic(name)).partitions:
            await cluster.leader(name, partition)

    await cluster.retrying(attempt)


async def _tiering(
    cluster: Cluster, topic: str, configs: Mapping[str, str | None]
) -> dict[str, Any] | None:
    """Tiered state of a topic; None if it is not tiered. Apache Kafka has only the configs."""
    is_tiered = configs.get(ENABLE) == "true"
    if not is_tiered and configs.get(DISABLE_POLICY) is None:
        return None
    described: dict[str, Any] = {
        "state": "ENABLED",
        "epoch": None,
        "policy": None,
        "copy_disable": is_tiered and configs.get(COPY_DISABLE) == "true",
        "brokers": [],
        "error": None,
    }
    try:
        if not await has_tiered_state(cluster, topic):
            return described
        (tiering,) = await describe_topic_tiering(cluster, [topic])
    except (ClientError, KafkaError) as error:  # without an active controller, the rest is shown
        return {**described, "state": None, "error": str(error)}
    return {
        **described,
        "state": state_of(tiering),
        "epoch": tiering.epoch,
        "policy": tiering.policy,
        "brokers": broker_rows(tiering),
    }


async def _description(cluster: Cluster, topic: Topic) -> dict[str, Any]:
    entries = await admin.describe_configs(cluster, admin.ResourceType.TOPIC, topic.name)
    configs = {entry.name: entry.value for entry in entries}
    return {
        "name": topic.name,
        "id": base64_uuid(topic.topic_id),
        "internal": topic.internal,
        "configs": {e.name: e.value for e in entries if e.source == admin.ConfigSource.TOPIC},
        "tiering": await _tiering(cluster, topic.name, configs),
        "partitions": [
            {
                "partition": part.index,
                "leader": part.leader,
                "leader_epoch": part.leader_epoch,
                "replicas": list(part.replicas),
                "isr": list(part.isr),
                "offline": list(part.offline_replicas),
            }
            for part in topic.partitions.values()
        ],
    }


def _replication(topic: Topic) -> int:
    return max((len(part.replicas) for part in topic.partitions.values()), default=0)


def _assignments(text: str) -> Mapping[int, list[int]]:
    try:
        return {
            index: [int(broker) for broker in part.split(":")]
            for index, part in enumerate(text.split(","))
        }
    except ValueError:
        raise WrongUsage(f"--assign: {text!r} is not of the form 1:2,2:1") from None


def _print_result(args: argparse.Namespace, text: str, row: Mapping[str, Any]) -> int:
    if args.json:
        print_json(row)
    else:
        print_lines([text])
    return 0
