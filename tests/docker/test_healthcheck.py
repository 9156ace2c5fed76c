"""The health check against valid responses, invalid responses, closed connections and a refused
connection.
"""

from __future__ import annotations

import importlib.util
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("healthcheck", ROOT / "docker" / "healthcheck.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


healthcheck = _load()

GOOD = struct.pack(">iihi", 10, 7, 0, 0)


@contextmanager
def responding(respond: Callable[[bytes], bytes]) -> Iterator[int]:
    """A server that reads one request and sends the result of `respond`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(respond(connection.recv(4096)))

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_responding_broker_is_healthy() -> None:
    asked: list[bytes] = []

    def respond(request: bytes) -> bytes:
        asked.append(request)
        return GOOD

    with responding(respond) as port:
        assert healthcheck.check("127.0.0.1", port, plain=True) is None
    size, api, version, correlation = struct.unpack_from(">ihhi", asked[0])
    assert (size, api, version, correlation) == (len(asked[0]) - 4, 18, 0, 7)


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        GOOD[:7],
        struct.pack(">iihi", 10, 8, 0, 0),
        struct.pack(">iihi", 10, 7, 35, 0),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_invalid_responses_are_unhealthy(reply: bytes) -> None:
    with responding(lambda request: reply) as port:
        assert healthcheck.check("127.0.0.1", port, plain=True) is not None


def test_refused_connection_is_unhealthy(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert healthcheck.main({"KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}"}) == 1
    assert f"unhealthy: 127.0.0.1:{port}" in capsys.readouterr().err


def test_health_check_uses_listener_of_entry_point() -> None:
    with responding(lambda request: GOOD) as port:
        assert (
            healthcheck.main(
                {
                    "KAFKA_LISTENERS": f"A://127.0.0.1:{port}",
                    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "A:PLAINTEXT,CONTROLLER:PLAINTEXT",
                    "KAFKA_INTER_BROKER_LISTENER_NAME": "A",
                }
            )
            == 0
        )


def test_controller_is_checked_at_controller_listener() -> None:
    with responding(lambda request: GOOD) as port:
        assert (
            healthcheck.main(
                {
                    "KAFKA_PROCESS_ROLES": "controller",
                    "KAFKA_NODE_ID": "1",
                    "KAFKA_LISTENERS": f"CONTROLLER://127.0.0.1:{port}",
                    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
                    "KAFKA_CONTROLLER_QUORUM_VOTERS": f"1@127.0.0.1:{port}",
                }
            )
            == 0
        )


def test_accepting_tls_listener_is_healthy() -> None:
    with responding(lambda request: b"") as port:
        assert healthcheck.check("127.0.0.1", port, plain=False) is None
