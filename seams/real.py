"""The real implementations of all seams."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.seams import Seams
from odradek.seams.clock import RealClock
from odradek.seams.entropy import RealEntropy
from odradek.seams.objects import DEFAULT_STORE_TIMEOUTS, Objects, StoreTimeouts
from odradek.seams.processes import ProcessWorkers
from odradek.seams.real_files import RealFiles
from odradek.seams.tcp import TcpNetwork
from odradek.seams.threads import ThreadOffload


def real_seams(max_open: int | None = None) -> Seams:
    """Create the real seams; `max_open` limits the descriptors for files (`RealFiles`)."""
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
    timeouts: StoreTimeouts = DEFAULT_STORE_TIMEOUTS,
    identity_file: str | None = None,
) -> Objects:
    """Call `object_store.open_objects`, importing it when it is first used."""
    from odradek.seams.object_store import open_objects

    return open_objects(url, options, timeouts, identity_file)
