"""Tests of `odradek groups`, and of `odradek consume --group`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from odradek.cli import consume
from odradek.cli.terminal import write_bytes
from odradek.protocol import apis
from tests.cli.command_line import CommandLine
from tests.support.broker_process import BrokerProcess
from tests.support.consumer_group_clients import Reader

_numbers = itertools.count(1)


@pytest.fixture
def group(odradek: CommandLine, topic: str) -> str:
    """A group that has read four of the topic's five records."""
    name = f"group-{next(_numbers)}"
    odradek("produce", "-t", topic, "-p", "0", stdin=b"0\n1\n2\n3\n4\n")
    assert odradek("consume", "-t", topic, "-G", name, "-c", "4").lines == ["0", "1", "2", "3"]
    return name


def test_consume_group_continues_from_commit(odradek: CommandLine, topic: str, group: str) -> None:
    assert odradek("consume", "-t", topic, "-G", group, "-e").lines == ["4"]
    assert odradek("consume", "-t", topic, "-G", group, "-e").lines == []


def test_consume_offset_option_of_new_group(odradek: CommandLine, topic: str) -> None:
    odradek("produce", "-t", topic, stdin=b"old\n")
    assert odradek("consume", "-t", topic, "-G", "from-end", "-o", "end", "-e").lines == []
    first = ["consume", "-t", topic, "-G", "from-beginning", "-o", "beginning", "-e"]
    assert odradek(*first).lines == ["old"]


def test_consume_rejoins_after_session_timeout(
    odradek: CommandLine,
    cli_broker: BrokerProcess,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pager that blocks stdout delays the next poll beyond the session timeout."""
    odradek("produce", "-t", topic, "-p", "0", stdin=b"0\n1\n")
    group, peer = f"group-{next(_numbers)}", Reader(cli_broker.bootstrap)
    prints = itertools.count()

    def print_slowly(lines: Iterable[bytes]) -> None:
        write_bytes(lines)
        if next(prints) == 0:
            (found,) = peer.ask("admin", apis.DESCRIBE_GROUPS, 5, groups=[group]).groups
            members = [{"member_id": each.member_id} for each in found.members]
            peer.ask("admin", apis.LEAVE_GROUP, 3, group_id=group, members=members)

    monkeypatch.setattr(consume, "write_bytes", print_slowly)
    monkeypatch.setattr(consume, "COMMIT_EVERY_S", 0)
    # What was not committed in time is read again.
    assert odradek("consume", "-t", topic, "-G", group, "-c", "4").lines == ["0", "1", "0", "1"]
    assert odradek("consume", "-t", topic, "-G", group, "-e").lines == []
    peer.close()


def test_list_and_describe(odradek: CommandLine, topic: str, group: str) -> None:
    assert [group, "Empty", "classic", "consumer"] in odradek("groups", "list").words
    assert group in {row["group"] for row in odradek("groups", "list", "--json").json}
    assert group not in odradek("groups", "list", "--state", "Stable").stdout.decode()
    lines = odradek("groups", "describe", group).words
    assert lines[0] == [f"{group}:", "Empty,", "0", "members"]
    assert lines[2][:6] == ["TOPIC", "PARTITION", "COMMITTED", "FIRST", "END", "LAG"]
    assert [topic, "0", "4", "0", "5", "1"] in [line[:6] for line in lines[3:]]


def test_describe_a_consumer_group(
    odradek: CommandLine, cli_broker: BrokerProcess, topic: str
) -> None:
    reader = Reader(cli_broker.bootstrap)
    group = f"group-{next(_numbers)}"
    odradek("consume", "-t", topic, "-G", "makes-the-coordinator", "-e")
    reader.beat("a", group, 0, subscribed_topic_names=[topic], instance_id="stays")
    assert [group, "Stable", "consumer", "consumer"] in odradek("groups", "list").words
    (described,) = odradek("groups", "describe", "--json", group).json
    (member,) = described["members"]
    assert (described["state"], described["assignor"]) == ("Stable", "uniform")
    assert (member["member"], member["instance"]) == ("a-member", "stays")
    assert [each["partition"] for each in member["partitions"]] == [0, 1, 2]
    refused = odradek("groups", "reset", group, "-t", topic, "--to", "beginning", code=1)
    assert "1 members" in refused.stderr
    reader.close()


def test_reset(odradek: CommandLine, topic: str, group: str) -> None:
    words = ["groups", "reset", group, "-t", topic, "-p", "0"]
    planned = odradek(*words, "--to", "beginning", "--dry-run", "--json").json
    assert planned == [{"topic": topic, "partition": 0, "before": 4, "after": 0}]
    assert odradek("consume", "-t", topic, "-G", group, "-e").lines == ["4"]
    odradek(*words, "--to", "-2")
    assert odradek("consume", "-t", topic, "-G", group, "-e").lines == ["3", "4"]
    odradek("groups", "alter", group, "--to", "s@0")
    assert odradek("consume", "-t", topic, "-G", group, "-e").lines == ["0", "1", "2", "3", "4"]


def test_forget_and_delete(odradek: CommandLine, topic: str, group: str) -> None:
    assert odradek("groups", "forget", group, "-t", topic, "-p", "0").lines == [
        f"deleted the committed offsets of 1 partitions of {group}"
    ]
    (described,) = odradek("groups", "describe", group, "--json").json
    assert 0 not in {row["partition"] for row in described["partitions"]}
    odradek("consume", "-t", topic, "-G", group, "-e")
    assert odradek("groups", "delete", group).lines == [f"deleted: {group}"]
    assert "`odradek groups list` lists" in odradek("groups", "describe", group, code=1).stderr
    assert group not in odradek("groups", "list").stdout.decode()


def test_errors_are_reported(odradek: CommandLine, topic: str) -> None:
    missing = odradek("groups", "describe", "no-such-group", code=1).stderr
    assert "`odradek groups list` lists" in missing
    assert odradek("groups", "delete", "no-such-group", code=1).stderr
    nothing = odradek("groups", "reset", "no-such-group", "--to", "end", code=1).stderr
    assert "specify --topic" in nothing


def test_wrong_usage(offline: CommandLine) -> None:
    for words in (
        ["groups", "reset", "g"],
        ["groups", "reset", "g", "--to", "x"],
        ["groups", "forget", "g"],
        ["groups", "reset", "g", "-p", "1", "--to", "end"],
        ["consume", "-t", "t", "-G", "g", "-p", "0"],
        ["consume", "-t", "t", "-G", "g", "-o", "5"],
    ):
        assert offline(*words, code=2).stderr
