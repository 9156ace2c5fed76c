"""Tests of `odradek remote give-up`, for an object store that is permanently lost."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
import trio

from odradek.cli import remote_give_up
from odradek.cli.main import main
from odradek.client import admin
from odradek.client.consumer import EARLIEST, list_offsets
from odradek.replication.controller.image import DisablePolicy, TieredState, TopicTiering
from odradek.seams.store_directory import MARKER_FILE
from tests.support.tiered_topic_broker import (
    AWAY,
    LACKING,
    VALUES,
    WHERE,
    TieredBroker,
    copy_segments,
    is_logged,
    stage,
)

POLICY = "remote.log.disable.policy"
OF_TIERING = ["remote.storage.enable", "remote.log.delete.on.disable"]


def store(tmp_path: Path) -> Path:
    return tmp_path / "tier" / "kafka-tiered-storage"


async def give_up(tiered: TieredBroker, directory: Path, *words: str) -> int:
    """Exit code of the command; its output is captured."""
    bootstrap = ("--bootstrap", tiered.cluster_address, "--url", f"file://{directory}")
    return await trio.to_thread.run_sync(partial(main, ["remote", "give-up", *bootstrap, *words]))


async def configs(tiered: TieredBroker) -> dict[str, tuple[str | None, bool]]:
    """Values of the configs, and whether they are set on the topic."""
    found = await admin.describe_configs(
        tiered.cluster, admin.ResourceType.TOPIC, "orders", keys=OF_TIERING
    )
    return {each.name: (each.value, each.source is admin.ConfigSource.TOPIC) for each in found}


def tiering(tiered: TieredBroker) -> TopicTiering:
    image = tiered.node.metadata.image
    return image.tiering_of(image.topics_by_name["orders"].id)


async def earliest_offset(tiered: TieredBroker) -> int:
    return (await list_offsets(tiered.cluster, {WHERE: EARLIEST}))[WHERE].offset


@pytest.mark.parametrize("what", ["missing directory", "empty directory"])
async def test_give_up_of_lost_store_copies_local_segments_again(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    what: str,
) -> None:
    await copy_segments(tmp_path)
    is_gone = what == "missing directory"
    for path in [tmp_path / "tier"] if is_gone else store(tmp_path).iterdir():
        if path.name != MARKER_FILE:
            shutil.rmtree(path)
    async with stage(tmp_path) as tiered:
        await tiered.until(is_logged(caplog, *(AWAY if is_gone else LACKING)))
        assert "odradek remote give-up" in caplog.text
        start = tiered.log.local_log_start_offset
        await tiered.produce(VALUES)
        before = await configs(tiered)
        assert await give_up(tiered, store(tmp_path)) == 0
        assert "not yet given up; use --execute" in capsys.readouterr().out
        assert store(tmp_path).exists() is not is_gone
        assert await configs(tiered) == before
        assert tiered.log.log_start_offset == 0

        assert await give_up(tiered, store(tmp_path), "--execute") == 0
        assert f"orders-0 now starts at offset {start}" in capsys.readouterr().out
        assert await configs(tiered) == before
        await tiered.until(tiered.is_copied)
        assert tiered.remote_segments()[0] == start
        assert await earliest_offset(tiered) == start
        assert await tiered.read(start) == [*VALUES[start:], *VALUES]
        assert await give_up(tiered, store(tmp_path), "--execute") == 0
        assert "no topic is lost" in capsys.readouterr().out
    async with stage(tmp_path) as tiered:
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        assert await tiered.read(start) == [*VALUES[start:], *VALUES, *VALUES]


@pytest.mark.parametrize("form", ["KIP-950", "Kafka"])
async def test_give_up_completes_deletion_from_lost_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """KIP-950, X-11: the topic can neither be enabled nor disabled again until the deletion is complete."""
    policy = {POLICY: "delete"} if form == "KIP-950" else {"remote.log.delete.on.disable": "true"}
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        (tmp_path / "tier").rename(tmp_path / "away")
        await tiered.alter({"remote.storage.enable": "false", **policy})
        start = tiered.log.local_log_start_offset
        await tiered.until(lambda: tiered.log.log_start_offset == start)
        assert await give_up(tiered, store(tmp_path)) == 0
        assert "not yet given up; use --execute" in capsys.readouterr().out
        assert await give_up(tiered, store(tmp_path), "--execute") == 0
        found = capsys.readouterr().out
        assert "given up. Tiered storage remains disabled" in found
        assert f"orders-0 now starts at offset {start}" in found
        await tiered.until(lambda: tiering(tiered).state is not TieredState.DISABLING)
        await tiered.alter({"remote.storage.enable": "true"})
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        assert await tiered.read(start) == [*VALUES[start:], *VALUES]
        assert await give_up(tiered, store(tmp_path), "--execute") == 0
        assert "no topic is lost" in capsys.readouterr().out


async def test_give_up_deletes_retained_data_that_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """X-06: the disablement with retain may not be complete, because a copy could not be deleted."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        await tiered.alter({"remote.storage.enable": "false", POLICY: "retain"})
        (tmp_path / "tier").rename(tmp_path / "away")
        start = tiered.log.local_log_start_offset
        assert await give_up(tiered, store(tmp_path), "--execute") == 0
        found = capsys.readouterr().out
        assert "given up. Tiered storage remains disabled" in found
        assert f"orders-0 now starts at offset {start}" in found
        await tiered.until(lambda: tiering(tiered).state is TieredState.DISABLED)
        assert tiering(tiered).policy is DisablePolicy.DELETE
        assert await tiered.read(start) == VALUES[start:]


async def test_give_up_leaves_topics_whose_deletion_is_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        await tiered.alter({"remote.storage.enable": "false", POLICY: "delete"})
        await tiered.until(lambda: tiering(tiered).state is TieredState.DISABLED)
        assert await give_up(tiered, store(tmp_path)) == 0
        assert "no topic is lost" in capsys.readouterr().out


async def test_give_up_refuses_partially_lost_topic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        first = f"{tiered.remote_segments()[0]:020}-*"
        for path in store(tmp_path).rglob(first):
            path.unlink()
        assert await give_up(tiered, store(tmp_path), "--execute") == 1
        assert "orders has other segments in the store" in capsys.readouterr().out
        assert await earliest_offset(tiered) == 0


async def test_give_up_restores_configs_without_deletion_by_brokers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command names another directory than the brokers use."""
    monkeypatch.setattr(remote_give_up, "DELETION_TIMEOUT_S", 0.5)
    await copy_segments(tmp_path)
    (tmp_path / "tier").rename(tmp_path / "away")
    (tmp_path / "other").mkdir()
    async with stage(tmp_path) as tiered:
        await tiered.alter({"remote.log.delete.on.disable": "false"})
        assert await give_up(tiered, tmp_path / "other", "--execute") == 1
        assert "without a deletion" in capsys.readouterr().err
        assert await configs(tiered) == {
            "remote.storage.enable": ("true", True),
            "remote.log.delete.on.disable": ("false", True),
        }
