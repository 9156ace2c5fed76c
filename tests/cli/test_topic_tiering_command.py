"""Tests of `odradek topics tiering`, and of the tiered state in `odradek topics describe`."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.broker.apis import disable_remote_topic
from odradek.client import topic_tiering_admin
from odradek.testing import Broker, Cluster
from tests.cli.command_line import CommandLine
from tests.support.tiered_topic_broker import QUICK, TIERED

TIMEOUT_SECONDS = 20.0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "tier"


@pytest.fixture
def tiered(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Iterator[CommandLine]:
    """The command line with a broker that has a tiered topic `orders` with remote segments."""
    with Broker(tiered=store, configs=QUICK) as broker:
        monkeypatch.setenv("ODRADEK_BOOTSTRAP", broker.bootstrap)
        run = CommandLine(monkeypatch, capsysbinary)
        configs = [word for each in TIERED.items() for word in ("-c", "=".join(each))]
        run("topics", "create", "orders", "-p", "2", *configs)
        for partition in ("0", "1") * 3:  # a batch of half a segment each
            run("produce", "-t", "orders", "-p", partition, stdin=b"x" * 1500 + b"\n")
        wait_until_copied(run, partitions=2)
        yield run


def wait_until_copied(run: CommandLine, *, partitions: int) -> None:
    """Wait until the two inactive segments of each partition are only in the remote tier."""
    words = ("topics", "offsets", "orders", "--at", "earliest-local", "--json")
    until(lambda: [row["offset"] for row in run(*words).json] == [2] * partitions)


def until(holds: Any) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    assert holds()


def document(run: CommandLine, *words: str, code: int = 0) -> Any:
    return run("topics", "tiering", "orders", *words, "--json", code=code).json


def described(run: CommandLine) -> Any:
    (topic,) = run("topics", "describe", "orders", "--json").json
    return topic["tiering"]


def test_disable_with_retain_then_delete_then_enable(tiered: CommandLine) -> None:
    shown = document(tiered)
    assert (shown["state"], shown["epoch"], shown["policy"]) == ("ENABLED", 0, None)
    counts = [each["remote_segments"] for each in shown["partitions"]]
    assert (counts, shown["remote_segments"]) == ([2, 2], 4)
    assert "  tiered   ENABLED" in tiered("topics", "describe", "orders").lines

    retained = document(tiered, "--disable", "retain")
    assert (retained["state"], retained["epoch"], retained["policy"]) == ("DISABLED", 1, "retain")
    assert retained["remote_segments"] == 4
    assert retained["brokers"] == []
    assert document(tiered, "--disable", "retain") == retained
    assert described(tiered) == {
        "state": "DISABLED",
        "epoch": 1,
        "policy": "retain",
        "copy_disable": False,
        "brokers": [],
        "error": None,
    }

    deleted = tiered("topics", "tiering", "orders", "--disable", "delete")
    assert deleted.words[-5:] == [
        ["orders"],
        ["state", "DISABLED"],
        ["policy", "delete"],
        ["tiered", "epoch", "2"],
        ["remote", "segments", "0"],
    ]
    refused = tiered("topics", "tiering", "orders", "--disable", "retain", code=1)
    assert "the remote data was deleted and cannot be retained" in refused.stderr

    enabled = document(tiered, "--enable")
    assert (enabled["state"], enabled["epoch"], enabled["policy"]) == ("ENABLED", 3, None)


def test_disablement_without_store_shows_reason_and_continues(
    tiered: CommandLine, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the deletion needs the store."""
    monkeypatch.setattr(disable_remote_topic, "WAIT_SECONDS", 0.1)
    away = store.with_name("away")
    store.rename(away)
    assert document(tiered, "--disable", "retain")["state"] == "DISABLED"
    assert document(tiered, "--disable", "delete", "--no-wait")["state"] == "DISABLING"
    until(lambda: "remote segments are not deleted" in str(document(tiered)["brokers"]))
    shown = tiered("topics", "tiering", "orders").lines
    assert shown[1:5] == [
        "  state             DISABLING",
        "  policy            delete",
        "  tiered epoch      2",
        "  finished brokers  0 of 1",
    ]
    assert shown[-1].split()[:3] == ["1", "no", "partition"]
    lines = tiered("topics", "describe", "orders").lines
    assert (
        "  tiered   DISABLING, policy delete, tiered epoch 2, 0 of 1 brokers have finished" in lines
    )

    texts = {
        tiered(*words, code=1).stderr
        for words in (
            ("topics", "tiering", "orders", "--disable", "retain"),
            ("topics", "tiering", "orders", "--disable", "delete"),
            ("topics", "tiering", "orders", "--enable"),
            ("topics", "alter", "orders", "-c", "remote.storage.enable=true"),
            ("configs", "alter", "topic", "orders", "--set", "remote.storage.enable=true"),
        )
    }
    (text,) = texts
    assert "Tiered storage of topic orders is being disabled" in text
    assert "[TIERED_STORAGE_DISABLEMENT_IN_PROGRESS]" in text

    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    interrupted = tiered("topics", "tiering", "orders", "--wait", code=130)
    timer.join()
    assert "The disablement continues." in interrupted.stderr
    assert "finished: 0 of 1" in interrupted.lines[0]
    assert document(tiered)["state"] == "DISABLING"

    away.rename(store)
    assert document(tiered, "--wait")["state"] == "DISABLED"


