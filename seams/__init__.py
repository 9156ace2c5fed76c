"""Interfaces to the operating system: clock, entropy, network, files, objects, offload, workers.

Everything nondeterministic or slow is used through a seam that is passed to constructors. A lint rule refuses
`os`, `time`, `random`, `socket`, … in all other layers. The real implementations are in this package. The
virtual ones, which can be slow, torn, full, partitioned or crashed, are in `odradek.testing`.
"""

from __future__ import annotations

import sys

from odradek.seams.clock import Clock
from odradek.seams.databases import Databases
from odradek.seams.entropy import Entropy
from odradek.seams.files import Files
from odradek.seams.network import Network
from odradek.seams.objects import OpenObjects
from odradek.seams.offload import Offload
from odradek.seams.values import value_class
from odradek.seams.workers import Workers

if sys.platform == "win32":
    raise ImportError(
        "Odradek does not run on Windows: use WSL (wsl --install) or the container image"
        " (docs/docker.md)"
    )


@value_class
class Seams:
    """All seams of a node."""

    clock: Clock
    entropy: Entropy
    network: Network
    files: Files
    offload: Offload
    workers: Workers
    open_objects: OpenObjects
    databases: Databases | None = None
    """Contents of databases in a simulation; otherwise SQLite uses its own files."""
