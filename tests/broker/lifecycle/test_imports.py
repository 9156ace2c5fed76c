"""Modules and classes that `odradek serve` loads before its first Metadata response."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = {
    "obstore", "pyarrow", "numpy", "sqlite3", "asyncio", "lz4", "snappy", "cramjam", "zstandard",
    "gzip", "concurrent.futures.process", "multiprocessing", "pytest",
    "hypothesis", "importlib.metadata", "email", "decimal",
}  # fmt: skip

# Loaded by the first client that needs it, or by the warm-up
LATER = {
    "odradek.broker.apis.produce", "odradek.broker.apis.groups", "odradek.broker.groups.coordinator",
    "odradek.cli.dump", "odradek.cli.topics", "odradek.client.connection",
    "odradek.protocol.schemas.group_records", "odradek.protocol.schemas.security_records",
    "odradek.replication.controller.topics", "odradek.broker.replicas.topic_creation",
    "odradek.storage.moving.replica_swap", "encodings.idna",
}  # fmt: skip

SCRIPT = """
import struct, sys

def audit(event, args):  # a class whose methods are compiled, as by `dataclass`
    # Python 3.13 compiles the enclosing function even without methods.
    is_compiled = event == "compile" and str(args[0]).count("def ") > 1
    frame = sys._getframe(1) if is_compiled else None
    while frame is not None:
        if frame.f_code.co_name == "_process_class":
            cls = frame.f_locals["cls"]
            if cls.__module__.startswith("odradek."):
                compiled.add(cls.__qualname__)
        frame = frame.f_back

compiled = set()
sys.addaudithook(audit)

import trio
from odradek.cli import main, serve
from odradek.broker.config.server_config import ServerConfig
from odradek.broker.node import Node
from odradek.seams.real import real_seams

async def start():
    config = ServerConfig.from_properties(
        {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": sys.argv[1]}, test_node=True
    )
    broker = Node(real_seams(), config)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        address = broker.endpoints[0].address
        client = await trio.open_tcp_stream(address.host.encode(), address.port)
        await client.send_all(struct.pack(">ihhihi", 14, 3, 1, 7, -1, -1))
        response = await client.receive_some()
        assert struct.unpack_from(">ii", response) == (len(response) - 4, 7)
        print("compiled", *sorted(compiled))
        print(*sorted(sys.modules), sep="\\n")
        broker.stop()

trio.run(start)
"""


def test_serving_broker_loads_few_modules(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True
    )
    compiled, *modules = done.stdout.splitlines()
    assert compiled.split()[1:] == []
    imported = set(modules)
    assert "odradek.broker.apis.metadata" in imported
    assert imported & HEAVY == set()
    assert imported & LATER == set()
    schemas = [name for name in imported if name.startswith("kio.schema.") and ".v" in name]
    assert len(schemas) < 12, sorted(schemas)
    assert len(imported) < 530, len(imported)
