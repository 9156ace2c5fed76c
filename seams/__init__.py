"""The doors to the machine: clock, entropy, network, files, objects, offload, workers.

Everything nondeterministic or slow enters through them, handed in at construction and never reached
for (a lint keeps `os`, `time`, `random`, `socket`, … out of every other floor). The real ones live
here; the virtual ones, which can be slow, torn, full, partitioned or crashed, in `odradek.testing`.
"""

from __future__ import annotations

from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy
from odradek.seams.files import Files
from odradek.seams.network import Network
from odradek.seams.objects import OpenObjects
from odradek.seams.offload import Offload
from odradek.seams.values import value_class
from odradek.seams.workers import Workers


@value_class
class Seams:
    """What a node is given of the world."""

    clock: Clock
    entropy: Entropy
    network: Network
    files: Files
    offload: Offload
    workers: Workers
    open_objects: OpenObjects
