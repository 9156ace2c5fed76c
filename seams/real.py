"""The real ones, together."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.seams import Seams
from odradek.seams.clock import RealClock
from odradek.seams.entropy import RealEntropy
from odradek.seams.objects import USUAL_PATIENCE, Objects, Patience
from odradek.seams.processes import ProcessWorkers
from odradek.seams.real_files import RealFiles
from odradek.seams.tcp import TcpNetwork
from odradek.seams.threads import ThreadOffload


def real_seams(max_open: int | None = None) -> Seams:
    """The machine itself; `max_open` bounds the descriptors held for files (`RealFiles`)."""
    return Seams(
        clock=RealClock(),
        entropy=RealEntropy(),
        network=TcpNetwork(),
        files=RealFiles(max_open),
        offload=ThreadOffload(),
        workers=ProcessWorkers(),
        open_objects=open_real_objects,
    )


def open_real_objects(
    url: str,
    options: Mapping[str, str] | None = None,
    patience: Patience = USUAL_PATIENCE,
    memory: str | None = None,
) -> Objects:
    """`object_store.open_objects`, which is loaded by the first node that has a store."""
    from odradek.seams.object_store import open_objects

    return open_objects(url, options, patience, memory)
