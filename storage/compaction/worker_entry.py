"""Entry point of a compaction pass in a worker process: numpy is loaded there and not in the broker."""

from __future__ import annotations

from collections.abc import Iterator

from odradek.seams.files import Files
from odradek.storage.compaction.compaction_plan import CompactionPlan, CompactionStep


def clean(files: Files, plan: CompactionPlan) -> Iterator[CompactionStep]:
    """Run `cleaner.clean`, which is imported on the first call."""
    from odradek.storage.compaction import cleaner

    yield from cleaner.clean(files, plan)
