"""How one process asks another, which runs a cluster, to do something: a line of JSON each way.

The running one listens on a port of the loopback and writes it to a file among the cluster's data,
with a token that whoever asks must know: who can read the data may do what its owner may.
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
Answerer = Callable[[Values], Awaitable[Values]]


class NobodyRuns(Exception):
    """No process runs the cluster of this directory."""


class Refused(Exception):
    """What was asked can't be done; the text says why."""


async def serve(
    seams: Seams,
    directory: Path,
    respond: Answerer,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer until cancelled; the file is there once this is started, and gone at the end.

    `respond` raises Refused for what can't be done.
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
                nursery.start_soon(_respond_one, await listener.accept(), token, respond)
    finally:
        seams.files.remove(file, missing_ok=True)
        with trio.CancelScope(shield=True):
            await listener.aclose()


async def _respond_one(connection: Connection, token: str, respond: Answerer) -> None:
    try:
        asked = await _read_line(connection)
        if asked.get("token") == token:
            await _write_line(connection, await _responded(respond, asked))
    except (ConnectionLost, ValueError):
        pass  # whoever it was does not speak to us, or not any more
    finally:
        with trio.CancelScope(shield=True):
            await connection.aclose()


async def _responded(respond: Answerer, asked: Values) -> Values:
    try:
        return await respond(asked)
    except Refused as refused:
        return {"refused": str(refused)}


async def ask(
    network: Network, files: Files, directory: Path, values: Values, *, timeout_s: float = math.inf
) -> Values:
    """What the process that runs the cluster of this directory answers. Raises NobodyRuns, Refused, and
    trio.TooSlowError past the time-out: it stands still, or was killed, and its port is somebody else's."""
    with trio.fail_after(timeout_s):
        return await _ask(network, files, directory, values)


async def _ask(network: Network, files: Files, directory: Path, values: Values) -> Values:
    try:
        where = json.loads(files.read(directory / FILE_NAME))
    except FileNotFoundError:
        raise NobodyRuns from None
    try:
        connection = await network.connect(HOST, where["port"])
        try:
            await _write_line(connection, {**values, "token": where["token"]})
            respond = await _read_line(connection)
        finally:
            with trio.CancelScope(shield=True):
                await connection.aclose()
    except (ConnectionLost, ValueError):  # it was killed, and another may have its port
        raise NobodyRuns from None
    if "refused" in respond:
        raise Refused(respond["refused"])
    return respond


async def _read_line(connection: Connection) -> dict[str, Any]:
    """Raises ConnectionLost, and ValueError for what is no line of ours."""
    found, room = bytearray(), memoryview(bytearray(64 << 10))
    while not found.endswith(b"\n"):
        size = await connection.receive_into(room)
        if size == 0 or len(found) > LINE_BYTES_MAX:
            raise ValueError("no line")
        found += room[:size]
    try:
        line = json.loads(found)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(line, dict):
        raise ValueError("no object")
    return line


async def _write_line(connection: Connection, values: Values) -> None:
    await connection.send([json.dumps(values).encode() + b"\n"])
