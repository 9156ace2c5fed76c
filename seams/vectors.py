"""Lists of buffers for one system call, and the remainder after a short write."""

from __future__ import annotations

import os
from collections.abc import Sequence

from odradek.seams.files import Buffer

IOV_MAX = max(16, os.sysconf("SC_IOV_MAX"))
"""Maximum number of buffers of one writev or sendmsg."""


def rest_after(parts: Sequence[Buffer], taken: int) -> list[Buffer]:
    """Return the buffers of `parts` after the first `taken` bytes, without empty ones."""
    rest: list[Buffer] = []
    for part in parts:
        size = len(part)
        if taken >= size:
            taken -= size
        elif taken:
            rest.append(memoryview(part)[taken:])
            taken = 0
        else:
            rest.append(part)
    return rest
