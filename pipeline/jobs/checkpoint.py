"""What a stream's checkpoint says: which batch is next, which offsets it has, whether it may be there already.

Spark writes a batch's last offsets to `offsets/N` before it reads the first of them, and `commits/N` once
all is written. A batch with the one and without the other was under way when the driver died: some of it, or
all, may be in the output.
"""

from __future__ import annotations

import json
from functools import cached_property

from odradek.pipeline.errors import BadOption
from odradek.pipeline.jobs.hadoop_files import HadoopFiles
from odradek.pipeline.stream_offsets import StreamOffsets

JOB = "odradek-job.json"
"""What the checkpoint is of, by our own account."""


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

    def _last(self, log: str) -> int | None:
        numbers = [int(name) for name in self._files.names(f"{self.path}/{log}") if name.isdigit()]
        return max(numbers, default=None)
