"""Schemas from a schema registry's REST API or a directory."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from odradek.pipeline.schemas.column_types import BadSchema
from odradek.pipeline.schemas.registry import (
    AVRO,
    JSON,
    PROTOBUF,
    Registry,
    RegistryUnavailable,
    Schema,
    load_schemas,
)

RESPONSES: dict[str, Any] = {
    "/subjects/flights%2Fvalue/versions": [1, 3],
    "/subjects/flights%2Fvalue/versions/1": {"id": 7, "version": 1, "schema": '"string"'},
    "/subjects/flights%2Fvalue/versions/3": {
        "id": 9,
        "version": 3,
        "schema": "flight",
        "schemaType": "PROTOBUF",
        "references": [
            {"name": "a.proto", "subject": "a", "version": 2},
            {"name": "b.proto", "subject": "b", "version": 1},
        ],
    },
    "/subjects/a/versions/2": {
        "schema": "A",
        "references": [{"name": "b.proto", "subject": "b", "version": 1}],
    },
    "/subjects/b/versions/1": {"schema": "B"},
    "/schemas/ids/12": {"schema": "{}", "schemaType": "JSON"},
    "/subjects/odd/versions": {"status": "ok"},
    "/schemas/ids/13": {"status": "ok"},
    "/schemas/ids/14": ["ok"],
    "/subjects/nested/versions": [[1]],
    "/subjects/texts/versions": [1],
    "/subjects/texts/versions/1": {"id": "7", "version": 1, "schema": '"string"'},
    "/schemas/ids/15": {"schema": {"type": "string"}},
}


@contextmanager
def registry(asked: list[str] | None = None, fails: list[int] | None = None) -> Iterator[str]:
    """Registry with a password; returns its URL. `asked` gets the requested paths; `fails` are the statuses of the
    first responses.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "")
            response = RESPONSES.get(self.path.partition("?")[0])
            status = 404 if response is None else 200
            if asked is not None:
                asked.append(self.path.partition("?")[0])
            if fails:
                status = fails.pop(0)
            elif given != "Basic " + b64encode(b"reader:pass:word@").decode():
                status = 401
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(response).encode())

        def log_message(self, *args: object) -> None:
            """Suppress the server's log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_all_versions_of_a_subject_have_their_references() -> None:
    with registry() as address:
        found = load_schemas(f"http://reader:pass%3Aword%40@{address}/", ["flights/value"], [12, 7])
    references = (("b.proto", "B"), ("a.proto", "A"))
    assert found == [
        Schema(7, AVRO, '"string"', origin="version 1 of flights/value"),
        Schema(9, PROTOBUF, "flight", references, "version 3 of flights/value"),
        Schema(12, JSON, "{}"),
    ]


AS_READER = "http://reader:pass%3Aword%40@"


def test_busy_registry_is_retried() -> None:
    pauses: list[float] = []
    with registry(fails=[503, 429]) as address:
        found = Registry(AS_READER + address, pauses.append).schema(12)
        assert (found.id, pauses) == (12, [0.5, 1.0])
    with registry(fails=[503] * 5) as address:
        with pytest.raises(RegistryUnavailable, match="503"):
            Registry(AS_READER + address, pauses.append).schema(12)
        assert len(pauses) == 2 + 4
    for lasting, address in ((True, "[h"), (True, "h:port"), (False, "127.0.0.1:1")):
        pauses.clear()
        with pytest.raises(RegistryUnavailable):
            Registry(f"http://{address}/", pauses.append).schema(12)
        assert len(pauses) == (0 if lasting else 4)


def test_request_that_times_out_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odradek.pipeline.schemas.registry.TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        pauses: list[float] = []
        with pytest.raises(
            RegistryUnavailable,
            match=f"{address}.*timed out: run it again when the registry responds",
        ):
            Registry(address, pauses.append).schema(12)
        assert pauses == []


def test_loaded_schemas_are_not_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except for the list of versions; and all versions after some were permanently deleted."""
    asked: list[str] = []
    path = "/subjects/flights%2Fvalue/versions"
    with registry(asked) as address:
        url = AS_READER + address
        first = load_schemas(url, ["flights/value"], [12])
        assert len(asked) == len(set(asked)) == 6
        assert load_schemas(url, ["flights/value"], [12]) == first
        assert asked[6:] == [path]
        monkeypatch.setitem(RESPONSES, path, [1, 3, 4])
        monkeypatch.setitem(RESPONSES, f"{path}/4", {"id": 11, "version": 4, "schema": '"int"'})
        assert [each.id for each in load_schemas(url, ["flights/value"])] == [7, 9, 11]
        assert asked[7:] == [path, f"{path}/4"]
        monkeypatch.setitem(RESPONSES, path, [1])
        monkeypatch.setitem(RESPONSES, f"{path}/1", {"id": 12, "version": 1, "schema": '"long"'})
        assert [each.id for each in load_schemas(url, ["flights/value"])] == [12]


def test_refused_request_is_reported_with_its_url() -> None:
    with registry() as address:
        with pytest.raises(BadSchema, match=f"{address}/subjects/nothing/versions.*404.*no such"):
            load_schemas(f"http://reader:pass%3Aword%40@{address}", ["nothing"])
        with pytest.raises(RegistryUnavailable, match="401") as caught:
            load_schemas(f"http://reader:wrong@{address}", ["nothing"])
        assert "wrong" not in str(caught.value)
        assert "user:password@" in str(caught.value)
    with pytest.raises(RegistryUnavailable, match=address):
        Registry(f"http://{address}", lambda seconds: None).versions("nothing")
    for url in ("http://me:secret@[h/", "http://me:secret@h:port/", "htp://me:secret@h/"):
        with pytest.raises(RegistryUnavailable) as caught:
            load_schemas(url, ["nothing"])
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("subjects", "ids"),
    [
        (["odd"], []),
        (["nested"], []),
        (["texts"], []),
        ([], [13]),
        ([], [14]),
        ([], [15]),
    ],
)
def test_invalid_response_is_reported_with_its_url(subjects: list[str], ids: list[int]) -> None:
    with registry() as address, pytest.raises(RegistryUnavailable) as caught:
        load_schemas(f"http://reader:pass%3Aword%40@{address}", subjects, ids)
    assert f"http://{address}/" in str(caught.value)
    assert "the response is not that of a schema registry" in str(caught.value)


def test_schemas_of_a_directory(tmp_path: Path) -> None:
    with pytest.raises(BadSchema, match=r"has no file ID\.avsc"):
        load_schemas(str(tmp_path), [])
    (tmp_path / "7.avsc").write_text('"string"')
    (tmp_path / "12.json").write_text("{}")
    (tmp_path / "9.proto").write_text("flight")
    (tmp_path / "money.proto").write_text("money")
    (tmp_path / "notes.txt").write_text("")
    found = load_schemas(str(tmp_path), ["any"])
    assert found == [
        Schema(7, AVRO, '"string"', origin=str(tmp_path / "7.avsc")),
        Schema(9, PROTOBUF, "flight", (("money.proto", "money"),), str(tmp_path / "9.proto")),
        Schema(12, JSON, "{}", origin=str(tmp_path / "12.json")),
    ]
    assert load_schemas(str(tmp_path), [], [12]) == found[2:]
    with pytest.raises(RegistryUnavailable, match="nowhere"):
        load_schemas(str(tmp_path / "nowhere"), [])
