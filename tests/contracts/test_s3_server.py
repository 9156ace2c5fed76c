"""A real S3 server that stops during an upload and starts again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from odradek.seams.object_store import open_objects
from odradek.seams.objects import ObjectsUnavailable, StoreTimeouts

if TYPE_CHECKING:
    from odradek.bench.s3_server import S3Server

PIECE = bytes(range(256)) * 4096


@pytest.fixture
def server(s3_server: S3Server) -> Iterator[S3Server]:
    yield s3_server
    if not s3_server.is_running:
        s3_server.start()


def test_server_stops_during_upload(server: S3Server) -> None:
    """The put fails and leaves no object; a second put succeeds."""
    short_timeouts = StoreTimeouts(retries=1, first_backoff_seconds=0.01, connect_seconds=1)
    objects = open_objects(server.new_store(), server.options, short_timeouts)
    objects.put("before", [PIECE])

    def parts() -> Iterator[bytes]:
        for number in range(40):
            if number == 30:
                server.kill()
            yield PIECE

    with pytest.raises(ObjectsUnavailable, match="big: "):
        objects.put("big", parts())
    for use in (lambda: objects.head("before"), lambda: objects.list(""), lambda: objects.get("x")):
        with pytest.raises(ObjectsUnavailable):
            use()
    server.start()
    assert [info.key for info in objects.list("")] == ["before"]
    objects.put("big", [PIECE] * 40)
    assert bytes(objects.get("big")) == PIECE * 40


def test_missing_bucket_is_unavailable(server: S3Server) -> None:
    objects = open_objects("s3://no-such-bucket", server.options, StoreTimeouts(retries=0))
    for use in (
        lambda: objects.put("k", [b"x"]),
        lambda: objects.get("k"),
        lambda: objects.get_range("k", 0, 1),
        lambda: objects.list(""),
    ):
        with pytest.raises(ObjectsUnavailable, match=r"404 Not Found: NoSuchBucket: The specified"):
            use()


def test_wrong_secret_key_is_unavailable(server: S3Server) -> None:
    options = server.options | {"aws_secret_access_key": "wrong"}
    objects = open_objects(server.new_store(), options, StoreTimeouts(retries=0))
    with pytest.raises(ObjectsUnavailable, match="403 Forbidden: SignatureDoesNotMatch: "):
        objects.put("k", [b"x"])


def test_list_and_delete_of_more_than_one_page(server: S3Server) -> None:
    """S3 lists and deletes at most a thousand objects in a request."""
    objects = open_objects(server.new_store(), server.options)
    keys = [f"t/{number:04}" for number in range(1_005)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: objects.put(key, [b"x"]), keys))
    pages = list(objects.pages("t"))
    assert [info.key for page in pages for info in page] == keys
    assert len(pages) > 1
    objects.delete_all(keys)
    assert objects.list("") == []