def test_enabled_topic_whose_copies_are_disabled_gets_a_hint(
    tiered: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Kafka's config is independent of the tiered state."""
    copies_nothing = "Nothing is copied, because remote.log.copy.disable=true"
    assert copies_nothing not in tiered("topics", "tiering", "orders", "--enable").stderr
    # The config requires that local retention is retention, so that the disk does not lose data
    configs = ("remote.log.copy.disable=true", "local.retention.bytes=-2", "local.retention.ms=-2")
    tiered("topics", "alter", "orders", *(word for each in configs for word in ("-c", each)))
    for words in (["--enable"], []):
        assert copies_nothing in tiered("topics", "tiering", "orders", *words).stderr
    assert document(tiered)["copy_disable"]
    assert described(tiered)["copy_disable"]
    line = "  tiered   ENABLED, nothing is copied (remote.log.copy.disable=true)"
    assert line in tiered("topics", "describe", "orders").lines
    monkeypatch.setattr(topic_tiering_admin, "DISABLE_POLICY", "not.known")
    assert copies_nothing in tiered("topics", "tiering", "orders").stderr
    assert line in tiered("topics", "describe", "orders").lines


def test_topic_that_is_not_tiered(tiered: CommandLine) -> None:
    tiered("topics", "create", "plain")
    shown = tiered("topics", "tiering", "plain", "--json").json
    assert (shown["state"], shown["epoch"]) == ("NOT_TIERED", 0)
    refused = tiered("topics", "tiering", "plain", "--disable", "retain", code=1)
    assert "topic plain is not tiered" in refused.stderr
    assert "  tiered " not in tiered("topics", "describe", "plain").stdout.decode()
    absent = tiered("topics", "tiering", "absent", code=1)
    assert "topic absent does not exist" in absent.stderr


def test_disablement_in_kafkas_form_has_no_tiered_state(tiered: CommandLine) -> None:
    tiered(
        "topics",
        "alter",
        "orders",
        "-c",
        "remote.storage.enable=false",
        "-c",
        "remote.log.delete.on.disable=true",
    )
    until(lambda: document(tiered)["remote_segments"] == 0)
    assert document(tiered)["state"] == "NOT_TIERED"
    assert described(tiered) is None


def test_wrong_usage_of_tiering(offline: CommandLine) -> None:
    for words in (
        ["x", "--enable", "--disable", "retain"],
        ["x", "--disable"],
        ["x", "--disable", "no"],
        [],
    ):
        assert offline("topics", "tiering", *words, code=2).stderr


def test_cluster_without_disable_policy_gets_kafkas_configs(
    tiered: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Apache Kafka, whose DescribeConfigs does not have the config."""
    monkeypatch.setattr(topic_tiering_admin, "DISABLE_POLICY", "not.known")
    shown = document(tiered)
    assert (shown["state"], shown["epoch"], shown["remote_segments"]) == ("ENABLED", None, None)
    refused = tiered("topics", "tiering", "orders", "--disable", "delete", code=1)
    assert (
        "--set remote.storage.enable=false --set remote.log.delete.on.disable=true"
        in refused.stderr
    )
    assert "the state is that of the configs" in tiered("topics", "tiering", "orders").lines[-1]


@pytest.mark.slow
def test_stopped_broker_is_missing_until_it_runs_again(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """With three brokers, and controllers that are not brokers. The active controller also stops."""
    with Cluster(brokers=3, controllers=3, configs=QUICK, tiered=True) as cluster:
        monkeypatch.setenv("ODRADEK_BOOTSTRAP", cluster.bootstrap)
        run = CommandLine(monkeypatch, capsysbinary)
        configs = [word for each in TIERED.items() for word in ("-c", "=".join(each))]
        run("topics", "create", "orders", "-p", "3", "-r", "3", *configs)
        for partition in ("0", "1", "2") * 3:
            run("produce", "-t", "orders", "-p", partition, stdin=b"x" * 1500 + b"\n")
        wait_until_copied(run, partitions=3)
        cluster.stop(3)
        assert document(run, "--disable", "delete", "--no-wait")["state"] == "DISABLING"

        def missing() -> dict[int, str | None]:
            brokers = document(run)["brokers"]
            assert [each["broker"] for each in brokers] == [1, 2, 3]
            return {each["broker"]: each["reason"] for each in brokers if not each["finished"]}

        until(lambda: list(missing()) == [3] and missing()[3])
        assert "3" in (missing()[3] or "")
        active = run("quorum", "describe", "--json").json["leader"]
        cluster.stop(active)
        until(lambda: list(missing()) == [3])
        cluster.restart(3)
        ended = document(run, "--wait")
        assert (ended["state"], ended["remote_segments"]) == ("DISABLED", 0)


def test_output_is_the_same_with_apache_kafka(odradek: CommandLine, topic: str) -> None:
    shown = odradek("topics", "tiering", topic, "--json").json
    assert (shown["state"], len(shown["partitions"])) == ("NOT_TIERED", 3)
    assert odradek("topics", "tiering", topic).lines[:2] == [
        topic,
        "  state             NOT_TIERED",
    ]
    refused = odradek("topics", "tiering", topic, "--disable", "retain", code=1)
    assert f"topic {topic} is not tiered" in refused.stderr
    refused = odradek("topics", "tiering", topic, "--enable", code=1)
    assert "INVALID_CONFIG" in refused.stderr
