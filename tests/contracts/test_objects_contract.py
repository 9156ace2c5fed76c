"""Contract of `Objects`, for stores of obstore and the virtual store."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path as OsPath
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
import trio

from odradek.seams.object_store import open_objects
from odradek.seams.objects import (
    ObjectInfo,
    ObjectMissing,
    Objects,
    ObjectsUnavailable,
    StoreTimeouts,
)
from odradek.testing.power import NodeCrashed, Power
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_object_store import (
    StoreFault,
    StoreFaultKind,
    VirtualBucket,
    VirtualObjectStore,
)
from odradek.testing.virtual_offload import VirtualOffload

if TYPE_CHECKING:
    from odradek.bench.s3_server import S3Server


@pytest.fixture(params=["memory", "file", "virtual", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: OsPath) -> Objects:
    if request.param == "virtual":
        return VirtualObjectStore(page_objects=7)
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        return open_objects(server.new_store(), server.options)
    return open_objects(
        "memory:///" if request.param == "memory" else f"file://{tmp_path}/new/store"
    )


def sized(info: ObjectInfo) -> tuple[str, int]:
    return info.key, info.size


def test_put_object_can_be_read(objects: Objects) -> None:
    objects.put("t-0/1.log", [b"ab", bytearray(b"cd"), memoryview(b"xef")[1:]])
    assert bytes(objects.get("t-0/1.log")) == b"abcdef"
    assert sized(objects.head("t-0/1.log")) == ("t-0/1.log", 6)


def test_put_takes_parts_from_an_iterator(objects: Objects) -> None:
    objects.put("k", (b"%d," % n for n in range(5)))
    assert bytes(objects.get("k")) == b"0,1,2,3,4,"


def test_empty_object(objects: Objects) -> None:
    objects.put("empty", [])
    assert bytes(objects.get("empty")) == b""
    assert bytes(objects.get_range("empty", 0, 10)) == b""
    assert objects.head("empty").size == 0


def test_second_put_replaces_the_object(objects: Objects) -> None:
    objects.put("k", [b"a long first one"])
    objects.put("k", [b"short"])
    assert bytes(objects.get("k")) == b"short"


def test_range_ends_with_the_object(objects: Objects) -> None:
    objects.put("k", [b"0123456789"])
    assert bytes(objects.get_range("k", 2, 3)) == b"234"
    assert bytes(objects.get_range("k", 0, 10)) == b"0123456789"
    assert bytes(objects.get_range("k", 8, 100)) == b"89"
    assert bytes(objects.get_range("k", 10, 1)) == b""
    assert bytes(objects.get_range("k", 99, 1)) == b""
    assert bytes(objects.get_range("k", 3, 0)) == b""


def test_range_is_read_into_given_buffer(objects: Objects) -> None:
    objects.put("t-0/k", [b"0123456789"])
    for start, room, found in (
        (2, 3, b"234"),
        (0, 10, b"0123456789"),
        (8, 100, b"89"),
        (10, 1, b""),
    ):
        memory = memoryview(bytearray(room))
        assert objects.get_range_into("t-0/k", start, memory) == len(found)
        assert bytes(memory) == found + bytes(room - len(found))


def test_large_object_is_uploaded_in_parts(objects: Objects) -> None:
    chunk = bytes(range(256)) * 4096
    objects.put("big", [chunk] * 20)
    assert objects.head("big").size == 20 << 20
    assert bytes(objects.get_range("big", (19 << 20) - 5, 10)) == chunk[-5:] + chunk[:5]


def test_missing_object_raises_object_missing(objects: Objects) -> None:
    objects.put("k", [b"x"])
    for use in (
        lambda: objects.get("none"),
        lambda: objects.head("none"),
        lambda: objects.get_range("none", 0, 1),
        lambda: objects.get_range("none", 0, 0),
        lambda: objects.get_range_into("none", 0, memoryview(bytearray(1))),
        lambda: objects.get_range_into("none", 0, memoryview(bytearray())),
    ):
        with pytest.raises(ObjectMissing):
            use()
    objects.delete("none")


def test_deleted_object_is_missing(objects: Objects) -> None:
    objects.put("k", [b"x"])
    objects.delete("k")
    objects.delete("k")
    with pytest.raises(ObjectMissing):
        objects.get("k")


def test_list_of_prefix(objects: Objects) -> None:
    for key in ("t/0/b", "t/0/a", "t/1/a", "t/01/a", "u"):
        objects.put(key, [key.encode()])
    assert [info.key for info in objects.list("t/0")] == ["t/0/a", "t/0/b"]
    assert [info.key for info in objects.list("t/0/")] == ["t/0/a", "t/0/b"]
    assert [info.key for info in objects.list("")] == ["t/0/a", "t/0/b", "t/01/a", "t/1/a", "u"]
    assert [sized(info) for info in objects.list("t/1")] == [("t/1/a", 5)]
    assert objects.list("none") == []


def test_pages_start_after_a_key(objects: Objects) -> None:
    keys = [f"{name}/{n:02}" for name in ("a", "a-b", "b") for n in range(5)]
    for key in keys:
        objects.put(key, [b"x"])

    def behind(prefix: str, after: str) -> list[str]:
        return [info.key for page in objects.pages(prefix, after) for info in page]

    assert behind("a", "a/02") == ["a/03", "a/04"]
    assert behind("a", "a/021") == ["a/03", "a/04"]
    assert behind("a", "a/04") == []
    assert behind("", "a/02") == [key for key in sorted(keys) if key > "a/02"]
    assert behind("", "a-b/") == [key for key in sorted(keys) if key > "a-b/"]


def test_directories_of_prefix(objects: Objects) -> None:
    for key in ("t-0/b", "t-0/a/c", "t-1/a", "t", "t-01/a/b"):
        objects.put(key, [b"x"])
    assert objects.directories("") == ["t-0", "t-01", "t-1"]
    assert objects.directories("t-0") == ["a"]
    assert objects.directories("none") == []
    assert [each.key for each in objects.outside_directories("")] == ["t"]
    assert [each.key for each in objects.outside_directories("t-0")] == ["t-0/b"]
    assert objects.outside_directories("none") == []


def test_pages_are_in_key_order(objects: Objects) -> None:
    """Keys are sorted as strings: "-" and "." come before the "/" that ends a directory's name."""
    keys = [f"{name}/{n:02}" for name in ("a", "a-b", "a.c", "b/c") for n in range(5)] + ["a.log"]
    for key in keys:
        objects.put(key, [b"x"])
    pages = list(objects.pages(""))
    assert [info.key for page in pages for info in page] == sorted(keys)
    assert all(pages)
    assert list(objects.pages("none")) == []


