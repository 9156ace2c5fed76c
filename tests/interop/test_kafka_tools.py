"""Apache Kafka's command-line tools against a broker process, unmodified."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import ToolRun, run_tool, spawn_tool
from tests.support.librdkafka_clients import (
    TIMEOUT_S,
    create_topic,
    produce,
    produce_with_timestamps,
    read_all,
    wait_for_topic,
)
from tests.support.waiting import deadline

Tool = Callable[..., ToolRun]


@pytest.fixture
def tool(bootstrap: str) -> Tool:
    """Runs a tool with --bootstrap-server."""

    def run(name: str, *args: str, **options: Any) -> ToolRun:
        return run_tool(name, *args, "--bootstrap-server", bootstrap, **options)

    return run


def columns(run: ToolRun) -> list[dict[str, str]]:
    """Rows of a tool's table about groups, by column; empty if the tool printed no table."""
    header: list[str] = []
    rows = []
    for line in run.lines:
        cells = line.split()
        if cells[0] == "GROUP":
            header = cells
        elif header:
            rows.append(dict(zip(header, cells, strict=True)))
    return rows


def json_documents(text: str) -> Iterator[Any]:
    """JSON documents in a text, which may follow each other without a space."""
    decoder, position = json.JSONDecoder(), 0
    while (position := text.find("{", position)) >= 0:
        document, position = decoder.raw_decode(text, position)
        yield document


# kafka-topics


def test_topics(tool: Tool, bootstrap: str, name: str) -> None:
    made = tool(
        "topics", "--create", "--topic", name, "--partitions", "2",
        "--replication-factor", "1", "--config", "retention.ms=100000",
    )  # fmt: skip
    assert f"Created topic {name}." in made.stdout
    wait_for_topic(bootstrap, name)
    assert name in tool("topics", "--list").lines
    described = tool("topics", "--describe", "--topic", name).lines
    assert re.search(rf"Topic: {name}\tTopicId: [\w-]{{22}}\tPartitionCount: 2\t", described[0])
    assert "ReplicationFactor: 1" in described[0]
    assert "retention.ms=100000" in described[0]
    for partition, line in enumerate(described[1:]):
        assert f"Partition: {partition}\tLeader: 1\tReplicas: 1\tIsr: 1" in line
    tool("topics", "--alter", "--topic", name, "--partitions", "4")
    assert len(tool("topics", "--describe", "--topic", name).lines) == 5
    tool("topics", "--delete", "--topic", name)
    with deadline(TIMEOUT_S, "the topic to be gone") as check:
        while name in tool("topics", "--list").lines:
            check()
    gone = tool("topics", "--describe", "--topic", name, check=False)
    assert gone.code == 1
    assert "does not exist" in gone.stdout


def test_topics_refuses_invalid_requests(tool: Tool, name: str) -> None:
    tool("topics", "--create", "--topic", name)
    for words, reason in [
        (["--topic", name], "already exists"),
        (["--topic", f"{name}-2", "--replication-factor", "3"], "replication factor"),
        (["--topic", f"{name}-2", "--config", "segment.bytes=10"], "segment.bytes"),
        (["--topic", "a/b"], "a/b"),
    ]:
        refused = tool("topics", "--create", *words, check=False)
        assert refused.code == 1, refused
        assert reason in (refused.stdout + refused.stderr).lower(), refused
    fewer = tool("topics", "--alter", "--topic", name, "--partitions", "1", check=False)
    assert fewer.code == 1
    assert f"{name}-2" not in tool("topics", "--list").lines


def test_topics_with_replica_assignment(tool: Tool, bootstrap: str, name: str) -> None:
    tool("topics", "--create", "--topic", name, "--replica-assignment", "1,1,1")
    wait_for_topic(bootstrap, name)
    assert "PartitionCount: 3" in tool("topics", "--describe", "--topic", name).stdout


# kafka-configs


