"""Control connection to the process that runs a cluster: one line of JSON per request and response.

The process listens on a loopback port, and writes the port and a token to a file in the cluster's directory. A request
must contain the token, so that only users who can read the directory can control the cluster.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from odradek.broker.local_cluster.plan import HOST
from odradek.protocol.uuids import uuid_to_text
from odradek.seams import Seams
from odradek.seams.files import Files, Path
from odradek.seams.network import Connection, ConnectionLost, Network

FILE_NAME = "control.json"
LINE_BYTES_MAX = 1 << 20

Values = Mapping[str, Any]
RequestHandler = Callable[[Values], Awaitable[Values]]


class ClusterNotRunning(Exception):
    """No process runs the cluster of this directory."""


class ControlRequestFailed(Exception):
    """The request failed; the text has the reason."""


async def serve(
    seams: Seams,
    directory: Path,
    handle: RequestHandler,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve requests until cancelled. The file exists from the start of this task to its end.

    `handle` raises ControlRequestFailed for a request that it cannot execute.
    """
    [listener] = await seams.network.listen(HOST, 0)
    token = uuid_to_text(seams.entropy.uuid())
    file = directory / FILE_NAME
    where = {"port": listener.address.port, "token": token}
    seams.files.write_new(file, json.dumps(where).encode())
    try:
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                nursery.start_soon(_serve_connection, await listener.accept(), token, handle)
    finally:
        seams.files.remove(file, missing_ok=True)
        with trio.CancelScope(shield=True):
            await listener.aclose()


async def _serve_connection(connection: Connection, token: str, handle: RequestHandler) -> None:
    try:
        request = await _read_line(connection)
        if request.get("token") == token:
            await _write_line(connection, await _handle(handle, request))
    except (ConnectionLost, ValueError):
        pass  # an invalid request, or a lost connection
    finally:
        with trio.CancelScope(shield=True):
            await connection.aclose()


async def _handle(handle: RequestHandler, request: Values) -> Values:
    try:
        return await handle(request)
    except ControlRequestFailed as refused:
        return {"refused": str(refused)}


async def request(
    network: Network, files: Files, directory: Path, values: Values, *, timeout_s: float = math.inf
) -> Values:
    """Send a request to the process that runs the cluster of this directory, and return its response.

    Raises ClusterNotRunning, ControlRequestFailed, and trio.TooSlowError after the timeout, for example
    because the process is suspended, or was killed and another process has its port.
    """
    with trio.fail_after(timeout_s):
        return await _request(network, files, directory, values)


async def _request(network: Network, files: Files, directory: Path, values: Values) -> Values:
    try:
        where = json.loads(files.read(directory / FILE_NAME))
    except FileNotFoundError:
        raise ClusterNotRunning from None
    try:
        connection = await network.connect(HOST, where["port"])
        try:
            await _write_line(connection, {**values, "token": where["token"]})
            response = await _read_line(connection)
        finally:
            with trio.CancelScope(shield=True):
                await connection.aclose()
    except (ConnectionLost, ValueError):  # the process was killed; another one may have its port
        raise ClusterNotRunning from None
    if "refused" in response:
        raise ControlRequestFailed(response["refused"])
    return response


async def _read_line(connection: Connection) -> dict[str, Any]:
    """Read a JSON object. Raises ConnectionLost, and ValueError for invalid input."""
    found, buffer = bytearray(), memoryview(bytearray(64 << 10))
    while not found.endswith(b"\n"):
        size = await connection.receive_into(buffer)
        if size == 0 or len(found) > LINE_BYTES_MAX:
            raise ValueError("the line is incomplete or too long")
        found += buffer[:size]
    try:
        line = json.loads(found)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(line, dict):
        raise ValueError("the line is not an object")
    return line


async def _write_line(connection: Connection, values: Values) -> None:
    await connection.send([json.dumps(values).encode() + b"\n"])
