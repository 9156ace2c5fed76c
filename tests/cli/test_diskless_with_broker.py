"""Tests of `odradek diskless` and `odradek dump` against a broker with diskless topics."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from odradek.cli import diskless_verify
from odradek.storage.diskless.object_key import object_key
from odradek.testing import Broker
from tests.cli.command_line import CommandLine
from tests.support.waiting import deadline

RECORDS = 40


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def broker(store: Path, tmp_path: Path) -> Iterator[Broker]:
    with Broker(diskless=store, data=tmp_path / "data") as running:
        yield running


@pytest.fixture
def diskless(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> CommandLine:
    """The command line with a broker that has a diskless topic `clicks` with records in all of its partitions."""
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", broker.bootstrap)
    monkeypatch.setattr(diskless_verify, "SETTLE_S", 0.05)
    run = CommandLine(monkeypatch, capsysbinary)
    run("topics", "create", "clicks", "-p", "3", "-c", "diskless.enable=true")
    for partition in ("0", "1", "2"):
        lines = b"".join(b"%d\n" % number for number in range(RECORDS))
        run("produce", "-t", "clicks", "-p", partition, stdin=lines)
    return run


def objects_in(store: Path) -> list[Path]:
    """Objects of the one cluster that uses the store."""
    return sorted(path for path in store.glob("*/diskless/*") if path.is_file())


def test_coordinators_and_files_of_a_broker(diskless: CommandLine, store: Path) -> None:
    found = diskless("diskless", "coordinators", "--json").json["coordinators"]
    assert [row["coordinator"] for row in found] == [0, 1, 2]
    assert all(row["leader"] == 1 and row["error"] is None for row in found)
    assert all(row["applied_offset"] + 1 == row["log_end_offset"] for row in found)
    assert [row["partitions"] for row in found] == [1, 1, 1]
    objects = objects_in(store)
    assert sum(row["live_bytes"] for row in found) == sum(path.stat().st_size for path in objects)
    files = diskless("diskless", "files", "--json").json["files"]
    assert sorted(row["key"] for row in files) == [f"diskless/{path.name}" for path in objects]
    assert {row["status"] for row in files} == {"live"}
    one = diskless("diskless", "files", "--coordinator", "1").words
    assert [row[0] for row in one] == ["COORDINATOR", "1"]


def test_batches_follow_delete_records(diskless: CommandLine) -> None:
    words = ("diskless", "batches", "-t", "clicks", "-p", "1")
    before = diskless(*words, "--json").json
    assert (before["log_start_offset"], before["high_watermark"]) == (0, RECORDS)
    diskless("topics", "trim", "clicks", "-p", "1", "--before", str(RECORDS))
    after = diskless(*words, "--json").json
    assert (after["log_start_offset"], after["batches"]) == (RECORDS, [])
    refused = diskless(*words, "--offset", str(RECORDS + 1), code=1)
    assert "[OFFSET_OUT_OF_RANGE]" in refused.stderr
    diskless("topics", "create", "classic")
    refused = diskless("diskless", "batches", "-t", "classic", "-p", "0", code=1)
    assert "topic classic: it is not diskless" in refused.stderr


def test_verify_finds_damage_and_orphans(diskless: CommandLine, store: Path) -> None:
    words = ("diskless", "verify", "--url", str(store))
    well = diskless(*words, "--json").json
    assert (well["partitions"], well["problems"], well["untracked"]) == (3, [], [])
    assert well["bytes_read"] == well["live_bytes"] > 0
    first, second, third = objects_in(store)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1] + b"?")
    third.write_bytes(third.read_bytes() + b"more")
    orphan = first.parent.parent / object_key(1_700_000_000_000, 7, UUID(int=1))
    orphan.write_bytes(b"x")
    found = diskless(*words, "--json", code=1).json
    missing, damaged, longer = found["problems"]
    assert f"{first.name}: the object is missing, with clicks-" in missing
    assert f"{second.name}: clicks-" in damaged
    assert f"{third.name}: the object has" in longer
    assert [(row["key"], row["status"]) for row in found["untracked"]] == [
        (f"diskless/{orphan.name}", "orphan")
    ]
    diskless("topics", "delete", "clicks")
    last = diskless(*words, code=1).lines[-1]
    assert last.endswith("0 problems, 1 orphans")


def test_verify_reads_the_store_of_a_config_file(
    diskless: CommandLine, store: Path, tmp_path: Path
) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"diskless.storage.system.enable=true\ndiskless.storage.url=file://{store}\n")
    assert diskless("diskless", "verify", "--config", str(config)).lines[-1].endswith("0 orphans")
    shutil.rmtree(store)
    gone = diskless("diskless", "verify", "--config", str(config), code=2)
    assert f"directory {store}/" in gone.stderr
    assert "does not exist" in gone.stderr


def test_dump_of_the_coordinators_log(diskless: CommandLine, tmp_path: Path) -> None:
    logs = sorted((tmp_path / "data").glob("**/__diskless_metadata-*/*.log"))
    assert len(logs) == 3
    types = []
    for log in logs:
        rows = diskless("dump", "--records", "--json", str(log)).lines
        types.append(
            [row["value"]["type"] for row in map(json.loads, rows) if row["type"] == "record"]
        )
    assert types == [["DISKLESS_PARTITION_CREATED_RECORD", "DISKLESS_FILE_COMMITTED_RECORD"]] * 3


def test_number_of_coordinators_is_configured_and_grows(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """D-14, D-15: added partitions of `__diskless_metadata` get only new partitions of topics."""

    def wait_for(expected: list[int]) -> None:
        """Coordinators create their partitions soon after the topic is created."""
        with deadline(20, f"partitions {expected}") as check:
            while partitions() != expected:
                check()

    def partitions() -> list[int]:
        found = run("diskless", "coordinators", "--json").json["coordinators"]
        return [row["partitions"] for row in found]

    configs = {"diskless.metadata.topic.num.partitions": "2"}
    with Broker(diskless=store, configs=configs) as broker:
        monkeypatch.setenv("ODRADEK_BOOTSTRAP", broker.bootstrap)
        run = CommandLine(monkeypatch, capsysbinary)
        run("topics", "create", "first", "-p", "6", "-c", "diskless.enable=true")
        wait_for([3, 3])
        run("topics", "alter", "__diskless_metadata", "-p", "4")
        wait_for([3, 3, 0, 0])
        run("topics", "create", "second", "-p", "8", "-c", "diskless.enable=true")
        wait_for([5, 5, 2, 2])
        described = run("configs", "describe", "broker", "1", "--json").stdout.decode()
        assert '"diskless.metadata.topic.num.partitions"' in described
