"""What a stream's checkpoint says: which batch is next, which offsets it has, whether it may be there already.

Spark writes a batch's last offsets to `offsets/N` before it reads the first of them, and `commits/N` once
all is written. A batch with the one and without the other was under way when the driver died: some of it, or
all, may be in the output.

A driver that stood still before Spark noted that a batch was done may come back and note it, while another one makes
the batch again: with part of it removed, and not yet there again. So that one says so, in a file of its own, until all
is there; where there is such a file, the last batch is not done, whatever Spark has noted.

Spark goes on from the last batch that it has begun, whatever is done of those before. So where the driver that came back
has begun the next batch, too, that beginning is taken back first; and since that driver may have written something of
it, there is a file for that batch as well.

    CHECKPOINT/odradek-again-N-ATTEMPT    the batch N may be there in parts
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
"""What the checkpoint is of, by our own account."""
DEAD_LETTERS = "odradek-dead-letters"
"""Where those of the last run went."""
AGAIN = "odradek-again-"


class Checkpoint:
    """Of one stream with one source."""

    def __init__(self, files: HadoopFiles, path: str) -> None:
        self._files = files
        self.path = path

    @property
    def exists(self) -> bool:
        return self._files.exists(f"{self.path}/metadata")

    @cached_property
    def query_id(self) -> str:
        """The stream's own, over all its runs; there once it was started."""
        found: str = json.loads(self._files.read(f"{self.path}/metadata"))["id"]
        return found

    @contextmanager
    def recreated_topics(self, batch: int) -> Iterator[None]:
        """The batch is not done before this ends without an error. Raises FilesUnavailable."""
        prefix = f"{AGAIN}{batch}-"
        former = [name for name in self._files.names(self.path) if name.startswith(prefix)]
        own = self._mark(batch)
        yield
        for name in (*former, own):
            self._files.remove(f"{self.path}/{name}")

    def take_back(self) -> None:
        """The last batch is not done if it was being made again. To be called before Spark goes on."""
        done = self.last_done()
        if done is None or done not in self._marked():
            return
        for begun in sorted(self._numbers("offsets"), reverse=True):
            if begun > done:
                self._mark(begun)
                self._files.remove(f"{self.path}/offsets/{begun}")
        self._files.sync(f"{self.path}/offsets")
        self._files.remove(f"{self.path}/commits/{done}")

    def is_begun(self, batch: int) -> None:
        """What says so is on the disk, before something of it is in the output: whoever comes after the power was cut
        finds that the batch has begun, with which offsets, and whose it is."""
        offsets = f"{self.path}/offsets"
        for each in (f"{offsets}/{batch}", offsets, f"{self.path}/metadata", self.path):
            self._files.sync(each)

    def unfinished(self) -> set[int]:
        """The batches of which something may be there already, while they are not done."""
        pending, done = self.pending(), self.last_done()
        marked = {each for each in self._marked() if done is None or each > done}
        return marked | (set() if pending is None else {pending})

    def _mark(self, batch: int) -> str:
        """The file's name that says so."""
        name = f"{AGAIN}{batch}-{RealEntropy().uuid().hex}"
        self._files.put(f"{self.path}/{name}", "")
        self._files.sync(self.path)
        return name

    def _marked(self) -> set[int]:
        names = self._files.names(self.path)
        found = (
            each.removeprefix(AGAIN).partition("-")[0] for each in names if each.startswith(AGAIN)
        )
        return {int(number) for number in found if number.isdigit()}

    def pending(self) -> int | None:
        """The batch that was under way when the last run ended."""
        begun = self.last_begun()
        return None if begun is None or begun == self.last_done() else begun

    def last_begun(self) -> int | None:
        return self._last("offsets")

    def last_done(self) -> int | None:
        return self._last("commits")

    def ends(self, batch: int | None) -> StreamOffsets:
        """The offsets (exclusive) where a batch ends; none before the first."""
        if batch is None or batch < 0:
            return StreamOffsets({}, {})
        lines = self._files.read(f"{self.path}/offsets/{batch}").splitlines()
        return StreamOffsets.parse(json.loads(lines[-1]))

    def belongs_to(self, job: dict[str, str]) -> None:
        """Say what it is of, the first time; BadOption if it is of something else."""
        where = f"{self.path}/{JOB}"
        if not self._files.exists(where):
            self._files.write(where, json.dumps(job))
            return
        try:
            found = dict(json.loads(self._files.read(where)))
        except ValueError:
            raise BadOption(
                f"{where} is cut short: remove it, and run the export that {self.path} is of"
            ) from None
        for name, value in job.items():
            if found.get(name, value) != value:
                raise BadOption(
                    f"{self.path} is of an export with {name} {found[name] or 'unset'}, not"
                    f" {value or 'unset'}: go on as it began, or begin anew elsewhere"
                )

    def has_dead_letters_at(self, place: str) -> None:
        """They may move when all is done: what a batch that is not has left must be found where it is. BadOption
        if it is elsewhere. To be called before a batch is begun."""
        where = f"{self.path}/{DEAD_LETTERS}"
        last = self._files.read(where) if self._files.exists(where) else ""
        if last == place:
            return
        if last and self.unfinished():
            raise BadOption(
                f"the last run of the export with {self.path} ended within a batch, and may have left dead letters"
                f" of it in {last}: run it with that place once more, then with {place}"
            )
        self._files.put(where, place)

    def _last(self, log: str) -> int | None:
        return max(self._numbers(log), default=None)

    def _numbers(self, log: str) -> list[int]:
        return [int(name) for name in self._files.names(f"{self.path}/{log}") if name.isdigit()]
