"""Peers as processes: start, requests, kill, restart, and errors of unavailable peers."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from odradek.bench import build_cache
from odradek.bench.model import (
    ClusterPeer,
    Feature,
    PeerFailed,
    PeerUnavailable,
    Stage,
    Target,
    reason_to_skip,
)
from odradek.bench.peers import PEERS
from odradek.bench.peers.mock import LibrdkafkaMock
from odradek.bench.peers.odradek import Odradek
from odradek.bench.peers.process import ProcessLaunch, free_port, responds_to_metadata, running
from odradek.bench.raw_connection import RawConnection
from odradek.bench.workloads.recovery import Recovery
from odradek.bench.workloads.requests import Requests
from odradek.bench.workloads.startup import Startup
from odradek.protocol import apis


def partitions(address: tuple[str, int], topic: str) -> int:
    with RawConnection(address) as wire:
        response = wire.request(apis.METADATA, {"topics": [{"name": topic, "topic_id": None}]})
    return len(response.topics[0].partitions)


def test_killed_peer_restarts_with_its_address_and_topics(tmp_path: Path) -> None:
    with Odradek().start(tmp_path) as target:
        process = target.process
        assert process is not None
        assert 0 < process.responded_at - process.exec_started_at < 60
        assert process.cpu_seconds() > 0
        assert process.resident_bytes() > 1_000_000
        target.topics.create("kept", 3)
        first = process.pid
        process.kill()
        assert not responds_to_metadata(target.address, 1)
        process.restart()
        assert process.pid != first
        assert partitions(target.address, "kept") == 3
        with pytest.raises(RuntimeError):
            process.restart()
    assert not responds_to_metadata(target.address, 1)


def test_mock_peer_creates_topics_by_its_control_socket(tmp_path: Path) -> None:
    with LibrdkafkaMock().start(tmp_path) as target, target.topic("made", 5) as topic:
        assert partitions(target.address, topic) == 5


def test_interruption_is_raised_after_the_peer_ended() -> None:
    class GoneTopics:
        def create(self, name: str, partitions: int) -> None: ...

        def delete(self, name: str) -> None:
            raise PeerFailed("no response")

    target = Target("gone", "127.0.0.1:1", GoneTopics())
    with pytest.raises(KeyboardInterrupt), target.topic("t"):
        raise KeyboardInterrupt
    with pytest.raises(PeerFailed), target.topic("t"):
        pass


def test_program_that_exits_is_reported_with_its_output(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such luck')"]
    with (
        pytest.raises(PeerFailed, match="no such luck"),
        running(ProcessLaunch(command, ("127.0.0.1", free_port()), tmp_path)),
    ):
        pass


def test_program_without_a_response_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    launch = ProcessLaunch(command, ("127.0.0.1", free_port()), tmp_path, start_s=0.2)
    with pytest.raises(PeerFailed, match="no response"), running(launch):
        pass


def test_odradek_peer_works_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert Odradek().version() == importlib.metadata.version("odradek")


def test_missing_program_is_reported_with_its_package() -> None:
    with pytest.raises(PeerUnavailable, match=r"a flux capacitor.*'flux-capacitor-9'"):
        build_cache.needed_program("flux-capacitor-9", "a flux capacitor")


def test_failed_build_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODRADEK_CACHE", str(tmp_path))

    def half(made: Path) -> None:
        made.write_text("half")
        build_cache.run_build([sys.executable, "-c", "exit('it broke')"], "building it")

    with pytest.raises(PeerUnavailable, match=r"building it failed:\s+it broke"):
        build_cache.kept("thing", half)
    assert list(tmp_path.iterdir()) == []
    assert build_cache.kept("thing", lambda made: made.mkdir()) == tmp_path / "thing"
    assert build_cache.kept("thing", half) == tmp_path / "thing"  # there already


def test_workload_without_peer_support_is_skipped_with_the_reason() -> None:
    kept_in_memory = PEERS["kfake"]
    assert reason_to_skip(Recovery(1), kept_in_memory) == kept_in_memory.lacks[Feature.RESTART]
    assert reason_to_skip(Recovery(1), PEERS["kfake-disk"]) is None
    assert all(reason_to_skip(Startup(), peer) is None for peer in PEERS.values())
    waiting = PEERS["librdkafka-mock"]
    assert reason_to_skip(Requests(100), waiting) == waiting.lacks[Feature.MANY_CONNECTIONS]
    assert reason_to_skip(Requests(1, idle=500), waiting) is not None
    assert reason_to_skip(Requests(10), waiting) is None
    assert Startup().stage is Stage.FRESH
    several = [peer.name for peer in PEERS.values() if isinstance(peer, ClusterPeer)]
    assert several == [peer.name for peer in PEERS.values() if Feature.CLUSTER not in peer.lacks]
    assert several == ["odradek", "kafka"]
