"""Tests of `odradek diskless` against scripted coordinators."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from odradek.cli import diskless
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.main import build_parser
from odradek.client.metadata import open_cluster
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.diskless_records import (
    DisklessRecordsDeletedRecord,
)
from odradek.seams.real import real_seams
from odradek.seams.tcp import TcpNetwork
from tests.support.scripted_broker import scripted_broker
from tests.support.scripted_diskless import T0, ScriptedDiskless


class Commands:
    """Runs `odradek diskless …` against the scripted broker."""

    def __init__(self, world: ScriptedDiskless, capsys: pytest.CaptureFixture[str]) -> None:
        self.world = world
        self._capsys = capsys

    async def __call__(self, *words: str, code: int = 0) -> list[str]:
        """Lines of the output."""
        args = build_parser("diskless", diskless).parse_args(["diskless", *words])
        with trio.fail_after(30):
            async with open_cluster(TcpNetwork(), [self.world.address], timeout_s=5) as cluster:
                assert await args.action(args, cluster, real_seams()) == code
        return self._capsys.readouterr().out.splitlines()

    async def json(self, *words: str, code: int = 0) -> Any:
        return json.loads("\n".join(await self(*words, "--json", code=code)))


@pytest.fixture
async def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Commands]:
    """Two coordinators with three files of topic `orders`, which has four partitions."""
    world = ScriptedDiskless(tmp_path / "store")
    world.store.mkdir()
    world.create("orders", 4)
    world.classic["classic"] = 1
    world.commit(("orders", 0, 3), ("orders", 1, 2), ("orders", 0, 1))
    world.commit(("orders", 0, 2), uploaded_ms=T0 + 1000)
    world.commit(("orders", 3, 1), uploaded_ms=T0 + 2000)
    async with serving(world, capsys) as commands:
        yield commands


@asynccontextmanager
async def serving(
    world: ScriptedDiskless, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Commands]:
    async with scripted_broker(world.respond) as broker:
        world.address = broker.address
        yield Commands(world, capsys)


def keys_of(run: Commands) -> list[str]:
    return sorted({file.object_key for state in run.world.states for file in state.files()})


def delete_records(run: Commands, index: int, offset: int) -> None:
    topic_id, _ = run.world.topics["orders"]
    run.world.apply(
        index,
        DisklessRecordsDeletedRecord(
            topic_id=topic_id, partition_index=index, new_log_start_offset=offset
        ),
    )


async def test_coordinators_show_offsets_and_totals(run: Commands) -> None:
    first, second = (await run.json("coordinators"))["coordinators"]
    assert first == {
        "coordinator": 0,
        "leader": 1,
        "error": None,
        "leader_epoch": 4,
        "log_start_offset": 0,
        "applied_offset": 3,
        "log_end_offset": 4,
        "snapshot_offset": None,
        "state_bytes": None,
        "partitions": 2,
        "batches": 3,
        "live_bytes": first["live_bytes"],
        "files": 2,
        "files_to_hand_over": 0,
        "files_to_delete": 0,
        "oldest_file_ms": T0,
    }
    assert (second["batches"], second["files"]) == (2, 2)
    lines = await run("coordinators")
    assert lines[0].split()[:4] == ["COORDINATOR", "LEADER", "EPOCH", "START"]
    assert [line.split()[:6] for line in lines[1:]] == [
        ["0", "1", "4", "0", "3", "4"],
        ["1", "1", "4", "0", "3", "4"],
    ]
    assert "2023-11-14T22:13:20.000Z" in lines[1]


async def test_coordinator_that_loads_is_shown_with_its_error(run: Commands) -> None:
    run.world.errors[1] = ErrorCode.coordinator_load_in_progress
    _, second = (await run.json("coordinators", code=1))["coordinators"]
    assert second == {"coordinator": 1, "leader": 1, "error": "coordinator_load_in_progress"}
    lines = await run("coordinators", code=1)
    assert lines[-1] == "coordinator 1: coordinator_load_in_progress"


async def test_files_have_status_and_owners(run: Commands) -> None:
    delete_records(run, 0, 6)
    files = (await run.json("files"))["files"]
    found = [(file["coordinator"], file["status"], file["owners"]) for file in files]
    assert found == [
        (0, "handing_over", [0, 1]),
        (0, "deleting", [0]),
        (1, "live", [0, 1]),
        (1, "live", [1]),
    ]
    assert [file["uploaded_ms"] - T0 for file in files] == [0, 1000, 0, 2000]
    lines = await run("files", "--coordinator", "1", "--status", "live")
    assert [line.split()[0] for line in lines] == ["COORDINATOR", "1", "1"]
    with pytest.raises(WrongUsage, match=r"no coordinator 2 \(it has 2, from 0\)"):
        await run("files", "--coordinator", "2")


async def test_files_are_listed_in_pages(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odradek.client.diskless_admin.FILES_PER_REQUEST", 2)
    for at in range(5):
        run.world.commit(("orders", 0, 1), uploaded_ms=T0 + 3000 + at)
    files = (await run.json("files", "-n", "0"))["files"]
    assert len({file["key"] for file in files}) == len(files) == 7


async def test_batches_of_partition_from_offset(run: Commands) -> None:
    found = await run.json("batches", "-t", "orders", "-p", "0", "--offset", "4")
    assert (found["log_start_offset"], found["high_watermark"]) == (0, 6)
    assert [(row["base_offset"], row["last_offset"]) for row in found["batches"]] == [(4, 5)]
    assert found["batches"][0]["key"] == keys_of(run)[1]
    lines = await run("batches", "-t", "orders", "-p", "0", "--max", "1")
    assert [line.split()[:2] for line in lines[:-1]] == [["BASE", "LAST"], ["0", "2"]]
    assert lines[-1] == "log start offset 0, high watermark 6"


async def test_batches_begin_at_log_start_offset(run: Commands) -> None:
    delete_records(run, 0, 3)
    found = await run.json("batches", "-t", "orders", "-p", "0")
    assert found["log_start_offset"] == found["batches"][0]["base_offset"] == 3
    with pytest.raises(KafkaError, match="offset 7 is not between the log start offset 3 and"):
        await run("batches", "-t", "orders", "-p", "0", "--offset", "7")


async def test_batches_of_classic_topic_fail(run: Commands) -> None:
    with pytest.raises(CommandFailed, match="topic classic: it is not diskless"):
        await run("batches", "-t", "classic", "-p", "0")
    with pytest.raises(WrongUsage, match="no partition 9"):
        await run("batches", "-t", "orders", "-p", "9")
