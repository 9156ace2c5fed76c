"""Kafka's tools on the events of the remote tier: they decode ours, and we print them as they do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from odradek.broker.cli.main import main
from odradek.protocol.records.records import Record, build_batch
from odradek.storage.tiered.metadata import PartitionDeleteState, RemotePartitionDeleteMetadata
from odradek.storage.tiered.metadata_records import encode
from tests.interop.kafka_tools import run_tool
from tests.storage.tiered.remote_segments import (
    DELETED,
    DELETING,
    FINISHED,
    FOO_0,
    becomes,
    segment,
)

COPY = segment(2, 0, 100, [(0, 0), (3, 60)], size=1024)
EVENTS = (
    COPY,
    segment(3, 101, 2**40, [(3, -1)], size=2**31 - 1, txn_index_empty=False),
    becomes(COPY, FINISHED, 456, b"where it is"),
    becomes(COPY, DELETING, 457),
    becomes(COPY, DELETED, 458),
    *(RemotePartitionDeleteMetadata(FOO_0, 7, 789, state) for state in PartitionDeleteState),
)


def test_dump_log_decodes_ours_and_prints_what_we_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """T-50; a segment, its states and the deletion of its partition."""
    directory = tmp_path / "__remote_log_metadata-12"
    directory.mkdir()
    path = directory / "00000000000000000000.log"
    path.write_bytes(bytes(build_batch([Record(-1, 1000, None, encode(each)) for each in EVENTS])))
    run = run_tool("dump-log", "--files", str(path), "--remote-log-metadata-decoder")
    theirs = re.findall(r"payload: (.*)$", run.stdout, re.MULTILINE)
    assert main(["dump", "--remote-log-metadata", str(path)]) == 0
    ours = capsys.readouterr().out.splitlines()
    assert [line.split("value: ", 1)[1] for line in ours] == theirs
    assert len(theirs) == len(EVENTS)
