"""An export's checkpoint is used only by the export that created it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from odradek.pipeline.errors import BadOption, PipelineError
from odradek.pipeline.jobs.decode import Decoding
from odradek.pipeline.jobs.export import ExportJob, _ExportProgress
from odradek.pipeline.jobs.export_batch import BatchWriter
from odradek.pipeline.jobs.export_checkpoint import JOB, Checkpoint
from odradek.pipeline.jobs.export_values import ExportValues
from odradek.pipeline.jobs.hadoop_files import HadoopFiles
from odradek.pipeline.options import parse_options
from odradek.pipeline.stream_reader import StreamReader
from odradek.protocol.topics import TopicPartition
from tests.pipeline.streams import at, first_end
from tests.pipeline.virtual_leader import VirtualLeader
from tests.support.virtual_reading import FULL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = {"kafka.bootstrap.servers": "h:9092", "subscribe": "a"}
JOB_BEGUN = ExportJob(SOURCE, "out", values=ExportValues("json", "a int"))


def registry(url: str, **more: Any) -> ExportValues:
    return ExportValues("registry", decoding=Decoding(url, **more))


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"by": "hour"}, "by"),
        ({"source": {**SOURCE, "subscribe": "b"}}, "subscribe"),
        ({"source": {**SOURCE, "kafka.isolation.level": "read_committed"}}, "isolation"),
        ({"source": {**SOURCE, "includeHeaders": "true"}}, "headers"),
        ({"values": ExportValues("json", "a long")}, "schema"),
    ],
)
def test_options_that_belong_to_the_identity(changed: dict[str, Any], name: str) -> None:
    begun, other = JOB_BEGUN.identity(), replace(JOB_BEGUN, **changed).identity()
    assert {each for each in begun if begun[each] != other[each]} == {name}


def test_assigned_partitions_belong_to_the_identity() -> None:
    begun, other = (
        replace(
            JOB_BEGUN, source={"kafka.bootstrap.servers": "h:9092", "assign": f'{{"a": {each}}}'}
        ).identity()
        for each in ("[0]", "[0, 1]")
    )
    assert begun["assign"] != other["assign"]
    assert begun["subscribe"] == other["subscribe"] == ""
    assert JOB_BEGUN.identity()["assign"] == ""


def test_addresses_do_not_belong_to_the_identity() -> None:
    """Passwords are not stored."""
    begun = replace(JOB_BEGUN, values=registry("http://me:secret@r", subjects=("a-value",)))
    moved = replace(
        begun,
        source={**SOURCE, "kafka.bootstrap.servers": "i:9092", "tiered.url": "s3://b/p"},
        values=registry("http://q", subjects=("a-value",)),
    )
    assert begun.identity() == moved.identity()
    assert "secret" not in str(begun.identity())
    other = replace(begun, values=registry("http://q", subjects=("b-value",)))
    assert begun.identity() != other.identity()


@pytest.mark.parametrize("option", ["onCorruptSegment", "oncorruptsegment"])
def test_on_corrupt_segment_is_refused_for_exports(option: str) -> None:
    with pytest.raises(BadOption, match="--unreadable fail or dead-letters"):
        replace(JOB_BEGUN, source={**SOURCE, option: "skip"}).check()


class MemoryFiles(HadoopFiles):
    """Files in memory, by path."""

    def __init__(self, **texts: str) -> None:
        self.texts = {path.replace("_", "/"): text for path, text in texts.items()}

    def names(self, directory: str) -> list[str]:
        return [path.rpartition("/")[2] for path in self.texts if path.startswith(f"{directory}/")]

    def exists(self, path: str) -> bool:
        return path in self.texts

    def read(self, path: str) -> str:
        return self.texts[path]

    def put(self, path: str, text: str) -> None:
        self.texts[path] = text

    def remove(self, path: str) -> None:
        del self.texts[path]

    def sync(self, path: str) -> None:
        """Does nothing, because the files are in memory."""


def test_offsets_after_an_incomplete_batch_are_removed_first() -> None:
    """Spark continues from the last batch with offsets. A driver that dies during the removal leaves what the next
    driver needs.
    """
    texts = {f"c_{each}": "" for each in ("offsets_0", "commits_0", "offsets_1", "offsets_10")}
    whole = MemoryFiles(**texts, **{"c_odradek-again-0-x": ""})
    removed: list[str] = []

    class FailingRemovals(MemoryFiles):
        def __init__(self, removals: int) -> None:
            self.texts = dict(whole.texts)
            self._removals = removals

        def remove(self, path: str) -> None:
            if len(removed) == self._removals:
                raise OSError
            super().remove(path)
            removed.append(path)

    for removals in range(4):
        removed.clear()
        files = FailingRemovals(removals)
        with suppress(OSError):
            Checkpoint(files, "c").undo_incomplete_commit()
        again = MemoryFiles()
        again.texts = files.texts
        checkpoint = Checkpoint(again, "c")
        checkpoint.undo_incomplete_commit()
        assert (checkpoint.last_started(), checkpoint.last_committed(), checkpoint.pending()) == (
            0,
            None,
            0,
        )
        assert checkpoint.unfinished() == {0, 1, 10}
    assert removed == ["c/offsets/10", "c/offsets/1", "c/commits/0"]


def test_batch_skipped_by_spark_ends_the_run() -> None:
    """A suspended driver commits the batch after this run has determined that it must be repeated, and before Spark
    starts.
    """
    files = MemoryFiles(**{f"c_{each}": "" for each in ("offsets_0", "offsets_1", "commits_0")})
    nothing: Any = None
    writer = BatchWriter(nothing, ExportValues(), nothing, nothing, Checkpoint(files, "c"))
    with pytest.raises(PipelineError, match=r"batch 1 was committed by .* run the export again"):
        writer.write(nothing, 2, {})


def test_complete_batch_is_not_removed() -> None:
    files = MemoryFiles(**{f"c_{each}": "" for each in ("offsets_0", "commits_0", "offsets_1")})
    checkpoint = Checkpoint(files, "c")
    checkpoint.undo_incomplete_commit()
    assert checkpoint.unfinished() == {1}
    files.put("c/commits/1", "")
    files.put("c/odradek-again-0-x", "")  # by a driver that was suspended for long
    assert checkpoint.unfinished() == set()


@pytest.mark.parametrize("has_start", [True, False])
def test_first_batch_starts_at_the_offsets_in_its_end(has_start: bool) -> None:
    """It includes offsets that retention has deleted since. Checkpoints of earlier versions have no start."""
    leader = VirtualLeader((5, 20))
    first = first_end([0], 12) if has_start else at(12)
    checkpoint = Checkpoint(MemoryFiles(c_offsets_0=f"v1\n{{}}\n{json.dumps(first)}"), "c")
    options = parse_options(
        {**SOURCE, "subscribe": "t", "startingoffsets": "earliest"}, streaming=True
    )
    with leader.reachable():
        export_progress = _ExportProgress(options, checkpoint)
    assert export_progress.offsets_of(0) == {TopicPartition("t", 0): (0 if has_start else 5, 12)}


@pytest.mark.parametrize(
    ("begins", "message"),
    [
        ({"startingTimestamp": "5000"}, "t-0 has no record with timestamp 5000 or later"),
        ({"startingOffsets": '{"t":{"0":5}}'}, "t-1"),
    ],
)
def test_start_of_a_started_export_is_not_resolved_again(
    begins: dict[str, str], message: str
) -> None:
    """Its options may be invalid now: retention has deleted the last record with this timestamp, or the topic has
    another partition."""
    leader = VirtualLeader((5, 20), (0, 3))
    options = parse_options({**SOURCE, "subscribe": "t", **begins}, streaming=True)
    done = {f"c_{each}": f"v1\n{{}}\n{json.dumps(at(12))}" for each in ("offsets_0", "commits_0")}
    with leader.reachable():
        with pytest.raises(BadOption, match=message):
            _ExportProgress(options, Checkpoint(MemoryFiles(), "c"))
        export_progress = _ExportProgress(options, Checkpoint(MemoryFiles(**done), "c"))
    assert export_progress.progress(0.0, 100).total == 20 - 12 + 3


@pytest.mark.parametrize(
    "begins", [{"startingTimestamp": "5000"}, {"startingOffsets": '{"t":{"0":5}}'}]
)
def test_repeated_first_batch_starts_at_the_same_offsets(begins: dict[str, str]) -> None:
    """Spark requests the initial offsets until the batch is committed."""
    leader = VirtualLeader((5, 20), (0, 3))
    given = {**SOURCE, "subscribe": "t", **begins}
    begun = Checkpoint(MemoryFiles(c_offsets_0=f"v1\n{{}}\n{json.dumps(first_end([7], 12))}"), "c")
    with leader.reachable():
        export_progress = _ExportProgress(parse_options(given, streaming=True), begun)
        options = parse_options(export_progress.options(given), streaming=True)
        assert StreamReader(options, FULL).initialOffset() == at(7, 0)
    assert export_progress.progress(0.0, 100).total == 20 - 7 + 3


def test_dead_letters_cannot_move_during_an_unfinished_batch() -> None:
    texts = {f"c_{each}": "" for each in ("offsets_0", "commits_0")}
    checkpoint = Checkpoint(files := MemoryFiles(**texts), "c")
    checkpoint.check_dead_letters_path("A")
    files.put("c/offsets/1", "")
    checkpoint.check_dead_letters_path("A")
    with pytest.raises(BadOption, match="to A: run it once with that location, then with B"):
        checkpoint.check_dead_letters_path("B")
    files.put("c/commits/1", "")
    checkpoint.check_dead_letters_path("B")
    assert files.read("c/odradek-dead-letters") == "B"


def test_dead_letters_of_an_earlier_version_may_move() -> None:
    """Earlier versions did not store the location."""
    checkpoint = Checkpoint(MemoryFiles(c_offsets_0=""), "c")
    checkpoint.check_dead_letters_path("A")


@pytest.mark.interop
@pytest.mark.slow
def test_incomplete_identity_file_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(HadoopFiles(spark), str(tmp_path))
    (tmp_path / JOB).write_text("")
    with pytest.raises(BadOption, match=f"{JOB} is incomplete: remove it"):
        checkpoint.check_identity({"by": "date"})
    (tmp_path / JOB).unlink()
    checkpoint.check_identity({"by": "date", "assign": ""})
    checkpoint.check_identity({"by": "date", "assign": ""})
    assert {each.name for each in tmp_path.glob("[!.]*")} == {JOB}
    with pytest.raises(BadOption, match="with by date, not none: use the same by"):
        checkpoint.check_identity({"by": "none"})
    with pytest.raises(BadOption, match="with assign unset, not a"):
        checkpoint.check_identity({"by": "date", "assign": "a"})
