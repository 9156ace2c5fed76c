"""The door to a pass for whoever hands it to a worker: numpy is loaded there, not in the broker."""

from __future__ import annotations

from collections.abc import Iterator

from odradek.seams.files import Files
from odradek.storage.compaction.plan import Plan, Step


def clean(files: Files, plan: Plan) -> Iterator[Step]:
    """`cleaner.clean`."""
    from odradek.storage.compaction import cleaner

    yield from cleaner.clean(files, plan)
