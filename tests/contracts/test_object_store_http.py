"""Retries of object store requests over real HTTP: status 503, broken connections, and missing responses."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from odradek.seams.object_store import open_objects
from odradek.seams.objects import ObjectDenied, Objects, ObjectsUnavailable, StoreTimeouts

SLOW_DOWN = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>'


class Store(ThreadingHTTPServer):
    """An HTTP server with scripted responses; after them, every response is 200."""

    daemon_threads = True

    def __init__(self, *responses: str) -> None:
        self.responses = list(responses)
        self.asked: list[str] = []
        self.closing = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Store

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        response = self.server.responses.pop(0) if self.server.responses else "ok"
        if response == "hangs":
            self.server.closing.wait()
        elif response == "breaks":
            self.connection.close()
        else:
            status, body = (200, b"data") if response == "ok" else (int(response), SLOW_DOWN)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Last-Modified", "Sat, 01 Aug 2026 00:00:00 GMT")
            self.send_header("ETag", '"1"')
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


Serving = Callable[..., tuple[Objects, Store]]


@pytest.fixture
def serving() -> Iterator[Serving]:
    started: list[Store] = []

    def start(*responses: str, **timeouts: float) -> tuple[Objects, Store]:
        store = Store(*responses)
        started.append(store)
        threading.Thread(target=store.serve_forever, args=(0.01,), daemon=True).start()
        options = {
            "aws_endpoint": f"http://127.0.0.1:{store.server_port}",
            "aws_access_key_id": "a",
            "aws_secret_access_key": "b",
            "aws_region": "r",
        }
        usual = {"first_backoff_seconds": 0.01, "longest_backoff_seconds": 0.02}
        return open_objects("s3://b", options, StoreTimeouts(**(usual | timeouts))), store  # type: ignore[arg-type]

    yield start
    for store in started:
        store.closing.set()
        store.shutdown()
        store.server_close()


def test_throttled_request_is_retried(serving: Serving) -> None:
    objects, store = serving("503", "503", "500")
    assert bytes(objects.get("k")) == b"data"
    assert store.asked == ["GET /b/k"] * 4


def test_retries_are_limited(serving: Serving) -> None:
    objects, store = serving(*["503"] * 9, retries=2)
    with pytest.raises(ObjectsUnavailable, match=r"k: .*(503|SlowDown)"):
        objects.put("k", [b"data"])
    assert store.asked == ["PUT /b/k"] * 3


def test_broken_connection_is_retried(serving: Serving) -> None:
    objects, _ = serving("breaks")
    assert bytes(objects.get("k")) == b"data"


def test_request_without_response_times_out(serving: Serving) -> None:
    objects, _ = serving("hangs", "hangs", request_seconds=0.2, retries=1)
    began = time.monotonic()
    with pytest.raises(ObjectsUnavailable, match="k: "):
        objects.get("k")
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("status", ["401", "403"])
def test_denied_list_raises_object_denied(serving: Serving, status: str) -> None:
    objects, store = serving(*[status] * 3)
    for ask in (objects.list, objects.directories, objects.outside_directories):
        with pytest.raises(ObjectDenied, match=f"^p/: .*{status}"):
            ask("p/")
    assert len(store.asked) == 3


def test_denied_put_is_not_retried(serving: Serving) -> None:
    objects, store = serving("403", "403")
    with pytest.raises(ObjectsUnavailable, match="k: "):
        objects.put("k", [b"data"])
    assert len(store.asked) == 1


@pytest.mark.parametrize("status", ["401", "403"])
def test_every_denied_request_raises_object_denied(serving: Serving, status: str) -> None:
    """Also a list request, which a broker sends at its start."""
    objects, _ = serving(*[status] * 4)
    asked: list[Callable[[], object]] = [
        lambda: objects.list(""),
        lambda: objects.get("k"),
        lambda: objects.put("k", [b"x"]),
        lambda: objects.directories(""),
    ]
    for ask in asked:
        with pytest.raises(ObjectDenied):
            ask()


def test_error_text_is_one_line_with_the_response(serving: Serving) -> None:
    objects, _ = serving("403")
    with pytest.raises(ObjectsUnavailable) as caught:
        objects.put("k", [b"data"])
    assert re.fullmatch(
        r"k: .*PUT http://127.*403 Forbidden: SlowDown: Please reduce your rate", str(caught.value)
    )


@pytest.mark.parametrize("name", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL"])
def test_endpoint_from_environment_may_be_without_tls(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Users of MinIO set such an endpoint."""
    _, store = serving()
    monkeypatch.setenv(name, f"http://127.0.0.1:{store.server_port}")
    others = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_region": "r"}
    assert bytes(open_objects("s3://b", others).get("k")) == b"data"


def test_endpoints_of_other_services_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines may have such variables in their environment."""
    monkeypatch.setenv("AZURE_SERVICEBUS_ENDPOINT", "sb://bus.example")
    monkeypatch.setenv("AWS_REDIS_ENDPOINT", "cache.example:6379")
    open_objects("s3://b", {"aws_region": "eu-north-1"})


def test_invalid_endpoint_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is rejected when the store is opened; its use would end the process."""
    with pytest.raises(
        ValueError, match=r"aws_endpoint is .127\.0\.0\.1:9000.: it must start with"
    ):
        open_objects("s3://b", {"aws_endpoint": "127.0.0.1:9000"})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(ValueError, match="aws_endpoint_url is 'localhost:9000'"):
        open_objects("s3://b")


def test_aws_allow_http_is_an_option_of_the_client() -> None:
    """obstore does not know this option of the object_store crate, and panics."""
    open_objects("s3://bucket/prefix", {"aws_allow_http": "true", "aws_region": "x"})
