"""The checkpoint of an export's stream: the last batch, its offsets, and whether it may be partly written.

Spark writes a batch's end offsets to `offsets/N` before it reads the batch, and `commits/N` after everything is
written. A batch with the former and without the latter was in progress when the driver died; its output may be
partly or completely written.

A driver that was suspended before Spark's commit of a batch may commit it while another driver repeats the batch
and has removed part of its output. So the other driver marks the batch with a file until everything is written; if
such a file exists, the last batch is not committed, whatever `commits` has.

Spark continues from the last batch with `offsets`. If the suspended driver has also started the next batch, its
`offsets` file is removed first, and the batch is marked, because that driver may have written part of it.

    CHECKPOINT/odradek-again-N-ATTEMPT    batch N may be partly written
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from odradek.pipeline.errors import BadOption
from odradek.pipeline.jobs.hadoop_files import HadoopFiles
from odradek.pipeline.stream_offsets import StreamOffsets
from odradek.seams.entropy import RealEntropy

JOB = "odradek-job.json"
"""File with the description of the export to which the checkpoint belongs."""
DEAD_LETTERS = "odradek-dead-letters"
"""File with the location of the last run's dead letters."""
UNCOMMITTED = "odradek-again-"


class Checkpoint:
    """Checkpoint of one stream with one source."""

    def __init__(self, files: HadoopFiles, path: str) -> None:
        self._files = files
        self.path = path

    @property
    def exists(self) -> bool:
        return self._files.exists(f"{self.path}/metadata")

    @cached_property
    def query_id(self) -> str:
        """Return the id of the stream, which all its runs share. It exists after the first start."""
        found: str = json.loads(self._files.read(f"{self.path}/metadata"))["id"]
        return found

    @contextmanager
    def marked_uncommitted(self, batch: int) -> Iterator[None]:
        """Mark the batch as uncommitted until the block ends without an error. Raises FilesUnavailable."""
        prefix = f"{UNCOMMITTED}{batch}-"
        former = [name for name in self._files.names(self.path) if name.startswith(prefix)]
        own = self._mark(batch)
        yield
        for name in (*former, own):
            self._files.remove(f"{self.path}/{name}")

    def undo_incomplete_commit(self) -> None:
        """Remove the commit of the last batch if it is marked, so that Spark repeats it. Call it before the stream
        starts.
        """
        done = self.last_committed()
        if done is None or done not in self._marked():
            return
        for begun in sorted(self._numbers("offsets"), reverse=True):
            if begun > done:
                self._mark(begun)
                self._files.remove(f"{self.path}/offsets/{begun}")
        self._files.sync(f"{self.path}/offsets")
        self._files.remove(f"{self.path}/commits/{done}")

    def sync_offsets(self, batch: int) -> None:
        """Sync the batch's offsets before output is written, so that after a power failure the batch is known to be
        in progress, with its offsets.
        """
        offsets = f"{self.path}/offsets"
        for each in (f"{offsets}/{batch}", offsets, f"{self.path}/metadata", self.path):
            self._files.sync(each)

    def unfinished(self) -> set[int]:
        """Return the uncommitted batches that may be partly written."""
        pending, done = self.pending(), self.last_committed()
        marked = {each for each in self._marked() if done is None or each > done}
        return marked | (set() if pending is None else {pending})

    def _mark(self, batch: int) -> str:
        """Create a mark; return its file name."""
        name = f"{UNCOMMITTED}{batch}-{RealEntropy().uuid().hex}"
        self._files.put(f"{self.path}/{name}", "")
        self._files.sync(self.path)
        return name

    def _marked(self) -> set[int]:
        names = self._files.names(self.path)
        found = (
            each.removeprefix(UNCOMMITTED).partition("-")[0]
            for each in names
            if each.startswith(UNCOMMITTED)
        )
        return {int(number) for number in found if number.isdigit()}

    def pending(self) -> int | None:
        """Return the batch that was in progress at the end of the last run."""
        begun = self.last_started()
        return None if begun is None or begun == self.last_committed() else begun

    def last_started(self) -> int | None:
        return self._last("offsets")

    def last_committed(self) -> int | None:
        return self._last("commits")

    def ends(self, batch: int | None) -> StreamOffsets:
        """Return the end offsets (exclusive) of a batch; none before the first batch."""
        if batch is None or batch < 0:
            return StreamOffsets({}, {})
        lines = self._files.read(f"{self.path}/offsets/{batch}").splitlines()
        return StreamOffsets.parse(json.loads(lines[-1]))

    def check_identity(self, job: dict[str, str]) -> None:
        """Write the description of the export on its first run. Raises BadOption if the checkpoint is another
        export's.
        """
        where = f"{self.path}/{JOB}"
        if not self._files.exists(where):
            self._files.write(where, json.dumps(job))
            return
        try:
            found = dict(json.loads(self._files.read(where)))
        except ValueError:
            raise BadOption(
                f"{where} is incomplete: remove it, and run the export that {self.path} belongs to"
            ) from None
        for name, value in job.items():
            if found.get(name, value) != value:
                raise BadOption(
                    f"{self.path} belongs to an export with {name} {found[name] or 'unset'},"
                    f" not {value or 'unset'}: use the same {name}, or another checkpoint"
                )

    def check_dead_letters_path(self, place: str) -> None:
        """Check the location of the dead letters, which may only change when no batch is unfinished. Raises
        BadOption. Call it before a batch starts.
        """
        where = f"{self.path}/{DEAD_LETTERS}"
        last = self._files.read(where) if self._files.exists(where) else ""
        if last == place:
            return
        if last and self.unfinished():
            raise BadOption(
                f"the last run of the export with {self.path} failed within a batch, and may"
                f" have written dead letters of this batch to {last}: run it once with that"
                f" location, then with {place}"
            )
        self._files.put(where, place)

    def _last(self, log: str) -> int | None:
        return max(self._numbers(log), default=None)

    def _numbers(self, log: str) -> list[int]:
        return [int(name) for name in self._files.names(f"{self.path}/{log}") if name.isdigit()]