def test_delete_of_several_objects(objects: Objects) -> None:
    for key in ("t/a", "t/b", "t/c"):
        objects.put(key, [b"x"])
    objects.delete_all(["t/a", "t/none", "t/c"])
    assert [info.key for info in objects.list("")] == ["t/b"]
    objects.delete_all([])


@pytest.mark.parametrize("small", [True, False])
def test_exception_of_part_iterator_is_raised_and_nothing_is_stored(
    objects: Objects, small: bool
) -> None:
    """The exception is raised unchanged, and nothing is stored."""

    def parts() -> Iterator[bytes]:
        yield bytes(1 if small else 20 << 20)
        raise OSError(errno.EIO, "the disk is gone")

    objects.put("k", [b"old"])
    with pytest.raises(OSError, match="the disk is gone"):
        objects.put("k", parts())
    assert bytes(objects.get("k")) == b"old"
    assert [info.key for info in objects.list("")] == ["k"]


def test_modification_time_is_the_time_of_put(objects: Objects) -> None:
    objects.put("k", [b"x"])
    found = objects.head("k").modified_ms
    assert [info.modified_ms // 1000 for info in objects.list("")] == [found // 1000]


def test_empty_directories_are_removed(tmp_path: OsPath) -> None:
    """A deleted object leaves no directories, not even those of a deleted topic."""
    objects = open_objects(f"file://{tmp_path}/store")
    objects.put("t-0/a", [b"x"])
    objects.put("t-0/b", [b"x"])
    objects.delete_all(["t-0/a", "t-0/b"])
    assert list((tmp_path / "store").rglob("*")) == []


def test_missing_store_directory_is_unavailable(tmp_path: OsPath) -> None:
    """If the store is unmounted, no object counts as missing, and none is put into the mount point."""
    root = tmp_path / "store"
    objects = open_objects(f"file://{root}")
    objects.put("k", [b"x"])
    root.rename(tmp_path / "elsewhere")
    for again in (False, True):
        if again:
            root.mkdir()
        for use in (
            lambda: objects.put("k", [b"y"]),
            lambda: objects.get("k"),
            lambda: objects.get_range("k", 0, 1),
            lambda: objects.get_range_into("k", 0, memoryview(bytearray(1))),
            lambda: objects.head("k"),
            lambda: objects.delete("k"),
            lambda: objects.delete_all(["k"]),
            lambda: objects.list(""),
        ):
            with pytest.raises(ObjectsUnavailable, match="is not the directory that it was"):
                use()
    root.rmdir()
    (tmp_path / "elsewhere").rename(root)
    assert bytes(objects.get("k")) == b"x"


def test_sweep_removes_leftovers_of_a_killed_put(tmp_path: OsPath) -> None:
    """A process that is killed during a put leaves a file that is not an object."""
    script = f"""
import os
from odradek.seams.object_store import open_objects
def parts():
    yield bytes(20 << 20)
    os.kill(os.getpid(), 9)
open_objects("file://{tmp_path}").put("t-0/a.log", parts())
"""
    subprocess.run([sys.executable, "-c", script], check=False)
    objects = open_objects(f"file://{tmp_path}")
    objects.put("t-0/kept", [b"x"])
    [left] = (path for path in (tmp_path / "t-0").iterdir() if path.name != "kept")
    began = left.stat().st_mtime_ns // 1_000_000
    assert [info.key for info in objects.list("")] == ["t-0/kept"]
    assert objects.sweep(began) == []
    assert objects.sweep(began + 1) == [f"t-0/{left.name}"]
    assert [*(tmp_path / "t-0").iterdir()] == [tmp_path / "t-0" / "kept"]


def test_sweep_keeps_finished_objects(objects: Objects) -> None:
    objects.put("k", [b"x"])
    assert list(objects.sweep(1 << 60)) == []
    assert bytes(objects.get("k")) == b"x"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[OsPath]:
    """Files and directories in the order of their syncs."""
    paths: list[OsPath] = []
    monkeypatch.setattr(
        "odradek.seams.store_directory.sync_all",
        lambda descriptor: paths.append(OsPath(f"/proc/self/fd/{descriptor}").readlink()),
    )
    return paths


def test_put_syncs_file_and_directory(tmp_path: OsPath, synced: list[OsPath]) -> None:
    """The file and the directories above it are synced: the object survives a power failure."""
    root = tmp_path / "with space" / "store"
    open_objects(f"file://{quote(str(root))}").put("t-0/a", [b"x"])
    assert synced == [root / "t-0" / "a", root / "t-0", root]


def test_delete_syncs_the_directory(tmp_path: OsPath, synced: list[OsPath]) -> None:
    """The deletion survives a power failure. Empty directories are removed, too."""
    objects = open_objects(f"file://{tmp_path}")
    for key in ("t-0/a", "t-0/b", "t-0/c", "u-0/a"):
        objects.put(key, [b"x"])
    synced.clear()
    objects.delete("t-0/a")
    assert synced == [tmp_path / "t-0"]
    objects.delete_all(["t-0/b", "u-0/a"])
    assert synced[1:] == [tmp_path / "t-0", tmp_path]
    objects.delete_all(["t-0/c", "none/at/all"])
    assert synced[3:] == [tmp_path, tmp_path]


def test_store_without_response_is_unavailable() -> None:
    objects = open_objects(
        "s3://bucket/prefix",
        {
            "aws_endpoint": "http://127.0.0.1:9",
            "aws_access_key_id": "a",
            "aws_secret_access_key": "b",
        },
        StoreTimeouts(retries=1, first_backoff_seconds=0.01),
    )
    with pytest.raises(ObjectsUnavailable):
        objects.head("k")


def test_unknown_store_url_is_rejected() -> None:
    with pytest.raises(ValueError):
        open_objects("gopher://example")
    with pytest.raises(ValueError):
        open_objects("s3://bucket", {"endpoint": "http://127.0.0.1:9"})


class TestFaults:
    def test_failing_virtual_store_recovers(self) -> None:
        bucket = VirtualBucket()
        objects = VirtualObjectStore(bucket)
        bucket.inject(StoreFault(StoreFaultKind.FAILS, "t/*", ("put",)))
        with pytest.raises(ObjectsUnavailable):
            objects.put("t/k", [b"x"])
        objects.put("u", [b"x"])
        assert [info.key for info in objects.list("")] == ["u"]
        bucket.heal()
        objects.put("t/k", [b"x"])
        assert bucket.requests == [("put", "t/k"), ("put", "u"), ("list", ""), ("put", "t/k")]

    def test_lost_response_of_virtual_store(self) -> None:
        bucket = VirtualBucket()
        bucket.inject(StoreFault(StoreFaultKind.RESPONSE_LOST))
        with pytest.raises(ObjectsUnavailable):
            VirtualObjectStore(bucket).put("k", [b"x"])
        assert bucket.objects == {"k": b"x"}

    def test_partial_put_and_read_of_virtual_store(self) -> None:
        bucket = VirtualBucket()
        objects = VirtualObjectStore(bucket)
        bucket.inject(StoreFault(StoreFaultKind.HALF_DONE, times=1))
        with pytest.raises(ObjectsUnavailable):
            objects.put("k", [b"1234"])
        assert bytes(objects.get("k")) == b"12"
        bucket.inject(StoreFault(StoreFaultKind.HALF_DONE, operations=("get_range",)))
        assert bytes(objects.get_range("k", 0, 2)) == b"1"

    def test_virtual_store_loses_acknowledged_changes(self) -> None:
        bucket = VirtualBucket()
        objects = VirtualObjectStore(bucket)
        objects.put("k", [b"x"])
        bucket.inject(StoreFault(StoreFaultKind.FALSE_SUCCESS, times=3))
        objects.put("new", [b"x"])
        objects.delete("k")
        with pytest.raises(ObjectMissing):
            objects.get("k")
        assert [info.key for info in objects.list("")] == ["k"]

    def test_store_fault_starts_after_and_ends_as_configured(self) -> None:
        bucket = VirtualBucket()
        objects = VirtualObjectStore(bucket)
        bucket.inject(StoreFault(StoreFaultKind.THROTTLED, operations=("put",), after=1, times=2))
        came = []
        for n in range(5):
            try:
                objects.put(f"{n}", [b"x"])
                came.append(n)
            except ObjectsUnavailable as error:
                assert "503" in str(error)  # noqa: PT017
        assert came == [0, 3, 4]

    def test_random_store_faults_are_drawn_per_request(self) -> None:
        bucket = VirtualBucket()
        objects = VirtualObjectStore(bucket)
        bucket.draw = lambda operation, key: (
            StoreFault(StoreFaultKind.FAILS) if (operation, key) == ("head", "k") else None
        )
        objects.put("k", [b"x"])
        with pytest.raises(ObjectsUnavailable):
            objects.head("k")
        bucket.heal()
        assert objects.head("k").size == 1

    def test_slow_request_takes_virtual_time(self) -> None:
        """Only the slow call takes virtual time."""
        clock, bucket = VirtualClock(), VirtualBucket()
        clock.jumping = True
        offload = VirtualOffload()
        objects = VirtualObjectStore(bucket, wait=offload.extend_current_call)
        bucket.inject(StoreFault(StoreFaultKind.HANGS, operations=("put",), times=1, seconds=30))
        bucket.inject(StoreFault(StoreFaultKind.SLOW, operations=("put",), times=1, seconds=7))
        took: list[tuple[str, float]] = []

        async def put(key: str) -> None:
            with suppress(ObjectsUnavailable):
                await offload.run(objects.put, key, [b"x"], lane="objects")
            took.append((key, clock.monotonic()))

        async def main() -> None:
            began = clock.monotonic()
            await put("hangs")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(put, "one")
                nursery.start_soon(put, "other")
            assert [round(at - began) for _, at in took] == [30, 30, 37]

        trio.run(main, clock=clock)
        assert sorted(bucket.objects) == ["one", "other"]

    @pytest.mark.parametrize(
        ("kind", "left"), [(StoreFaultKind.POWER_CUT, []), (StoreFaultKind.POWER_CUT_AFTER, ["k"])]
    )
    def test_power_failure_at_a_store_request(self, kind: StoreFaultKind, left: list[str]) -> None:
        bucket, power = VirtualBucket(), Power()
        objects = VirtualObjectStore(bucket, power)
        bucket.inject(StoreFault(kind, operations=("put",)))
        with pytest.raises(NodeCrashed):
            objects.put("k", [b"x"])
        assert not power.on
        assert [*bucket.objects] == left

    def test_modification_time_is_virtual_time(self) -> None:
        clock = VirtualClock()
        objects = VirtualObjectStore(VirtualBucket(clock))
        objects.put("k", [b"x"])
        assert objects.head("k").modified_ms == clock.wall_ms()

    def test_crashed_node_sends_no_store_request(self) -> None:
        bucket, power = VirtualBucket(), Power()
        objects = VirtualObjectStore(bucket, power)
        power.cut()
        for use in (
            lambda: objects.put("k", [b"x"]),
            lambda: objects.get("k"),
            lambda: objects.get_range("k", 0, 1),
            lambda: objects.head("k"),
            lambda: objects.delete("k"),
            lambda: objects.list(""),
        ):
            with pytest.raises(NodeCrashed):
                use()
        assert (bucket.objects, bucket.requests) == ({}, [])
