"""Bit flips in the files of a node that is down."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from odradek.protocol.records.batch import batches
from odradek.protocol.topics import TopicPartition
from odradek.seams.files import Path
from odradek.storage.directories.checkpoints import Checkpoint, format
from odradek.testing.simulation import file_corruption
from odradek.testing.simulation.file_corruption import CorruptibleFile, flip_bit
from odradek.testing.simulation.plan import DATA, OTHER_DATA, Fault, FaultKind, SimulationPlan
from odradek.testing.simulation.run import simulate
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles
from tests.simulation import planted_bugs
from tests.support.partition_logs import batch

DIRECTORY = Path("/data/records-0")
SELDOM = (CorruptibleFile.PRODUCERS, CorruptibleFile.OFFSETS, CorruptibleFile.SNAPSHOT)
"""File kinds that do not exist so early in a run."""
LOG = DIRECTORY / "00000000000000000000.log"


@pytest.fixture
def files() -> VirtualFiles:
    """Return files of a log with ten batches of two records; five are below the recovery point."""
    files = VirtualFiles(VirtualDisk())
    files.make_directory(DIRECTORY)
    log = files.open(LOG, create=True)
    log.append_v([batch(2, base_offset=2 * number) for number in range(10)])
    log.close()
    points = format({TopicPartition("records", 0): 10})
    files.write_new(Path("/data") / Checkpoint.RECOVERY_POINT.value, points)
    return files


def only(monkeypatch: pytest.MonkeyPatch, kind: CorruptibleFile) -> None:
    locations = {
        each: file_corruption._LOCATIONS[each] if each is kind else no_locations
        for each in CorruptibleFile
    }
    monkeypatch.setattr(file_corruption, "_LOCATIONS", locations)


def no_locations(disk: VirtualDisk) -> Iterator[file_corruption.BitLocations]:
    return iter(())


def test_bits_of_logs_flip_only_under_a_crc_after_the_recovery_point(
    files: VirtualFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, CorruptibleFile.LOG)
    was = files.read(LOG)
    bounds = [(each.base_offset, each.size) for each in batches(memoryview(was))]
    for seed in range(300):
        assert flip_bit(files.disk, random.Random(seed)) is not None
        now = files.read(LOG)
        [position] = [at for at, byte in enumerate(was) if byte != now[at]]
        assert (was[position] ^ now[position]).bit_count() == 1
        number, inside = divmod(position, bounds[0][1])
        assert bounds[number][0] >= 10
        assert inside in range(8, 12) or inside >= 16
        file = files.open(LOG, write=True)
        file.write_at(position, was[position : position + 1])


def test_bit_flip_in_a_text_file_makes_it_invalid(
    files: VirtualFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, CorruptibleFile.OFFSETS)
    assert flip_bit(files.disk, random.Random(1)) is not None
    with pytest.raises(UnicodeDecodeError):
        files.read(Path("/data") / Checkpoint.RECOVERY_POINT.value).decode()


def test_disk_without_candidate_files_is_not_changed(
    files: VirtualFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, CorruptibleFile.SNAPSHOT)
    assert flip_bit(files.disk, random.Random(1)) is None


def corrupt_node(node: int) -> SimulationPlan:
    fault = Fault(1.5, FaultKind.BIT_FLIP, node, 1, seconds=0.5, amount=0.3, variant=0.7)
    return SimulationPlan(4, (fault,), transactional=0)


@pytest.mark.parametrize("kind", [each for each in CorruptibleFile if each not in SELDOM], ids=str)
def test_node_with_a_flipped_bit_recovers_or_reports_lost_storage(
    kind: CorruptibleFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, kind)
    run = simulate(corrupt_node(2))
    assert [str(each) for each in run.anomalies] == []
    assert any("a bit of node-2 flips: /data/" in line for line in run.trace)
    assert any("node-2 has a new disk" in line for line in run.trace) == (
        kind is CorruptibleFile.NAMED
    )


def test_unusable_log_directory_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node continues with its other log directory."""
    only(monkeypatch, CorruptibleFile.NAMED)
    named = file_corruption._identity_files
    monkeypatch.setitem(
        file_corruption._LOCATIONS,
        CorruptibleFile.NAMED,
        lambda disk: (spot for spot in named(disk) if spot[0] == "/other/meta.properties"),
    )
    run = simulate(replace(corrupt_node(2), configs={"log.dirs": f"{DATA},{OTHER_DATA}"}))
    assert [str(each) for each in run.anomalies] == []
    assert any("node-2 has a new disk" in line for line in run.trace)


def test_node_with_a_new_disk_joins_a_dynamic_quorum_as_a_new_voter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, CorruptibleFile.NAMED)
    run = simulate(replace(corrupt_node(2), dynamic_quorum=True))
    assert [str(each) for each in run.anomalies] == []
    assert any("node-2 has a new disk" in line for line in run.trace)


def test_corruption_that_a_node_accepts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, CorruptibleFile.LOG)
    planted_bugs.skip_crc_checks_in_log_recovery(monkeypatch)
    assert any(not simulate(corrupt_node(node)).is_sound for node in (1, 2, 3))
