"""What `Objects` promises, over obstore's stores and the virtual one."""

from __future__ import annotations

from pathlib import Path as OsPath

import pytest

from odradek.seams.object_store import open_objects
from odradek.seams.objects import ObjectInfo, ObjectMissing, Objects, ObjectsUnavailable
from odradek.testing.power import NodeCrashed, Power
from odradek.testing.virtual_objects import VirtualBucket, VirtualObjects


@pytest.fixture(params=["memory", "file", "virtual"])
def objects(request: pytest.FixtureRequest, tmp_path: OsPath) -> Objects:
    if request.param == "virtual":
        return VirtualObjects()
    return open_objects(
        "memory:///" if request.param == "memory" else f"file://{tmp_path}/new/store"
    )


def test_what_was_put_is_there(objects: Objects) -> None:
    objects.put("t-0/1.log", [b"ab", bytearray(b"cd"), memoryview(b"xef")[1:]])
    assert bytes(objects.get("t-0/1.log")) == b"abcdef"
    assert objects.head("t-0/1.log") == ObjectInfo("t-0/1.log", 6)


def test_parts_may_come_one_by_one(objects: Objects) -> None:
    objects.put("k", (b"%d," % n for n in range(5)))
    assert bytes(objects.get("k")) == b"0,1,2,3,4,"


def test_empty(objects: Objects) -> None:
    objects.put("empty", [])
    assert bytes(objects.get("empty")) == b""
    assert bytes(objects.get_range("empty", 0, 10)) == b""
    assert objects.head("empty").size == 0


def test_putting_again_replaces(objects: Objects) -> None:
    objects.put("k", [b"a long first one"])
    objects.put("k", [b"short"])
    assert bytes(objects.get("k")) == b"short"


def test_ranges_end_with_the_object(objects: Objects) -> None:
    objects.put("k", [b"0123456789"])
    assert bytes(objects.get_range("k", 2, 3)) == b"234"
    assert bytes(objects.get_range("k", 0, 10)) == b"0123456789"
    assert bytes(objects.get_range("k", 8, 100)) == b"89"
    assert bytes(objects.get_range("k", 10, 1)) == b""
    assert bytes(objects.get_range("k", 99, 1)) == b""
    assert bytes(objects.get_range("k", 3, 0)) == b""


def test_a_big_one_goes_in_parts(objects: Objects) -> None:
    chunk = bytes(range(256)) * 4096
    objects.put("big", [chunk] * 20)
    assert objects.head("big").size == 20 << 20
    assert bytes(objects.get_range("big", (19 << 20) - 5, 10)) == chunk[-5:] + chunk[:5]


def test_what_is_missing(objects: Objects) -> None:
    objects.put("k", [b"x"])
    for use in (
        lambda: objects.get("none"),
        lambda: objects.head("none"),
        lambda: objects.get_range("none", 0, 1),
        lambda: objects.get_range("none", 0, 0),
    ):
        with pytest.raises(ObjectMissing):
            use()
    objects.delete("none")


def test_deleting(objects: Objects) -> None:
    objects.put("k", [b"x"])
    objects.delete("k")
    objects.delete("k")
    with pytest.raises(ObjectMissing):
        objects.get("k")


def test_listing_below_a_prefix(objects: Objects) -> None:
    for key in ("t/0/b", "t/0/a", "t/1/a", "t/01/a", "u"):
        objects.put(key, [key.encode()])
    assert [info.key for info in objects.list("t/0")] == ["t/0/a", "t/0/b"]
    assert [info.key for info in objects.list("t/0/")] == ["t/0/a", "t/0/b"]
    assert [info.key for info in objects.list("")] == ["t/0/a", "t/0/b", "t/01/a", "t/1/a", "u"]
    assert objects.list("t/1") == [ObjectInfo("t/1/a", 5)]
    assert objects.list("none") == []


def test_a_store_that_does_not_answer() -> None:
    objects = open_objects(
        "s3://bucket/prefix",
        {
            "aws_endpoint": "http://127.0.0.1:9",
            "aws_access_key_id": "a",
            "aws_secret_access_key": "b",
        },
    )
    with pytest.raises(ObjectsUnavailable):
        objects.head("k")


def test_a_store_nobody_knows() -> None:
    with pytest.raises(ValueError):
        open_objects("gopher://example")
    with pytest.raises(ValueError):
        open_objects("s3://bucket", {"endpoint": "http://127.0.0.1:9"})


class TestFaults:
    def test_away_and_back(self) -> None:
        bucket = VirtualBucket()
        objects = VirtualObjects(bucket)
        bucket.fail("t/*", ["put"])
        with pytest.raises(ObjectsUnavailable):
            objects.put("t/k", [b"x"])
        objects.put("u", [b"x"])
        assert [info.key for info in objects.list("")] == ["u"]
        bucket.heal()
        objects.put("t/k", [b"x"])
        assert bucket.requests == [("put", "t/k"), ("put", "u"), ("list", ""), ("put", "t/k")]

    def test_an_answer_that_was_lost(self) -> None:
        bucket = VirtualBucket()
        bucket.fail(operations=["put"], after_effect=True)
        with pytest.raises(ObjectsUnavailable):
            VirtualObjects(bucket).put("k", [b"x"])
        assert bucket.objects == {"k": b"x"}

    def test_no_request_after_a_crash(self) -> None:
        bucket, power = VirtualBucket(), Power()
        objects = VirtualObjects(bucket, power)
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
