"""Reads, lookups and flushes in threads while the event loop appends, rolls, truncates and
deletes."""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path as RealPath
from types import FrameType
from typing import Any

import pytest

from odradek.protocol.records.batch import batches
from odradek.protocol.topics import TopicPartition
from odradek.seams.files import Buffer, File, Path
from odradek.seams.real_files import RealFiles
from odradek.storage.errors import OffsetOutOfRange
from odradek.storage.log import index_builder, partition_log, producer_replay
from odradek.storage.log.batch_scan import BatchPosition
from odradek.storage.log.file_names import LOG, OFFSET_INDEX, TIME_INDEX
from odradek.storage.log.offset_index import OffsetIndex
from odradek.storage.log.partition_log import LogEnvironment, LogRead, PartitionLog, RecoveryOptions
from odradek.storage.log.segment import Segment
from odradek.storage.log.transaction_index import AbortedTransaction
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles
from tests.support.partition_logs import FOREVER, TOPIC_ID, LogWorld, batch, idempotent

CONFIG = dataclasses.replace(
    FOREVER,
    internal_segment_bytes=8000,
    index_interval_bytes=200,
    file_delete_delay_ms=0,
    retention_bytes=15_000,
)


@pytest.fixture
def log(tmp_path: RealPath) -> PartitionLog:
    return PartitionLog.open(
        LogEnvironment(
            RealFiles(max_open=20),  # so that descriptors and maps are closed and opened again
            VirtualClock(),
        ),
        Path(str(tmp_path / "t-0")),
        TopicPartition("t", 0),
        CONFIG,
        topic_id=TOPIC_ID,
        recovery=RecoveryOptions(clean=False),
    )


@pytest.fixture(autouse=True)
def _threads_that_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@contextmanager
def run_concurrently(*works: Callable[[], None]) -> Iterator[None]:
    """Run each function repeatedly in its own thread; their exceptions are raised here."""
    done = threading.Event()
    failures: list[BaseException] = []

    def repeat(work: Callable[[], None]) -> None:
        try:
            while not done.is_set() and not failures:
                work()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def read_somewhere(log: PartitionLog) -> None:
    start, end = log.log_start_offset, log.end_offset
    offset = random.randint(start, max(start, end))
    try:
        read = log.read(offset, random.randint(1, 20_000), limit=end)
    except OffsetOutOfRange:
        return
    if read.slice is None:
        return
    data = memoryview(read.slice.read())
    read.slice.file.unpin()
    assert len(data) == read.slice.size
    next_offset = None
    for each in batches(data, check=True, allow_partial=True):
        if next_offset is None:
            assert each.base_offset <= offset <= each.last_offset
        else:
            assert each.base_offset == next_offset
        next_offset = each.last_offset + 1


def search(log: PartitionLog) -> None:
    log.find_timestamp(random.randint(0, 2000))
    log.max_timestamp()


