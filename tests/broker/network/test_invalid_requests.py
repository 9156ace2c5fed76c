"""Invalid requests close their connection and affect no other connection."""

from __future__ import annotations

import logging
import random
import socket
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odradek.protocol import apis
from odradek.protocol.apis import Api
from odradek.protocol.framing import request_header
from odradek.testing import Broker
from tests.support.brokers import broker_fixture
from tests.support.raw_requests import connect, read_frame
from tests.support.sample_requests import sample_request

broker = broker_fixture(topics={"t": 2}, configs={"socket.request.max.bytes": "1000000"})


def is_served(broker: Broker) -> bool:
    """Request the supported versions with another client."""
    with connect(broker) as sock:
        body = request_header(apis.API_VERSIONS, 0, 99, "polite")
        sock.sendall(struct.pack(">i", len(body)) + body)
        response = read_frame(sock)
        return response[:6] == struct.pack(">ih", 99, 0)


def send_and_hang_up(broker: Broker, data: bytes) -> None:
    with connect(broker) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except OSError:  # the broker has closed the connection, as expected
            pass


HOSTILE = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@HOSTILE
@given(data=st.binary(max_size=3000))
def test_random_bytes_affect_no_other_connection(broker: Broker, data: bytes) -> None:
    send_and_hang_up(broker, data)
    assert is_served(broker)


@HOSTILE
@given(
    key=st.sampled_from(sorted(apis.APIS | apis.PRIVATE_APIS)),
    version=st.integers(-2, 20),
    body=st.binary(max_size=400),
)
def test_valid_header_with_invalid_body_closes_the_connection(
    broker: Broker, key: int, version: int, body: bytes
) -> None:
    head = struct.pack(">hhih", key, version, 7, -1)
    for tags in (b"", b"\0"):
        request = head + tags + body
        send_and_hang_up(broker, struct.pack(">i", len(request)) + request)
    assert is_served(broker)


def every_request() -> list[tuple[Api, int]]:
    served = (*apis.APIS.values(), *apis.PRIVATE_APIS.values())
    return [(api, version) for api in served for version in api.versions]


@pytest.mark.parametrize("seed", range(4))
def test_mutated_requests_affect_no_other_connection(
    broker: Broker, seed: int, sample_requests: list[bytes]
) -> None:
    source = random.Random(seed)
    for request in sample_requests:
        changed = bytearray(request)
        for _ in range(source.randrange(1, 6)):
            changed[source.randrange(len(changed))] = source.randrange(256)
        cut = changed[: source.randrange(len(changed) + 1)] if source.random() < 0.3 else changed
        send_and_hang_up(broker, struct.pack(">i", len(cut)) + bytes(cut))
    assert is_served(broker)


@pytest.mark.parametrize("size", [-1, -(2**31), 1_000_001, 2**31 - 1, 0x47455420])
def test_invalid_frame_size_closes_the_connection(
    broker: Broker, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), connect(broker) as sock:
        sock.sendall(struct.pack(">i", size))
        assert read_frame(sock) == b""
    assert is_served(broker)
    lines = [record for record in caplog.records if "the limit is 1000000" in record.getMessage()]
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("header", "body"), [(b"\0", b"\x80"), (b"\x80", b"")], ids=["body", "header"]
)
def test_truncated_request_is_logged_with_its_api_and_version(
    broker: Broker, caplog: pytest.LogCaptureFixture, header: bytes, body: bytes
) -> None:
    request = struct.pack(">hhih", apis.METADATA.key, 12, 7, -1) + header + body
    with caplog.at_level(logging.WARNING):
        send_and_hang_up(broker, struct.pack(">i", len(request)) + request)
        assert is_served(broker)
    (line,) = [each.getMessage() for each in caplog.records if "varint" in each.getMessage()]
    assert "Metadata version 12: cut short in a varint" in line


def test_incomplete_frame_does_not_block_others(broker: Broker) -> None:
    with connect(broker) as stuck:
        stuck.sendall(struct.pack(">i", 900_000) + b"\0" * 10)
        assert is_served(broker)


def test_unknown_api_closes_the_connection_with_one_log_line(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), connect(broker) as sock:
        sock.sendall(struct.pack(">ihhih", 10, 999, 0, 1, -1))
        assert read_frame(sock) == b""
    assert [record for record in caplog.records if "999" in record.getMessage()]


@pytest.mark.parametrize("api", apis.PRIVATE_APIS.values(), ids=lambda api: api.name)
def test_unsupported_version_of_private_api_closes_the_connection(broker: Broker, api: Api) -> None:
    with connect(broker) as sock:
        request = struct.pack(">hhih", api.key, 1, 7, -1) + bytes(40)
        sock.sendall(struct.pack(">i", len(request)) + request)
        assert read_frame(sock) == b""
    assert is_served(broker)


@pytest.fixture
def sample_requests() -> list[bytes]:
    """A valid request of each API and version, with default and with random fields."""
    source = random.Random(1)
    return [
        request_header(api, version, 1, "fuzz") + sample_request(api.key, version, source)
        for api, version in every_request()
    ]