def test_configs_of_a_topic(tool: Tool, name: str) -> None:
    tool("topics", "--create", "--topic", name, "--config", "retention.ms=100000")
    topic = ("--entity-type", "topics", "--entity-name", name)
    changed = tool(
        "configs", "--alter", *topic,
        "--add-config", "max.message.bytes=2000,cleanup.policy=[compact,delete]",
        "--delete-config", "retention.ms",
    )  # fmt: skip
    assert f"Completed updating config for topic {name}." in changed.stdout
    shown = tool("configs", "--describe", *topic).stdout
    assert "max.message.bytes=2000 sensitive=false" in shown
    assert "DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000" in shown
    assert "DEFAULT_CONFIG:message.max.bytes=1048588" in shown
    assert "cleanup.policy=compact,delete" in shown
    assert "retention.ms" not in shown
    everything = tool("configs", "--describe", "--all", *topic).stdout
    assert re.search(r"retention\.ms=604800000 sensitive=false synonyms=\{", everything)
    bad = tool("configs", "--alter", *topic, "--add-config", "retention.ms=soon", check=False)
    assert bad.code == 1
    assert "Invalid value soon for configuration retention.ms" in bad.stderr + bad.stdout


def test_configs_of_brokers(tool: Tool, broker: BrokerProcess) -> None:
    one = ("--entity-type", "brokers", "--entity-name", "1")
    default = ("--entity-type", "brokers", "--entity-default")
    everything = tool("configs", "--describe", "--all", *one).stdout
    assert re.search(r"^  node\.id=1 ", everything, re.MULTILINE)
    assert re.search(r"^  log\.segment\.bytes=1073741824 ", everything, re.MULTILINE)
    tool("configs", "--alter", *default, "--add-config", "log.retention.ms=86400001")
    tool("configs", "--alter", *one, "--add-config", "log.retention.ms=86400002")
    try:
        shown = tool("configs", "--describe", *one).stdout
        assert "log.retention.ms=86400002 sensitive=false" in shown
        assert "DYNAMIC_BROKER_CONFIG:log.retention.ms=86400002" in shown
        assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=86400001" in shown
    finally:
        for entity in (one, default):
            tool("configs", "--alter", *entity, "--delete-config", "log.retention.ms")
    assert "log.retention.ms=" not in tool("configs", "--describe", *one).stdout
    read_only = tool("configs", "--alter", *one, "--add-config", "node.id=2", check=False)
    assert read_only.code == 1


# kafka-consumer-groups


def consume_as_group(tool: Tool, topic: str, group: str, count: int) -> ToolRun:
    return tool(
        "console-consumer", "--topic", topic, "--group", group, "--from-beginning",
        "--max-messages", str(count), "--timeout-ms", "20000",
    )  # fmt: skip


def test_consumer_groups_describe(tool: Tool, bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name)
    produce(bootstrap, name, [b"%d" % number for number in range(10)])
    consume_as_group(tool, name, name, 10)
    produce(bootstrap, name, [b"more"] * 3)
    (row,) = columns(tool("consumer-groups", "--describe", "--group", name))
    wanted = ("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID")
    assert [row[column] for column in wanted] == [name, "0", "10", "13", "3", "-"]
    listed = columns(tool("consumer-groups", "--list", "--state"))
    assert {row["GROUP"]: row["STATE"] for row in listed}[name] == "Empty"
    missing = tool("consumer-groups", "--describe", "--group", f"{name}-none", check=False)
    assert f"Group {name}-none not found" in missing.stdout


def test_consumer_groups_describe_members(tool: Tool, bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, partitions=2)
    produce(bootstrap, name, [b"x"] * 4)
    member = spawn_tool(
        "verifiable-consumer", "--bootstrap-server", bootstrap, "--topic", name,
        "--group-id", name, "--group-instance-id", "stays", "--reset-policy", "earliest",
    )  # fmt: skip
    try:
        assert member.stdout is not None
        events = (json.loads(line) for line in member.stdout if line.startswith("{"))
        for event in events:
            if event["name"] == "offsets_committed":
                break
        (row,) = columns(
            tool("consumer-groups", "--describe", "--group", name, "--members", "--verbose")
        )
        assert row["GROUP-INSTANCE-ID"] == "stays"
        assert row["CURRENT-ASSIGNMENT"] == f"{name}:0,1"
        assert row["HOST"] == "/127.0.0.1"
        state = tool("consumer-groups", "--describe", "--group", name, "--state").stdout
        assert re.search(rf"{name}\s+127\.0\.0\.1:\d+\s+\(1\)\s+range\s+Stable\s+1", state)
        busy = tool(
            "consumer-groups", "--reset-offsets", "--group", name, "--topic", name,
            "--to-earliest", "--execute", check=False,
        )  # fmt: skip
        assert "Assignments can only be reset if the group" in busy.stdout + busy.stderr
        refused = tool("consumer-groups", "--delete", "--group", name, check=False)
        assert "The group is not empty" in refused.stdout + refused.stderr
    finally:
        member.send_signal(signal.SIGTERM)
        member.communicate(timeout=TIMEOUT_S)


