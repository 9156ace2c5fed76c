"""How connections end: by the end of what was sent, as Apache Kafka has it, and not by a reset.

A reset is an error to a client, and takes from it what it has not read yet.
"""

from __future__ import annotations

import socket
import struct

from odradek.protocol import apis
from odradek.testing import Broker
from tests.broker.raw_requests import request_header
from tests.broker.test_hostile_input import connect, read_frame


def ask(sock: socket.socket) -> None:
    body = request_header(apis.API_VERSIONS, 0, 7, "polite")
    sock.sendall(struct.pack(">i", len(body)) + body)


def test_of_a_client_that_has_said_all_it_will(kafka_broker: Broker) -> None:
    with connect(kafka_broker) as sock:
        ask(sock)
        assert read_frame(sock)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""


def test_of_one_that_reads_its_answer_after_that(kafka_broker: Broker) -> None:
    with connect(kafka_broker) as sock:
        ask(sock)
        sock.shutdown(socket.SHUT_WR)
        assert read_frame(sock)
        assert sock.recv(1) == b""


def test_of_one_that_is_not_understood(kafka_broker: Broker) -> None:
    with connect(kafka_broker) as sock:
        sock.sendall(struct.pack(">ihhih", 10, 999, 0, 1, -1))
        assert sock.recv(1) == b""


def test_of_one_that_was_silent_for_too_long() -> None:
    with Broker(configs={"connections.max.idle.ms": "200"}) as broker, connect(broker) as sock:
        ask(sock)
        assert read_frame(sock)
        assert sock.recv(1) == b""


def test_of_those_that_are_left_when_the_broker_stops() -> None:
    with Broker() as broker:
        sock = connect(broker)
        ask(sock)
        assert read_frame(sock)
    with sock:
        assert sock.recv(1) == b""
