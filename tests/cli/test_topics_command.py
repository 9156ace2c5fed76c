"""Tests of `odradek topics`."""

from __future__ import annotations

from tests.cli.command_line import CommandLine


def test_create_describe_delete(odradek: CommandLine) -> None:
    made = odradek("topics", "create", "made", "-p", "2", "-c", "retention.ms=100000")
    assert made.lines == ["made created: 2 partitions, replication factor 1"]
    lines = odradek("topics", "describe", "made").lines
    assert lines[0] == "made"
    assert lines[2] == "  configs  retention.ms=100000"
    assert [line.split()[:2] for line in lines[4:]] == [
        ["PARTITION", "LEADER"],
        ["0", "1"],
        ["1", "1"],
    ]
    assert ["made", "2", "1"] in odradek("topics", "list").words
    assert odradek("topics", "delete", "made").lines == ["deleted: made"]
    assert "made" not in odradek("topics", "list").stdout.decode()


def test_replication_factor_that_cannot_be_reached_has_advice(odradek: CommandLine) -> None:
    ran = odradek("topics", "create", "large", "-r", "9", code=1)
    assert "the replication factor is larger than the number of brokers" in ran.stderr
    odradek("configs", "alter", "broker", "1", "--set", "cordoned.log.dirs=*")
    try:
        for options in ([], ["-r", "1"], ["-r", "9"]):
            ran = odradek("topics", "create", "cordoned", *options, code=1)
            assert "the replication factor is larger" not in ran.stderr
            assert "no broker can get a new replica: `odradek log-dirs list` shows" in ran.stderr
    finally:
        odradek("configs", "alter", "broker", "1", "--unset", "cordoned.log.dirs")


def test_json_matches_table(odradek: CommandLine, topic: str) -> None:
    (described,) = odradek("topics", "describe", topic, "--json").json
    assert len(described.pop("id")) == 22
    partition = {"leader": 1, "replicas": [1], "isr": [1], "offline": []}
    for row in described["partitions"]:
        assert row.pop("leader_epoch") >= 0
    assert described == {
        "name": topic,
        "internal": False,
        "configs": {},
        "tiering": None,
        "partitions": [{"partition": index, **partition} for index in range(3)],
    }
    listed = odradek("topics", "list", "--json").json
    assert {"name": topic, "partitions": 3, "internal": False} in listed
    made = odradek("topics", "create", "in-json", "--json").json
    assert (made["name"], made["created"], made["replication_factor"]) == ("in-json", True, 1)
    assert odradek("topics", "delete", "in-json", "--json").json == {"deleted": ["in-json"]}


def test_alter(odradek: CommandLine, topic: str) -> None:
    odradek("topics", "alter", topic, "-p", "5", "-c", "retention.ms=5000")
    (described,) = odradek("topics", "describe", topic, "--json").json
    assert len(described["partitions"]) == 5
    assert described["configs"] == {"retention.ms": "5000"}
    odradek("topics", "alter", topic, "--unset", "retention.ms")
    (described,) = odradek("topics", "describe", topic, "--json").json
    assert described["configs"] == {}


def test_errors_are_reported(odradek: CommandLine, topic: str) -> None:
    for words, text in [
        (["create", topic], "TOPIC_ALREADY_EXISTS"),
        (["create", "a/b"], "INVALID_TOPIC_EXCEPTION"),
        (["create", "x", "-r", "3"], "INVALID_REPLICATION_FACTOR"),
        (["create", "x", "-c", "retention.ms=soon"], "retention.ms"),
        (["delete", "nothing-here"], "`odradek topics list` lists"),
        (["describe", "nothing-here"], "nothing-here does not exist"),
        (["offsets", "nothing-here"], "nothing-here does not exist"),
        (["alter", topic, "-p", "1"], "INVALID_PARTITIONS"),
        (["trim", topic, "--before", "99"], "OFFSET_OUT_OF_RANGE"),
    ]:
        ran = odradek("topics", *words, code=1)
        assert text in ran.stderr, ran
        assert ran.stdout == b""
        assert "Traceback" not in ran.stderr


def test_wrong_usage(offline: CommandLine) -> None:
    for words in (
        ["alter", "x"],
        ["create", "x", "-c", "novalue"],
        ["create", "x", "--assign", "1:a"],
        ["create", "x", "--assign", "1", "-p", "2"],
        ["offsets", "x", "--at", "soon"],
        ["trim", "x"],
    ):
        assert offline("topics", *words, code=2).stderr


def test_if_exists_and_if_not_exists(odradek: CommandLine, topic: str) -> None:
    assert odradek("topics", "create", topic, "--if-not-exists").lines == [
        f"{topic} already exists"
    ]
    gone = odradek("topics", "delete", "nothing-here", "--if-exists")
    assert gone.lines == ["nothing to delete"]


def test_create_validate_only_creates_no_topic(odradek: CommandLine) -> None:
    ran = odradek("topics", "create", "maybe", "-p", "2", "--validate-only")
    assert ran.lines[0].startswith("maybe is valid")
    assert "maybe" not in odradek("topics", "list").stdout.decode()


def test_create_with_replica_assignment(odradek: CommandLine) -> None:
    odradek("topics", "create", "by-hand", "--assign", "1,1")
    (described,) = odradek("topics", "describe", "by-hand", "--json").json
    assert [row["replicas"] for row in described["partitions"]] == [[1], [1]]
    odradek("topics", "create", "nowhere", "--assign", "7", code=1)


def test_offsets_and_trim(odradek: CommandLine, topic: str) -> None:
    odradek("produce", "-t", topic, "-p", "1", stdin=b"a\nb\nc\n")
    assert odradek("topics", "offsets", topic).words == [
        ["TOPIC", "PARTITION", "FIRST", "END", "RECORDS"],
        [topic, "0", "0", "0", "0"],
        [topic, "1", "0", "3", "3"],
        [topic, "2", "0", "0", "0"],
    ]
    trimmed = odradek("topics", "trim", topic, "-p", "1", "--before", "-1", "--json")
    assert trimmed.json == [{"topic": topic, "partition": 1, "first": 2}]
    found = odradek("topics", "offsets", topic, "--at", "beginning", "--json").json
    assert [row["offset"] for row in found] == [0, 2, 0]
    local = odradek("topics", "offsets", topic, "--at", "earliest-local", "--json").json
    assert [row["offset"] for row in local] == [0, 2, 0]
    tiered = odradek("topics", "offsets", topic, "--at", "latest-tiered", "--json").json
    assert [row["offset"] for row in tiered] == [None, None, None]
    at_time = odradek("topics", "offsets", topic, "--at", "s@1", "--json").json
    assert [row["offset"] for row in at_time] == [None, 2, None]


def test_list_internal_topics(odradek: CommandLine, topic: str) -> None:
    odradek("consume", "-t", topic, "--group", "makes-offsets-topic", "-e")
    assert "__consumer_offsets" not in odradek("topics", "list").stdout.decode()
    listed = odradek("topics", "list", "--internal", "--json").json
    assert [row["internal"] for row in listed if row["name"] == "__consumer_offsets"] == [True]