def test_consumer_groups_describe_consumer_protocol(tool: Tool, bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, partitions=2)
    for partition in (0, 1):
        produce(bootstrap, name, [b"x"] * 2, partition=partition)
    member = spawn_tool(
        "verifiable-consumer", "--bootstrap-server", bootstrap, "--topic", name,
        "--group-id", name, "--group-protocol", "consumer", "--group-instance-id", "stays",
        "--reset-policy", "earliest",
    )  # fmt: skip
    try:
        assert member.stdout is not None
        events = (json.loads(line) for line in member.stdout if line.startswith("{"))
        for event in events:
            if event["name"] == "offsets_committed":
                break
        group = ("--describe", "--group", name)
        (row,) = columns(tool("consumer-groups", *group, "--members", "--verbose"))
        assert row["GROUP-INSTANCE-ID"] == "stays"
        assert row["CURRENT-ASSIGNMENT"] == row["TARGET-ASSIGNMENT"] == f"{name}:0,1"
        assert (row["CURRENT-EPOCH"], row["TARGET-EPOCH"]) == ("2", "2")
        state = tool("consumer-groups", *group, "--state").stdout
        assert re.search(rf"{name}\s+127\.0\.0\.1:\d+\s+\(1\)\s+uniform\s+Stable\s+1", state)
        with deadline(TIMEOUT_S, "the commits") as check:
            while {r["CURRENT-OFFSET"] for r in columns(tool("consumer-groups", *group))} != {"2"}:
                check()
        for words, shown in ((("--type", "consumer"), True), (("--type", "classic"), False)):
            listed = columns(tool("consumer-groups", "--list", *words))
            assert (name in {row["GROUP"] for row in listed}) is shown
        refused = tool("consumer-groups", "--delete", "--group", name, check=False)
        assert "The group is not empty" in refused.stdout + refused.stderr
        settings = ("--entity-type", "groups", "--entity-name", name)
        tool("configs", "--alter", *settings, "--add-config", "consumer.session.timeout.ms=50000")
        described = tool("configs", "--describe", *settings).stdout
        assert "consumer.session.timeout.ms=50000" in described
        tool("configs", "--alter", *settings, "--delete-config", "consumer.session.timeout.ms")
    finally:
        member.send_signal(signal.SIGTERM)
        member.communicate(timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        (["--to-earliest"], "0"),
        (["--to-latest"], "10"),
        (["--to-offset", "4"], "4"),
        (["--to-offset", "400"], "10"),
        (["--shift-by", "-3"], "7"),
        (["--to-datetime", "1970-01-01T00:00:00.005Z"], "4"),
        (["--to-current"], "10"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, list) else None,
)
def test_consumer_groups_reset(
    tool: Tool, bootstrap: str, name: str, scenario: list[str], expected: str
) -> None:
    topic = name
    create_topic(bootstrap, topic, config={"retention.ms": "-1"})
    produce_with_timestamps(bootstrap, topic, range(1, 11))
    consume_as_group(tool, topic, topic, 10)
    reset = ("consumer-groups", "--reset-offsets", "--group", topic, "--topic", topic, *scenario)
    (dry,) = columns(tool(*reset, "--dry-run"))
    assert dry["NEW-OFFSET"] == expected
    (row,) = columns(tool("consumer-groups", "--describe", "--group", topic))
    assert row["CURRENT-OFFSET"] == "10"  # --dry-run changes nothing
    tool(*reset, "--execute")
    (row,) = columns(tool("consumer-groups", "--describe", "--group", topic))
    assert row["CURRENT-OFFSET"] == expected


def test_consumer_groups_delete(tool: Tool, bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name)
    produce(bootstrap, name, [b"x"] * 5)
    consume_as_group(tool, name, name, 5)
    deleted = tool("consumer-groups", "--delete-offsets", "--group", name, "--topic", name)
    assert re.search(rf"{name}\s+0\s+Successful", deleted.stdout)
    assert columns(tool("consumer-groups", "--describe", "--group", name)) == []
    produce(bootstrap, name, [b"x"])
    consume_as_group(tool, name, name, 1)
    gone = tool("consumer-groups", "--delete", "--group", name)
    assert f"Deletion of requested consumer groups ('{name}') was successful." in gone.stdout
    assert name not in tool("consumer-groups", "--list").lines
    # the group has no committed offsets: all records are read again
    again = consume_as_group(tool, name, name, 6)
    assert again.lines == ["x"] * 6


