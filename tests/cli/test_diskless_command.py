"""Tests of `odradek diskless` against scripted coordinators."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from odradek.cli import diskless, diskless_verify
from odradek.cli.diskless_verify import DisklessVerification
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.main import build_parser
from odradek.client.metadata import open_cluster
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.diskless_records import (
    DisklessFileRemovedRecord,
    DisklessRecordsDeletedRecord,
    DisklessTopicDeletedRecord,
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

    async def verify(self, *words: str, code: int = 0) -> Any:
        return await self.json("verify", "--url", str(self.world.store.parent), *words, code=code)


@pytest.fixture
async def run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Commands]:
    """Two coordinators with three files of topic `orders`, which has four partitions."""
    monkeypatch.setattr(diskless_verify, "SETTLE_S", 0.01)
    monkeypatch.setattr("odradek.client.diskless_admin.SETTLE_S", 0.1)
    world = ScriptedDiskless(tmp_path / "store" / "scripted")
    world.store.mkdir(parents=True)
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
        ["0", "1", "4", "0", "4", "0"],
        ["1", "1", "4", "0", "4", "0"],
    ]
    assert "2023-11-14T22:13:20.000Z" in lines[1]


async def test_coordinator_that_loads_is_shown_with_its_error(run: Commands) -> None:
    run.world.errors[1] = ErrorCode.coordinator_load_in_progress
    _, second = (await run.json("coordinators", code=1))["coordinators"]
    assert second == {"coordinator": 1, "leader": 1, "error": "COORDINATOR_LOAD_IN_PROGRESS"}
    lines = await run("coordinators", code=1)
    assert lines[-1] == "coordinator 1: COORDINATOR_LOAD_IN_PROGRESS"


async def test_coordinator_that_was_loading_is_described(run: Commands) -> None:
    run.world.errors[1] = ErrorCode.coordinator_load_in_progress
    async with trio.open_nursery() as nursery:

        async def load() -> None:
            await trio.sleep(0.03)
            del run.world.errors[1]

        nursery.start_soon(load)
        found = (await run.json("coordinators"))["coordinators"]
    assert [row["error"] for row in found] == [None, None]


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


async def test_batches_of_partition_whose_log_start_offset_increases(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention deletes records between the requests."""
    find = run.world._found

    def find_and_delete(topic_id: Any, index: int, offset: int, limit: int) -> dict[str, Any]:
        found = find(topic_id, index, offset, limit)
        if found["log_start_offset"] < 4:
            delete_records(run, 0, found["log_start_offset"] + 2)
        return found

    delete_records(run, 0, 1)
    monkeypatch.setattr(run.world, "_found", find_and_delete)
    found = await run.json("batches", "-t", "orders", "-p", "0")
    assert (found["log_start_offset"], len(found["batches"])) == (5, 1)