def test_concurrent_readers_get_consistent_data_or_nothing(log: PartitionLog) -> None:
    rng = random.Random(1)
    reader = lambda: read_somewhere(log)  # noqa: E731
    with run_concurrently(reader, reader, lambda: search(log), log.flush):
        for n in range(400):
            size = rng.randint(0, 300)
            data = batch(rng.randint(1, 4), size=size, timestamps=n)
            log.append_as_leader(data, leader_epoch=n // 100, now_ms=0)
            if rng.random() < 0.03:
                log.truncate_to(max(log.log_start_offset, log.end_offset - rng.randint(0, 80)))
            if rng.random() < 0.03:
                log.advance_high_watermark(log.end_offset - 40)
                log.delete_expired(0)
                log.remove_deleted(0)
    assert log.failure is None
    assert log.log_start_offset > 0
    log.close(True)


def test_truncation_in_thread_with_concurrent_readers(log: PartitionLog) -> None:
    """As for a follower: no appends, but reads, run at the same time."""
    for _ in range(12):
        for n in range(40):
            log.append_as_leader(batch(2, size=200, timestamps=n), leader_epoch=n, now_ms=0)
        pinned = log.read(log.end_offset - 4, 1000, limit=log.end_offset)
        assert pinned.slice is not None
        before = pinned.slice.read()
        thread = threading.Thread(target=log.truncate_to, args=(log.end_offset - 30,))
        thread.start()
        while thread.is_alive():
            read_somewhere(log)
        thread.join()
        log.append_as_leader(batch(9, size=100, timestamps=0), leader_epoch=50, now_ms=0)
        assert pinned.slice.read() == before
        pinned.slice.file.unpin()
    assert log.failure is None


def test_reader_waits_while_files_are_replaced(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not spin, and it reads once after the replacement."""
    log.append_as_leader(batch(2, timestamps=0), leader_epoch=0, now_ms=0)
    looks: list[int] = []
    real = partition_log.read_segments

    def counted(*args: object, **more: object) -> LogRead:
        looks.append(log.generation)
        return real(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(partition_log, "read_segments", counted)
    read = functools.partial(log.read, 2, 1000, limit=2)  # an empty read pins nothing
    reader = threading.Thread(target=read)
    with log.replacing():
        reader.start()
        reader.join(0.1)
        assert reader.is_alive()
        assert looks == []
    reader.join(10)
    assert looks == [log.generation]


def a_segment(*, is_open: bool) -> Segment:
    """A segment with indexes and an aborted transaction; either all its files are open, or none."""
    files = VirtualFiles(VirtualDisk())
    files.make_directory(Path("/t"))
    written = Segment.create(files, Path("/t"), 0, index_interval_bytes=0, created_ms=0)
    for offset in range(3):
        data = batch(base_offset=offset, timestamps=offset)
        written.index_batches(list(batches(data)), written.write(data, 1))
    written.transaction_index.append(AbortedTransaction(7, 0, 1, 2))
    if is_open:
        return written
    written.seal()
    written.close()
    return Segment(
        files,
        Path("/t"),
        0,
        index_interval_bytes=0,
        created_ms=0,
        has_transaction_index=True,
    )


def closed_at(line: int, segment: Segment, use: Callable[[Segment], object]) -> bool:
    """Call `use`, and close the segment before the given line of the log's code. False if there
    are fewer lines."""
    lines = 0
    closing = threading.Thread(target=segment.close)

    def count(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal lines
        if "/storage/log/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            lines += 1
            if lines == line:
                closing.start()
                closing.join(0.01)  # it may wait for this thread
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        use(segment)
    except ValueError:
        assert lines >= line
    finally:
        sys.settrace(before)
    if lines < line:
        return False
    closing.join()
    return True


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(
    "use",
    [
        Segment.sync,
        lambda segment: segment.locate(1),
        lambda segment: segment.time_index.entry_before(1),
        lambda segment: segment.transaction_index.entries,
    ],
    ids=["sync", "locate", "lookup", "aborted"],
)
def test_segment_closed_at_any_moment_raises_value_error(
    use: Callable[[Segment], object], is_open: bool
) -> None:
    """The caller then checks whether the log was truncated or deleted."""
    line = 1
    while closed_at(line, a_segment(is_open=is_open), use):
        line += 1
    assert line > 2


def meanwhile(act: Callable[[], object]) -> threading.Thread:
    """Run `act` in another thread; continue when it has finished or seems to wait for this one."""
    thread = threading.Thread(target=act)
    thread.start()
    thread.join(0.05)
    return thread


class Meddled:
    """Files that run an action in another thread, once, before or after a file is opened."""

    def __init__(self, files: VirtualFiles, act: Callable[[], object], *, before: bool) -> None:
        self._files, self._act, self._before = files, act, before
        self.thread: threading.Thread | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open(self, path: Path, **more: bool) -> object:
        if self._before:
            self._meddle()
        file = self._files.open(path, **more)
        self._meddle()
        return file

    def _meddle(self) -> None:
        if self.thread is None:
            self.thread = meanwhile(self._act)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    "move",
    [
        lambda segment: segment.rename(".deleted"),
        lambda segment: rename_directory(segment),
        Segment.close,
    ],
    ids=["rename", "move", "close"],
)
@pytest.mark.parametrize(
    "use",
    [lambda segment: segment.file, lambda segment: segment.offset_index],
    ids=["data", "index"],
)
def test_files_opened_in_thread_during_rename_have_new_names(
    use: Callable[[Segment], object], move: Callable[[Segment], None], before: bool
) -> None:
    """No handle has the old path, which may belong to no file or another one; no file of a closed
    segment is open; and no rebuilt index replaces the index of another segment."""
    segment = a_segment(is_open=False)
    files = segment._files
    assert isinstance(files, VirtualFiles)
    count = len(files.list(segment.directory))
    meddled = Meddled(files, lambda: move(segment), before=before)
    segment._files = meddled  # type: ignore[assignment]
    # It was closed meanwhile, or its directory was renamed; a reader detects this by `generation`.
    with suppress(ValueError, FileNotFoundError):
        use(segment)
    assert meddled.thread is not None
    meddled.thread.join()
    handles = list(segment._handles())
    assert [handle.path for _, handle in handles] == [segment.path(kind) for kind, _ in handles]
    assert len(files.list(segment.directory)) == count
    if segment._is_closed:
        assert not handles
    else:
        assert segment.locate(1) is not None


def completes_concurrently(act: Callable[[], object]) -> bool:
    """Whether another thread can complete that action while this one is where it is."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(5)
    return not thread.is_alive()


def test_opening_files_of_one_segment_does_not_block_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its disk may be slow, or its indexes may be rebuilt."""
    slow, other = a_segment(is_open=False), a_segment(is_open=True)
    real, ended = slow._files.open, []

    def slowly(path: Path, **more: bool) -> File:
        ended.append(
            completes_concurrently(lambda: other.rename("" if other.suffix else ".deleted"))
        )
        return real(path, **more)

    monkeypatch.setattr(slow._files, "open", slowly)
    assert slow.locate(1) is not None
    assert ended == [True] * 3


def test_segment_is_renamed_while_its_index_is_rebuilt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retention renames on the event loop, which must not wait for the headers of a large
    segment."""
    segment = a_segment(is_open=False)
    segment._files.remove(segment.path(OFFSET_INDEX))
    real, ended = index_builder.headers, []

    def headers(*args: Any) -> Iterator[BatchPosition]:
        ended.append(completes_concurrently(lambda: segment.rename(".deleted")))
        return real(*args)

    monkeypatch.setattr(index_builder, "headers", headers)
    assert segment.locate(1) is not None
    assert ended == [True]
    assert [handle.path for _, handle in segment._handles()] == [
        segment.path(kind) for kind in (LOG, OFFSET_INDEX, TIME_INDEX)
    ]
    assert segment.offset_index.path.name.endswith(".deleted")
    assert segment._files.exists(segment.offset_index.path)


def rename_directory(segment: Segment) -> None:
    segment._files.rename(Path("/t"), Path("/u"))
    segment.move_to(Path("/u"))


def an_index(tmp_path: RealPath) -> OffsetIndex:
    """An index of 400 entries, with space for more."""
    index = OffsetIndex(RealFiles(max_open=20), Path(str(tmp_path / "0.index")), 0)
    index.create()
    index.reserve(400)
    index.append([(each, each) for each in range(1, 401)])
    return index


def test_index_lookup_and_trim_exclude_each_other(
    tmp_path: RealPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A map created during the trim would cover removed bytes, like a failing disk."""
    index = an_index(tmp_path)
    found: list[object] = []
    threads: list[threading.Thread] = []
    real = os.ftruncate

    def look() -> None:
        try:
            found.append(index.lookup(77))
        except OSError as error:
            found.append(error)

    def cut(fd: int, size: int) -> None:
        real(fd, size)
        threads.append(meanwhile(look))

    monkeypatch.setattr(os, "ftruncate", cut)
    index.trim()
    threads[0].join()
    assert found == [(77, 77)]


def test_index_file_is_trimmed_after_lookups_in_its_map(tmp_path: RealPath) -> None:
    index = an_index(tmp_path)
    failures: list[Exception] = []
    threads: list[threading.Thread] = []

    def trim() -> None:
        try:
            index.trim()
        except BufferError as error:
            failures.append(error)

    def find(view: Buffer) -> int:
        threads.append(meanwhile(trim))
        return len(view)

    assert index.search(find, mapped=True) == 400 * 8
    threads[0].join()
    assert failures == []
    assert index.file.size == 400 * 8


def test_open_transaction_stays_open_during_truncation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The truncation rebuilds the producer state in its thread; a read_committed reader gets no
    undecided records meanwhile."""
    world = LogWorld(FOREVER)
    for number in range(5):
        world.append(idempotent(8, number, transactional=True))
    for number in range(5):
        world.append(idempotent(7, number))
    world.log.advance_high_watermark(8)
    assert world.log.last_stable_offset == 0
    seen: list[int] = []
    replay = producer_replay.replay

    def replay_seen(*args: Any) -> None:
        seen.append(world.log.last_stable_offset)
        replay(*args)
        seen.append(world.log.last_stable_offset)

    monkeypatch.setattr(producer_replay, "replay", replay_seen)
    world.log.truncate_to(9)
    assert seen == [0, 0]
    assert world.log.last_stable_offset == 0
