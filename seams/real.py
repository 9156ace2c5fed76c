"""The real ones, together."""

from __future__ import annotations

from odradek.seams import Seams
from odradek.seams.clock import RealClock
from odradek.seams.entropy import RealEntropy
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
    )
