"""What the mover is told by the broker's configs."""

from __future__ import annotations

from odradek.seams.values import value_class

UNLIMITED = (1 << 63) - 1


@value_class
class MoverSettings:
    threads: int | None = None
    """num.replica.move.threads (J-06); None: as many as there are log directories."""
    bytes_per_second: int = UNLIMITED
    """intra.broker.throttled.rate (J-07), of all moves together."""
