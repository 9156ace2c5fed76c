"""Codecs and schemas are not loaded before their first use, and kio does not load hypothesis."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import odradek.protocol.messages, odradek.protocol.produce_request_reader, odradek.protocol.fetch_response_writer
import odradek.protocol.records.records, odradek.protocol.records.control
import odradek.protocol.schemas.serde, odradek.protocol.schemas.metadata_records
early = {name for name in sys.modules}
for name in ("hypothesis", "lz4", "snappy", "cramjam", "zstandard", "gzip", "kio.serial",
             "kio.schema.metadata", "odradek.protocol.schemas.topic_records", "sqlite3"):
    assert name not in early, name
from odradek.protocol.messages import warm
from odradek.protocol.schemas.metadata_records import TopicRecord
warm(18, 4)
assert "kio.schema.api_versions.v4.response" in sys.modules
assert "kio.schema.api_versions.v3" not in sys.modules
assert "odradek.protocol.schemas.security_records" not in sys.modules
assert "hypothesis" not in sys.modules
import hypothesis.strategies
"""


def test_codecs_and_schemas_are_loaded_on_first_use() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