async def test_verify_ignores_file_that_was_committed_meanwhile(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch is deleted again before the files are listed for the second time."""
    found = DisklessVerification._find_batches
    listed = DisklessVerification._miscounted

    async def find(self: Any, audit: Any, topic: str, index: int) -> list[str]:
        if index == 2:
            run.world.commit(("orders", 2, 1), uploaded_ms=T0 + 3000)
        return await found(self, audit, topic, index)

    async def list_again(self: Any, audit: Any) -> list[str]:
        delete_records(run, 2, 1)
        return await listed(self, audit)

    monkeypatch.setattr(DisklessVerification, "_find_batches", find)
    monkeypatch.setattr(DisklessVerification, "_miscounted", list_again)
    assert (await run.verify())["problems"] == []


async def test_verify_ignores_deleted_batches_of_stale_follower(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = run.world._found
    stale = find(run.world.topics["orders"][0], 3, 0, 10)
    delete_records(run, 3, 1)
    later = iter([stale])
    monkeypatch.setattr(
        run.world,
        "_found",
        lambda *asked: next(later, None) or find(*asked) if asked[1] == 3 else find(*asked),
    )
    assert (await run.verify())["problems"] == []


async def test_batches_of_classic_topic_fail(run: Commands) -> None:
    with pytest.raises(CommandFailed, match="topic classic: it is not diskless"):
        await run("batches", "-t", "classic", "-p", "0")
    with pytest.raises(WrongUsage, match="no partition 9"):
        await run("batches", "-t", "orders", "-p", "9")


async def test_verify_reads_every_live_batch(run: Commands) -> None:
    found = await run.verify()
    assert (found["partitions"], found["batches"], found["files"]) == (4, 5, 3)
    assert (found["objects_verified"], found["problems"], found["untracked"]) == (3, [], [])
    assert found["bytes_read"] == found["live_bytes"] > 0
    lines = await run("verify", "--quick", "--url", str(run.world.store.parent))
    assert lines[-1] == "3 files, 3 with live batches, sizes verified: 0 problems, 0 orphans"


async def test_verify_reports_missing_and_truncated_objects(run: Commands) -> None:
    first, second, _ = keys_of(run)
    (run.world.store / first).unlink()
    path = run.world.store / second
    path.write_bytes(path.read_bytes()[:-1])
    missing, cut, _ = (await run.verify("--quick", code=1))["problems"]
    assert missing.startswith(
        f"{first}: the object is missing, with orders-0, offsets 0 to 2 and 2 more"
    )
    assert f"{second}: orders-0, offsets 4 to 5 ends after the object" in cut
    assert len((await run.verify(code=1))["problems"]) == 4


async def test_verify_reports_changed_byte_as_crc_error(run: Commands) -> None:
    key = keys_of(run)[2]
    path = run.world.store / key
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert (await run.verify("--quick"))["problems"] == []
    (problem,) = (await run.verify(code=1))["problems"]
    assert problem.startswith(f"{key}: orders-3, offsets 0 to 0: ")
    assert "CRC" in problem or "crc" in problem


async def test_verify_reports_orphans_that_are_old(run: Commands) -> None:
    """D-23: an object that is younger may be committed next."""
    now_ms = real_seams().clock.wall_ms()
    old = f"diskless/{now_ms - 3_600_000:013d}-1-00000000-0000-0000-0000-0000000000aa"
    recent = f"diskless/{now_ms:013d}-1-00000000-0000-0000-0000-0000000000bb"
    for key in (old, recent, "diskless/readme"):
        run.world.put(key, b"x" * 10)
    found = await run.verify(code=1)
    assert found["problems"] == []
    assert {row["key"]: row["status"] for row in found["untracked"]} == {
        old: "orphan",
        recent: "recent",
        "diskless/readme": "stray",
    }
    lines = await run("verify", "--url", str(run.world.store.parent), "--older-than", "7200")
    assert lines[-1].endswith("0 problems, 0 orphans")


async def test_verify_ignores_object_of_file_without_live_batches(run: Commands) -> None:
    """Its owner may delete the object at any time, and removes the file afterwards."""
    key = keys_of(run)[1]
    delete_records(run, 0, 6)
    (run.world.store / key).unlink()
    found = await run.verify()
    assert (found["objects_verified"], found["files"]) == (2, 3)


async def test_verify_reports_file_that_coordinators_do_not_track(run: Commands) -> None:
    """A live batch in a file that was removed too early: its object will be an orphan."""
    key = keys_of(run)[2]
    run.world.states[1]._files.pop(key)
    assert (await run.verify(code=1))["problems"] == [
        f"{key}: no coordinator tracks the file, with orders-3, offsets 0 to 0"
    ]


async def test_verify_reports_gap_in_offsets(run: Commands) -> None:
    state = run.world.states[0]
    topic_id, _ = run.world.topics["orders"]
    del state._partitions[topic_id, 0].batches[1]
    problems = (await run.verify(code=1))["problems"]
    assert any("offset 4 of" in problem and "instead of 3" in problem for problem in problems)
    assert any("count 3 live batches, but partitions have 2" in problem for problem in problems)


async def test_verify_while_batches_are_deleted_has_no_problems(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A problem counts only if the batch is live afterwards."""
    topic_id, _ = run.world.topics["orders"]
    verified = diskless_verify.verify_object

    def verify_deleted(objects: Any, file: Any, *, quick: bool) -> Any:
        if run.world.topics.pop("orders", None):
            for index in (0, 1):
                run.world.apply(index, DisklessTopicDeletedRecord(topic_id=topic_id))
                for key in {each.object_key for each in run.world.states[index].files()}:
                    run.world.apply(index, DisklessFileRemovedRecord(object_key=key))
            for path in (run.world.store / "diskless").iterdir():
                path.unlink()
        return verified(objects, file, quick=quick)

    monkeypatch.setattr(diskless_verify, "verify_object", verify_deleted)
    found = await run.verify()
    assert (found["batches"], found["objects_verified"]) == (5, 3)


async def test_verify_of_cluster_without_diskless_topics_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = ScriptedDiskless(tmp_path / "scripted")
    world.store.mkdir()
    del world.states[:]
    async with scripted_broker(world.respond) as broker:
        world.address = broker.address
        run = Commands(world, capsys)
        with pytest.raises(CommandFailed, match="no topic __diskless_metadata"):
            await run("verify", "--url", str(tmp_path))
        assert await run("coordinators") == [
            "the cluster has no topic __diskless_metadata: it has no diskless topics"
        ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--config server.properties or --url"),
        (("--url", "{missing}"), "does not exist"),
        (("--url", "ftp://x"), "ftp"),
        (("--config", "{missing}"), "missing"),
    ],
)
async def test_verify_without_valid_store_is_wrong_usage(
    run: Commands, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    filled = [word.format(missing=tmp_path / "missing") for word in words]
    with pytest.raises(WrongUsage, match=message):
        await run("verify", *filled)
