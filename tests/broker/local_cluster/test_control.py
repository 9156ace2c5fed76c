"""Tests of the control connection of a local cluster, with invalid requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path as LocalPath
from typing import Any

import pytest

from odradek.broker.local_cluster import control
from odradek.seams.files import Path
from odradek.seams.real import real_seams

RESPONSE = {"how": "well"}


async def respond(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    return RESPONSE


@pytest.mark.parametrize(
    "line", [b"\n", b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"{}\n", b"\xff\n", b"[" * 200_000 + b"\n"]
)
async def test_invalid_control_request_gets_no_response(
    line: bytes, tmp_path: LocalPath, nursery: Any
) -> None:
    seams, directory = real_seams(), Path(tmp_path)
    await nursery.start(control.serve, seams, directory, respond)
    port = json.loads(seams.files.read(directory / control.FILE_NAME))["port"]
    connection = await seams.network.connect("127.0.0.1", port)
    await connection.send([line])
    assert await connection.receive_into(memoryview(bytearray(1))) == 0
    assert await control.request(seams.network, seams.files, directory, {}) == RESPONSE
