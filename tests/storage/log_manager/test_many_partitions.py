"""A clean start with 4,000 partitions of 10 segments takes seconds and uses fewer than 1,024 file
descriptors. It runs in a process with a limit of 1,024, on real files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from odradek.protocol.records.records import Record, build_batch
from odradek.storage.directories import clean_shutdown
from odradek.storage.log.index_builder import IndexBuilder
from odradek.storage.log.partition_metadata import format_metadata

PARTITIONS, SEGMENTS, RECORDS = 4_000, 10, 3
DIRECTORIES = ("a", "b")
START_SECONDS_MAX = 6.0

PROGRAM = """
import json, os, random, resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
import trio
from odradek.protocol.records.records import Record, build_batch
from odradek.seams.files import Path
from odradek.seams.real import real_seams
from odradek.storage.directories.opening import open_directories
from odradek.storage.log.config import LogConfig
from odradek.storage.log_manager.log_manager import LogManager, LogServices

def descriptors():
    return len(os.listdir("/proc/self/fd"))

async def main():
    seams = real_seams()
    started = time.monotonic()
    directories = open_directories(
        seams.files, seams.entropy, [Path(path) for path in sys.argv[1:]], node_id=1
    )
    manager = LogManager(LogServices(seams.files, seams.clock, seams.entropy, seams.offload, directories,
        config_for=lambda topic: LogConfig(),))
    await manager.load()
    loaded = time.monotonic() - started
    most = descriptors()
    ends = {log.end_offset for log in manager.logs()}
    logs = list(manager.logs())
    random.Random(1).shuffle(logs)
    for number, log in enumerate(logs):
        for offset in (0, log.end_offset - 1):
            read = log.read(offset, 1000, limit=log.end_offset)
            assert read.slice.read()
            read.slice.file.unpin()
        batch = build_batch([Record(-1, 1, None, b"one more")])
        log.append_as_leader(memoryview(batch), leader_epoch=0, now_ms=1)
        if number % 100 == 0:
            most = max(most, descriptors())
    started = time.monotonic()
    await manager.close()
    closed = time.monotonic() - started
    directories.close()
    print(json.dumps({
        "logs": len(logs), "ends": sorted(ends), "loaded": loaded, "closed": closed,
        "descriptors": most, "failed": [str(each.failure) for each in directories.all if each.failed],
    }))

trio.run(main)
"""


def write_partitions(root: Path) -> None:
    """Files that a broker with that many partitions leaves after a clean shutdown."""
    files: dict[str, bytes] = {
        "partition.metadata": format_metadata(UUID(int=7)),
        "leader-epoch-checkpoint": b"0\n1\n0 0\n",
    }
    for segment in range(SEGMENTS):
        base = segment * RECORDS
        records = [Record(-1, 1_700_000_000_000 + at, None, b"value") for at in range(RECORDS)]
        batch = build_batch(records, base_offset=base, leader_epoch=0)
        builder = IndexBuilder(base, 4096)
        builder.add(base + RECORDS - 1, records[-1].timestamp, 0)
        builder.seal()
        files[f"{base:020d}.log"] = bytes(batch)
        files[f"{base:020d}.index"] = bytes(builder.offsets)
        files[f"{base:020d}.timeindex"] = bytes(builder.times)
    for partition in range(PARTITIONS):
        directory = root / DIRECTORIES[partition % 2] / f"t-{partition}"
        directory.mkdir(parents=True)
        for name, data in files.items():
            (directory / name).write_bytes(data)
    for name in DIRECTORIES:
        (root / name / clean_shutdown.FILE_NAME).write_bytes(clean_shutdown.format(1))


@pytest.mark.slow
@pytest.mark.alone
def test_clean_start_with_many_partitions_uses_few_file_descriptors(tmp_path: Path) -> None:
    write_partitions(tmp_path)
    directories = [str(tmp_path / name) for name in DIRECTORIES]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *directories], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    print(found)
    assert found["failed"] == []
    assert found["logs"] == PARTITIONS
    assert found["ends"] == [SEGMENTS * RECORDS]
    assert found["descriptors"] < 1000
    assert found["loaded"] < START_SECONDS_MAX
    for name in DIRECTORIES:
        assert (tmp_path / name / clean_shutdown.FILE_NAME).exists()
