"""What `odradek serve` imports before its first answer: nothing that it does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = {
    "obstore", "pyarrow", "numpy", "sqlite3", "asyncio", "lz4", "snappy", "cramjam", "zstandard",
    "gzip", "concurrent.futures.process", "multiprocessing", "pytest",
    "hypothesis", "importlib.metadata", "email", "decimal",
}  # fmt: skip

# What the first client that needs it loads, or the warm-up after readiness
LATER = {
    "odradek.broker.apis.produce", "odradek.broker.apis.groups", "odradek.broker.groups.coordinator",
    "odradek.broker.cli.dump", "odradek.broker.cli.topics", "odradek.client.connection",
    "odradek.protocol.schemas.group_records", "odradek.protocol.schemas.security_records",
    "odradek.replication.controller.topics",
}  # fmt: skip

SCRIPT = """
import sys, trio
from odradek.broker.cli import main, serve
from odradek.broker.config.server_config import ServerConfig
from odradek.broker.node import Broker
from odradek.seams.real import real_seams

async def start():
    config = ServerConfig.from_properties(
        {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": sys.argv[1]}, test_node=True
    )
    broker = Broker(real_seams(), config)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        print(*sorted(sys.modules), sep="\\n")
        broker.stop()

trio.run(start)
"""


def test_a_started_broker_has_imported_nothing_heavy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.split())
    assert "odradek.broker.node" in imported
    assert imported & HEAVY == set()
    assert imported & LATER == set()
    schemas = [name for name in imported if name.startswith("kio.schema.") and ".v" in name]
    assert len(schemas) < 20, sorted(schemas)
