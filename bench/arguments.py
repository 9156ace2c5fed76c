"""Arguments that several command lines take."""

from __future__ import annotations

import argparse
import math


def gib(text: str) -> int:
    """Bytes, of an argument in GiB."""
    size = float(text)
    if not 0 <= size < math.inf:
        raise argparse.ArgumentTypeError("it is 0 or more GiB")
    return int(size * (1 << 30))