# kafka-get-offsets, kafka-delete-records, kafka-log-dirs


def test_get_offsets(tool: Tool, bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, partitions=2, config={"retention.ms": "-1"})
    produce_with_timestamps(bootstrap, name, [1000, 3000, 2000])
    produce(bootstrap, name, [b"x"] * 5, partition=1)

    def at(*words: str) -> list[str]:
        return [
            line.removeprefix(f"{name}:")
            for line in tool("get-offsets", "--topic", name, *words).lines
        ]

    assert at() == ["0:3", "1:5"]
    assert at("--time", "latest") == ["0:3", "1:5"]
    assert at("--time", "earliest") == ["0:0", "1:0"]
    assert at("--time", "max-timestamp", "--partitions", "0") == ["0:1"]
    assert at("--time", "earliest-local") == ["0:0", "1:0"]
    assert at("--time", "1500", "--partitions", "0") == ["0:1"]
    assert at("--time", "3001", "--partitions", "0") == []


def test_delete_records(tool: Tool, bootstrap: str, name: str, tmp_path: Path) -> None:
    create_topic(bootstrap, name)
    produce(bootstrap, name, [b"%d" % number for number in range(10)])

    def delete(offset: int) -> ToolRun:
        rows = [{"topic": name, "partition": 0, "offset": offset}]
        file = tmp_path / "offsets.json"
        file.write_text(json.dumps({"version": 1, "partitions": rows}))
        return tool("delete-records", "--offset-json-file", str(file))

    assert f"partition: {name}-0\tlow_watermark: 4" in delete(4).stdout
    assert tool("get-offsets", "--topic", name, "--time", "-2").lines == [f"{name}:0:4"]
    assert "OffsetOutOfRangeException" in delete(11).stdout
    assert f"partition: {name}-0\tlow_watermark: 10" in delete(-1).stdout
    assert tool("get-offsets", "--topic", name, "--time", "-2").lines == [f"{name}:0:10"]


def test_log_dirs(tool: Tool, broker: BrokerProcess, name: str) -> None:
    """J-18 and J-19, in the form of Kafka 4."""
    create_topic(broker.bootstrap, name, partitions=2)
    produce(broker.bootstrap, name, [b"x" * 1000], partition=1)
    run = tool("log-dirs", "--describe", "--topic-list", name)
    shown = json.loads(run.lines[-1])
    assert shown["version"] == 1
    (only,) = shown["brokers"]
    assert only["broker"] == 1
    assert {d["logDir"] for d in only["logDirs"]} == {str(path) for path in broker.log_dirs}
    assert [d["error"] for d in only["logDirs"]] == [None, None]
    found = {p["partition"]: (d["logDir"], p) for d in only["logDirs"] for p in d["partitions"]}
    assert sorted(found) == [f"{name}-0", f"{name}-1"]
    for partition in (0, 1):
        path, replica = found[f"{name}-{partition}"]
        directory = Path(path) / f"{name}-{partition}"
        size = sum(file.stat().st_size for file in directory.glob("*.log"))
        assert replica == {
            "partition": f"{name}-{partition}", "size": size, "offsetLag": 0, "isFuture": False
        }  # fmt: skip
    assert found[f"{name}-0"][1]["size"] == 0
    assert found[f"{name}-1"][1]["size"] > 1000


# console and verifiable producer and consumer


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_console_producer_and_consumer(tool: Tool, name: str, codec: str) -> None:
    topic = name.replace("[", "-")
    tool("topics", "--create", "--topic", topic)
    tool(
        "console-producer", "--topic", topic, "--compression-codec", codec,
        "--reader-property", "parse.key=true", "--reader-property", "key.separator=:",
        "--reader-property", "parse.headers=true", "--reader-property", "null.marker=NIL",
        stdin="h1:v1,h2:v2\tk1:one\nh1:x\tk2:NIL\nh1:y\tNIL:three\n",
    )  # fmt: skip
    show = [
        word
        for what in ("key", "headers", "offset", "partition", "timestamp")
        for word in ("--formatter-property", f"print.{what}=true")
    ]
    lines = tool(
        "console-consumer", "--topic", topic, "--partition", "0", "--offset", "earliest",
        "--max-messages", "3", "--timeout-ms", "20000", *show,
    ).lines  # fmt: skip
    assert [line.split("\t", 1)[1] for line in lines] == [
        "Partition:0\tOffset:0\th1:v1,h2:v2\tk1\tone",
        "Partition:0\tOffset:1\th1:x\tk2\tnull",
        "Partition:0\tOffset:2\th1:y\tnull\tthree",
    ]
    assert all(re.match(r"CreateTime:\d{13}\t", line) for line in lines)


