#!/usr/bin/env python3
"""The image's health check: exit 0 if the broker answers an ApiVersions request within 5 s.

It asks on the first listener, found from the same environment as the entry point's: clients', or that of
a node which is a controller and nothing else. A listener that wants TLS or SASL counts as healthy once
it accepts the connection.
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
    """Version 0: a header with a client id, and no body."""
    client = b"odradek-healthcheck"
    header = struct.pack(">hhih", API_VERSIONS, 0, correlation_id, len(client)) + client
    return struct.pack(">i", len(header)) + header


def check(host: str, port: int, *, plain: bool) -> str | None:
    """None if the broker there is well, else what is wrong."""
    try:
        with socket.create_connection((host, port), TIMEOUT_SECONDS) as connection:
            if not plain:
                return None
            connection.sendall(api_versions_request(7))
            size, correlation_id, error = struct.unpack(">iih", _exactly(connection, 10))
    except OSError as problem:
        return f"{host}:{port}: {problem}"
    if correlation_id != 7 or error != 0 or not 6 <= size < 1 << 20:
        return f"{host}:{port} answers, but not as a broker does"
    return None


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the connection was closed before the answer")
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
