"""Tests of `odradek dump --verify` with valid and corrupt files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odradek.cli.main import main
from odradek.protocol.records.batch import batches
from odradek.protocol.records.compression import ZSTD
from odradek.protocol.records.control import end_marker
from odradek.protocol.records.records import Record, build_batch
from odradek.storage.log.index_builder import IndexBuilder
from odradek.storage.log.producer_snapshots import encode_snapshot
from odradek.storage.log.producer_state import BatchMetadata, ProducerEntry

T0 = 1_700_000_000_000
FIRST, SECOND = 0, 60


def name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def batch(base_offset: int, *, epoch: int, count: int = 10, **more: int) -> bytearray:
    records = [Record(-1, T0 + (base_offset + at) % 47, b"key", b"v" * 30) for at in range(count)]
    return build_batch(records, base_offset=base_offset, leader_epoch=epoch, **more)


def abort(offset: int) -> bytearray:
    return end_marker(
        commit=False,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=T0 + 50,
        base_offset=offset,
        leader_epoch=2,
    )


def segment(directory: Path, base_offset: int, content: bytes) -> None:
    """A segment with the indexes that the broker would have written."""
    (directory / name(base_offset, ".log")).write_bytes(content)
    builder = IndexBuilder(base_offset, 500)
    for each in batches(memoryview(content)):
        builder.add(each.last_offset, each.max_timestamp, each.position)
    builder.seal()
    (directory / name(base_offset, ".index")).write_bytes(bytes(builder.offsets))
    (directory / name(base_offset, ".timeindex")).write_bytes(bytes(builder.times))


def partition(root: Path) -> Path:
    """Write a partition with two segments, two epochs, an aborted transaction and all other files."""
    directory = root / "flights-0"
    directory.mkdir(parents=True)
    segment(directory, FIRST, b"".join(batch(at, epoch=1) for at in range(0, 60, 10)))
    second = [batch(60, epoch=1), batch(70, epoch=2, compression=ZSTD)]
    second += [batch(80, epoch=2, producer_id=7, producer_epoch=0, base_sequence=0)]
    second += [abort(90)]
    segment(directory, SECOND, b"".join(second))
    index = directory / name(SECOND, ".index")
    index.write_bytes(index.read_bytes() + bytes(64))  # the active one is preallocated
    times = directory / name(SECOND, ".timeindex")
    times.write_bytes(times.read_bytes().ljust(4096, b"\0"))  # as it once was: not whole entries
    (directory / name(SECOND, ".txnindex")).write_bytes(
        b"\x00\x00" + b"".join(value.to_bytes(8, "big") for value in (7, 80, 90, 91))
    )
    producer = ProducerEntry(7, 0, 0, T0 + 50, -1, [BatchMetadata(9, 89, 9, T0)])
    (directory / name(91, ".snapshot")).write_bytes(encode_snapshot([producer]))
    (directory / "leader-epoch-checkpoint").write_text("0\n2\n1 0\n2 70\n")
    (directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg")
    (root / "recovery-point-offset-checkpoint").write_text("0\n1\nflights 0 91\n")
    return directory


def verify(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main(["dump", "--verify", *map(str, arguments)])
    out, _ = capsys.readouterr()
    return code, out


def test_verify_valid_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partition(tmp_path)
    code, out = verify(capsys, "--deep", tmp_path)
    assert code == 0, out
    lines = out.splitlines()
    assert len(lines) == 11
    assert all(": ok (" in line for line in lines)
    assert "(segment, 6 entries)" in out
    size = (tmp_path / "flights-0" / name(FIRST, ".index")).stat().st_size
    assert f"{name(FIRST, '.index')}: ok (offset index, {size // 8} entries)" in out


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


def ints(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "big") for value in values)


DAMAGE: list[tuple[str, Callable[[bytes], bytes], str]] = [
    (name(FIRST, ".log"), lambda data: flip(data, len(data) - 1), "Record is corrupt"),
    (name(FIRST, ".log"), lambda data: data[:-5], "is truncated"),
    (name(FIRST, ".log"), lambda data: data + b"\x00" * 80, "not a batch: magic 0"),
    (name(FIRST, ".log"), lambda data: data + b"abc", "not a batch: 3 bytes"),
    (name(FIRST, ".log"), lambda data: data + data, "batch at offset 0, but the previous one ends"),
    (name(FIRST, ".log"), lambda data: data + bytes(batch(60, epoch=0)), "epoch 0 after 1"),
    (name(SECOND, ".log"), lambda data: bytes(batch(20, epoch=2)), "the segment starts at 60"),
    (name(FIRST, ".log"), lambda data: data + bytes(batch(65, epoch=1)), ".log ends at 74"),
    (name(FIRST, ".index"), lambda data: data[:-1], "7 bytes after the last complete entry"),
    (name(FIRST, ".timeindex"), lambda data: data[:-1], "11 bytes after the last complete entry"),
    (name(FIRST, ".index"), lambda data: data + data, "after offset"),
    (name(FIRST, ".index"), lambda data: ints(19, 17), "no batch starts at position 17"),
    (name(FIRST, ".index"), lambda data: ints(18) + data[4:], "ends at offset"),
    (name(FIRST, ".timeindex"), lambda data: data + data, "after timestamp"),
    (name(FIRST, ".timeindex"), lambda data: flip(data, 7), "the largest in the log up to"),
    (name(FIRST, ".timeindex"), lambda data: data[:8] + ints(8), "no batch of the log ends at"),
    (name(SECOND, ".txnindex"), lambda data: flip(data, 1), "unknown version"),
    (
        name(SECOND, ".txnindex"),
        lambda data: flip(data, 9),
        "no abort marker of this producer at offset 90",
    ),
    (name(SECOND, ".txnindex"), lambda data: data + data, "after one that ends at 90"),
    (name(91, ".snapshot"), lambda data: flip(data, 20), "CRC"),
    (name(91, ".snapshot"), lambda data: data[:5], "snapshot is truncated"),
    ("leader-epoch-checkpoint", lambda data: b"0\n1\n1 0\n1 0\n", "expected 1 entries"),
    ("leader-epoch-checkpoint", lambda data: b"0\n2\n2 0\n1 70\n", "epoch 1 from offset 70 after"),
    ("leader-epoch-checkpoint", lambda data: b"0\n2\n1 0\n2 60\n", "has epoch 1 in the log"),
    ("partition.metadata", lambda data: b"version: 0\n", "is malformed"),
    ("../recovery-point-offset-checkpoint", lambda data: b"0\n2\nflights 0 91\n", "line 2"),
]


@pytest.mark.parametrize(("file", "damage", "message"), DAMAGE)
def test_verify_reports_corruption(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    damage: Callable[[bytes], bytes],
    message: str,
) -> None:
    path = partition(tmp_path) / file
    path.write_bytes(damage(path.read_bytes()))
    code, out = verify(capsys, tmp_path)
    assert code == 1
    assert message in out
    assert path.name in next(line for line in out.splitlines() if message in line) or ".log" in file


def test_deep_reads_every_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "flights-0"
    directory.mkdir()
    whole = batch(0, epoch=1)
    whole[61] ^= 0x7E  # the first record's length
    _update_crc(whole)
    (directory / name(0, ".log")).write_bytes(whole)
    assert verify(capsys, tmp_path)[0] == 0
    assert verify(capsys, "--deep", tmp_path)[0] == 1


def _update_crc(data: bytearray) -> None:
    from crc32c import crc32c

    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")


def test_verify_accepts_lagging_epoch_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = partition(tmp_path)
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n1 0\n")
    assert verify(capsys, tmp_path)[0] == 0


def test_verify_snapshot_without_footer_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "00000000000000000042-0000000001.checkpoint"
    path.write_bytes(bytes(batch(0, epoch=1)))
    code, out = verify(capsys, path)
    assert code == 1
    assert "SNAPSHOT_HEADER is missing" in out
    assert "SNAPSHOT_FOOTER is missing" in out


def test_verify_json_has_problems_and_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = partition(tmp_path) / name(FIRST, ".log")
    path.write_bytes(path.read_bytes()[:-5])
    code, out = verify(capsys, "--json", path)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert [row["type"] for row in rows] == ["file", "problem", "verified"]
    assert rows[1]["position"] > 0
    assert rows[2]["problems"] == 1


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_verify_never_crashes_on_corrupt_files(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("damaged")
    directory = partition(root)
    path = data.draw(st.sampled_from(sorted(directory.iterdir())))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    for flags in (["--verify", "--deep"], ["--records"], ["--json", "--deep"]):
        assert main(["dump", *flags, str(root)]) in (0, 1)
