"""Tests of closing connections with FIN after the sent data, as in Apache Kafka, not with a reset. A reset is
an error to a client and discards data that it has not read."""

from __future__ import annotations

import socket
import struct

from odradek.protocol import apis
from odradek.testing import Broker
from tests.support.raw_requests import connect, read_frame, request_header


def ask(sock: socket.socket) -> None:
    body = request_header(apis.API_VERSIONS, 0, 7, "polite")
    sock.sendall(struct.pack(">i", len(body)) + body)


def test_client_that_closes_its_side_gets_end_of_stream(kafka_broker: Broker) -> None:
    with connect(kafka_broker) as sock:
        ask(sock)
        assert read_frame(sock)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""


def test_client_that_closes_its_side_gets_its_response(kafka_broker: Broker) -> None:
    with connect(kafka_broker) as sock:
        ask(sock)
        sock.shutdown(socket.SHUT_WR)
        assert read_frame(sock)
        assert sock.recv(1) == b""


def test_invalid_request_ends_the_connection_cleanly(kafka_broker: Broker) -> None:
    with connect(kafka_broker) as sock:
        sock.sendall(struct.pack(">ihhih", 10, 999, 0, 1, -1))
        assert sock.recv(1) == b""


def test_idle_connection_is_closed_cleanly() -> None:
    with Broker(configs={"connections.max.idle.ms": "200"}) as broker, connect(broker) as sock:
        ask(sock)
        assert read_frame(sock)
        assert sock.recv(1) == b""


def test_remaining_connections_are_closed_at_shutdown() -> None:
    with Broker() as broker:
        sock = connect(broker)
        ask(sock)
        assert read_frame(sock)
    with sock:
        assert sock.recv(1) == b""
