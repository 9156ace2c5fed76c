"""Kafka's codec in a JVM, and the test vectors that it wrote.

`python -m tests.protocol.kafka_codec` rewrites `kafka_vectors.json`. It has Kafka's bytes and JSON of a random record
for every stored record and version, and a batch per codec.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from odradek.protocol.codec.structure import record_structure
from odradek.protocol.schemas import control_records, serde
from tests.protocol.generated import draw_entity
from tests.support.kafka_dist import kafka_dist

HERE = Path(__file__).parent
VECTORS = HERE / "kafka_vectors.json"

PACKAGES = {
    "metadata": "org.apache.kafka.common.metadata",
    "remote_log": "org.apache.kafka.server.log.remote.metadata.storage.generated",
    "group": "org.apache.kafka.coordinator.group.generated",
    "transaction": "org.apache.kafka.coordinator.transaction.generated",
    "control": "org.apache.kafka.common.message",
}
CONTROL = [
    control_records.EndTxnMarker,
    control_records.LeaderChangeMessage,
    control_records.SnapshotHeaderRecord,
    control_records.SnapshotFooterRecord,
    control_records.KRaftVersionRecord,
    control_records.VotersRecord,
]


def stored_types() -> Iterator[tuple[str, type[Any], int]]:
    """Yield every stored record and version with the name of Kafka's class. Kafka 4.3 has no diskless topics."""
    families = {**serde.all_record_types(), "control": CONTROL}
    del families["diskless"]
    for family, types in families.items():
        for record_type in types:
            for version in record_type.__versions__:
                yield f"{PACKAGES[family]}.{record_type.__name__}", record_type, version


class KafkaCodec:
    """Client of `java/CodecOracle.java`, which reads one request per line."""

    def __enter__(self) -> KafkaCodec:
        self._process = subprocess.Popen(
            kafka_dist().command("CodecOracle"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def ask(self, *words: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().rstrip("\n")

    def message(self, java_class: str, version: int, raw: bytes) -> tuple[bytes, Any]:
        """Let Kafka read a message; return the bytes that it writes for it, and its JSON."""
        response = self.ask("message", java_class, str(version), raw.hex())
        written, _, shown = response.partition(" ")
        assert written != "error", f"{java_class} v{version}: {shown}"
        return bytes.fromhex(written), json.loads(shown)

    def records(self, raw: bytes) -> Any:
        response = self.ask("records", raw.hex())
        assert not response.startswith("error"), response
        return json.loads(response)

    def build(self, codec: str, values: list[bytes]) -> bytes:
        response = self.ask("build", codec, *(value.hex() for value in values))
        assert not response.startswith("error"), response
        return bytes.fromhex(response)


def write_vectors() -> None:
    with KafkaCodec() as kafka:
        records = []
        for java_class, record_type, version in stored_types():
            drawn = draw_entity(record_structure(record_type, version), random.Random(version + 7))
            written, shown = kafka.message(java_class, version, serde.encode(drawn, version))
            records.append(
                {
                    "name": record_type.__name__,
                    "version": version,
                    "bytes": written.hex(),
                    "json": shown,
                }
            )
        batches = {
            codec: kafka.build(codec, [b"", b"value", b"x" * 200]).hex()
            for codec in ("none", "gzip", "snappy", "lz4", "zstd")
        }
    lines = ",\n  ".join(json.dumps(record, ensure_ascii=False) for record in records)
    VECTORS.write_text(
        f'{{"batches": {json.dumps(batches, indent=1)},\n "records": [\n  {lines}\n]}}\n'
    )


if __name__ == "__main__":
    write_vectors()
