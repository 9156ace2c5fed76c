"""A checkpoint goes on with the export that it is of, and with no other."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from odradek.pipeline.brokers import TopicPartition
from odradek.pipeline.errors import BadOption, PipelineError
from odradek.pipeline.jobs.decode import Decoding
from odradek.pipeline.jobs.export import ExportJob, _ExportProgress
from odradek.pipeline.jobs.export_batch import BatchWriter
from odradek.pipeline.jobs.export_checkpoint import JOB, Checkpoint
from odradek.pipeline.jobs.export_values import ExportValues
from odradek.pipeline.jobs.hadoop_files import HadoopFiles
from odradek.pipeline.options import parse_options
from odradek.pipeline.stream_reader import StreamReader
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
def test_what_may_not_change(changed: dict[str, Any], name: str) -> None:
    begun, other = JOB_BEGUN.identity(), replace(JOB_BEGUN, **changed).identity()
    assert {each for each in begun if begun[each] != other[each]} == {name}


def test_which_partitions_may_not_change() -> None:
    begun, other = (
        replace(
            JOB_BEGUN, source={"kafka.bootstrap.servers": "h:9092", "assign": f'{{"a": {each}}}'}
        ).identity()
        for each in ("[0]", "[0, 1]")
    )
    assert begun["assign"] != other["assign"]
    assert begun["subscribe"] == other["subscribe"] == ""
    assert JOB_BEGUN.identity()["assign"] == ""


def test_what_may_move() -> None:
    """And no password is in it."""
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
def test_an_export_leaves_nothing_out_without_a_word(option: str) -> None:
    with pytest.raises(BadOption, match="--unreadable fail or dead-letters"):
        replace(JOB_BEGUN, source={**SOURCE, option: "skip"}).check()


class Kept(HadoopFiles):
    """Files by path."""

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
        """There is no disk."""


def test_what_was_begun_after_a_batch_that_is_not_done_is_taken_back_first() -> None:
    """Spark goes on from the last that was begun. Whoever dies on the way has taken back nothing that the next one
    needs to see."""
    texts = {f"c_{each}": "" for each in ("offsets_0", "commits_0", "offsets_1", "offsets_10")}
    whole = Kept(**texts, **{"c_odradek-again-0-x": ""})
    removed: list[str] = []

    class Dying(Kept):
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
        files = Dying(removals)
        with suppress(OSError):
            Checkpoint(files, "c").undo_incomplete_commit()
        again = Kept()
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


def test_a_batch_that_spark_passes_over_ends_the_run() -> None:
    """Who came back after it was looked what is to be made again, and before Spark did."""
    files = Kept(**{f"c_{each}": "" for each in ("offsets_0", "offsets_1", "commits_0")})
    nothing: Any = None
    writer = BatchWriter(nothing, ExportValues(), nothing, nothing, Checkpoint(files, "c"))
    with pytest.raises(PipelineError, match=r"batch 1 was committed by .* run the export again"):
        writer.write(nothing, 2, {})


def test_a_batch_that_is_done_is_not_taken_back() -> None:
    files = Kept(**{f"c_{each}": "" for each in ("offsets_0", "commits_0", "offsets_1")})
    checkpoint = Checkpoint(files, "c")
    checkpoint.undo_incomplete_commit()
    assert checkpoint.unfinished() == {1}
    files.put("c/commits/1", "")
    files.put("c/odradek-again-0-x", "")  # of a driver that came back long after
    assert checkpoint.unfinished() == set()


@pytest.mark.parametrize("says", [True, False])
def test_the_first_batch_of_an_export_begins_where_its_end_says(says: bool) -> None:
    """What retention has taken since is of it, too; an earlier version said nothing."""
    leader = VirtualLeader((5, 20))
    first = first_end([0], 12) if says else at(12)
    checkpoint = Checkpoint(Kept(c_offsets_0=f"v1\n{{}}\n{json.dumps(first)}"), "c")
    options = parse_options(
        {**SOURCE, "subscribe": "t", "startingoffsets": "earliest"}, streaming=True
    )
    with leader.reachable():
        course = _ExportProgress(options, checkpoint)
    assert course.offsets_of(0) == {TopicPartition("t", 0): (0 if says else 5, 12)}


@pytest.mark.parametrize(
    ("begins", "said"),
    [
        ({"startingTimestamp": "5000"}, "t-0 has no record with timestamp 5000 or later"),
        ({"startingOffsets": '{"t":{"0":5}}'}, "t-1"),
    ],
)
def test_where_an_export_has_begun_is_not_asked_again(begins: dict[str, str], said: str) -> None:
    """What the options say of it may mean nothing any more: retention has taken the last record as late as that, the
    topic has another partition."""
    leader = VirtualLeader((5, 20), (0, 3))
    options = parse_options({**SOURCE, "subscribe": "t", **begins}, streaming=True)
    done = {f"c_{each}": f"v1\n{{}}\n{json.dumps(at(12))}" for each in ("offsets_0", "commits_0")}
    with leader.reachable():
        with pytest.raises(BadOption, match=said):
            _ExportProgress(options, Checkpoint(Kept(), "c"))
        course = _ExportProgress(options, Checkpoint(Kept(**done), "c"))
    assert course.progress(0.0, 100).total == 20 - 12 + 3


@pytest.mark.parametrize(
    "begins", [{"startingTimestamp": "5000"}, {"startingOffsets": '{"t":{"0":5}}'}]
)
def test_a_first_batch_that_was_begun_begins_where_it_did(begins: dict[str, str]) -> None:
    """Spark asks once more, until it is done."""
    leader = VirtualLeader((5, 20), (0, 3))
    given = {**SOURCE, "subscribe": "t", **begins}
    begun = Checkpoint(Kept(c_offsets_0=f"v1\n{{}}\n{json.dumps(first_end([7], 12))}"), "c")
    with leader.reachable():
        course = _ExportProgress(parse_options(given, streaming=True), begun)
        options = parse_options(course.options(given), streaming=True)
        assert StreamReader(options, FULL).initialOffset() == at(7, 0)
    assert course.progress(0.0, 100).total == 20 - 7 + 3


def test_dead_letters_stay_where_they_are_until_a_batch_is_done() -> None:
    texts = {f"c_{each}": "" for each in ("offsets_0", "commits_0")}
    checkpoint = Checkpoint(files := Kept(**texts), "c")
    checkpoint.check_dead_letters_path("A")
    files.put("c/offsets/1", "")
    checkpoint.check_dead_letters_path("A")
    with pytest.raises(BadOption, match="to A: run it once with that location, then with B"):
        checkpoint.check_dead_letters_path("B")
    files.put("c/commits/1", "")
    checkpoint.check_dead_letters_path("B")
    assert files.read("c/odradek-dead-letters") == "B"


def test_the_dead_letters_of_an_earlier_version_may_be_anywhere() -> None:
    """It has not said where they are."""
    checkpoint = Checkpoint(Kept(c_offsets_0=""), "c")
    checkpoint.check_dead_letters_path("A")


@pytest.mark.interop
@pytest.mark.slow
def test_what_it_is_of_is_there_as_a_whole(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(HadoopFiles(spark), str(tmp_path))
    (tmp_path / JOB).write_text("")
    with pytest.raises(BadOption, match=f"{JOB} is incomplete: remove it"):
        checkpoint.check_identity({"by": "date"})
    (tmp_path / JOB).unlink()
    checkpoint.check_identity({"by": "date", "assign": ""})
    checkpoint.check_identity({"by": "date", "assign": ""})
    assert {each.name for each in tmp_path.glob("[!.]*")} == {JOB}
    with pytest.raises(BadOption, match="with by date, not none: go on as it began"):
        checkpoint.check_identity({"by": "none"})
    with pytest.raises(BadOption, match="with assign unset, not a"):
        checkpoint.check_identity({"by": "date", "assign": "a"})