def test_console_consumer_reads_internal_topics(tool: Tool, bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name)
    produce(bootstrap, name, [b"x"] * 5)
    consume_as_group(tool, name, name, 5)
    commits: list[Any] = []
    for timeout_ms in ("1000", "20000"):  # timeout at the end of the partition
        shown = tool(
            "console-consumer", "--topic", "__consumer_offsets", "--from-beginning",
            "--formatter", "org.apache.kafka.tools.consumer.OffsetsMessageFormatter",
            "--timeout-ms", timeout_ms, check=False,
        ).stdout  # fmt: skip
        commits = [
            row["value"]["data"]
            for row in json_documents(shown)
            if row["key"]["data"].get("topic") == name and row["value"] is not None
        ]
        if commits:
            break
    assert commits[-1]["offset"] == 5


def test_verifiable_producer_and_consumer(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, partitions=3)
    producer = spawn_tool(
        "verifiable-producer", "--bootstrap-server", bootstrap, "--topic", name,
        "--max-messages", "300", "--throughput", "-1", "--acks", "-1",
    )  # fmt: skip
    output, _ = producer.communicate(timeout=TIMEOUT_S)
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    acked = {(e["partition"], e["offset"]) for e in events if e["name"] == "producer_send_success"}
    assert producer.returncode == 0, output
    assert len(acked) == 300
    assert [e["name"] for e in events if "error" in e["name"]] == []
    consumer = spawn_tool(
        "verifiable-consumer", "--bootstrap-server", bootstrap, "--topic", name,
        "--group-id", name, "--max-messages", "300", "--reset-policy", "earliest", "--verbose",
    )  # fmt: skip
    output, _ = consumer.communicate(timeout=TIMEOUT_S)
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    read = [(e["partition"], e["offset"]) for e in events if e["name"] == "record_data"]
    assert consumer.returncode == 0, output
    assert len(read) == 300
    assert set(read) == acked
    committed = [e for e in events if e["name"] == "offsets_committed"]
    assert all(event["success"] for event in committed)
    assert sum(row["offset"] for row in committed[-1]["offsets"]) == 300


# perf-test tools


def test_perf_test_tools(tool: Tool, bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, partitions=2)
    sent = tool(
        "producer-perf-test", "--topic", name, "--num-records", "5000", "--record-size", "100",
        "--throughput", "-1",
    )  # fmt: skip
    assert re.search(r"^5000 records sent, [\d.]+ records/sec", sent.stdout, re.MULTILINE)
    read = tool(
        "consumer-perf-test", "--topic", name, "--num-records", "5000", "--timeout", "20000",
        "--hide-header",
    )  # fmt: skip
    fields = [field.strip() for field in read.lines[-1].split(",")]
    assert int(fields[4]) == 5000
    assert len(read_all(bootstrap, name, 5000, partitions=[0, 1])) == 5000


# cluster id and API versions


def test_cluster_and_api_versions(tool: Tool, bootstrap: str) -> None:
    identity = tool("cluster", "cluster-id").stdout
    assert re.search(r"^Cluster ID: [\w-]{22}$", identity, re.MULTILINE)
    versions = tool("broker-api-versions").stdout
    assert versions.startswith(f"{bootstrap} (id: 1 rack: null isFenced: false) -> (")
    for api in (
        "Produce(0): 0 to 13 [usable: 13]",
        "Fetch(1): 4 to 18 [usable: 18]",
        "ListOffsets(2): 1 to 11 [usable: 11]",
        "Metadata(3): 0 to 13 [usable: 13]",
        "JoinGroup(11): 0 to 9 [usable: 9]",
        "InitProducerId(22): 0 to 5 [usable: 5]",
        "DescribeLogDirs(35): 1 to 5 [usable: 5]",
        "DescribeTopicPartitions(75): 0 [usable: 0]",
    ):
        assert api in versions
