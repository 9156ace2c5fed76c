#!/usr/bin/env python3
"""Health check of the image: exit code 0 if the broker responds to an ApiVersions request within 5 s.

It connects to the first listener of the configs that the entry point uses: the first broker listener, or the first
controller listener of a node that is only a controller. A listener with TLS or SASL is healthy if it accepts the
connection.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Mapping

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import entrypoint

TIMEOUT_SECONDS = 5.0
API_VERSIONS = 18
ANY_ADDRESS = ("", "0.0.0.0", "::")
PLAIN = "PLAINTEXT"


def api_versions_request(correlation_id: int) -> bytes:
    """Frame of an ApiVersions request of version 0: a header with a client id, without a body."""
    client = b"odradek-healthcheck"
    header = struct.pack(">hhih", API_VERSIONS, 0, correlation_id, len(client)) + client
    return struct.pack(">i", len(header)) + header


def check(host: str, port: int, *, plain: bool) -> str | None:
    """Return None if the broker at this address is healthy, else the problem."""
    try:
        with socket.create_connection((host, port), TIMEOUT_SECONDS) as connection:
            if not plain:
                return None
            connection.sendall(api_versions_request(7))
            size, correlation_id, error = struct.unpack(">iih", _exactly(connection, 10))
    except OSError as problem:
        return f"{host}:{port}: {problem}"
    if correlation_id != 7 or error != 0 or not 6 <= size < 1 << 20:
        return f"{host}:{port}: the response is not that of a broker"
    return None


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the connection was closed before the response")
        data += more
    return data


def main(environment: Mapping[str, str]) -> int:
    line = entrypoint.command_line(
        environment,
        [],
        hostname=socket.gethostname(),
        config_file=entrypoint.find_config_file(environment),
    )
    config = entrypoint.server_config(line)
    first = (*config.listeners, *config.controller_listeners)[0]
    host = "localhost" if first.host in ANY_ADDRESS else first.host
    problem = check(host, first.port, plain=first.security_protocol == PLAIN)
    if problem is not None:
        sys.stderr.write(f"unhealthy: {problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
