"""Lists of buffers on their way into one system call, and what is left of them after a short one."""

from __future__ import annotations

import os
from collections.abc import Sequence

from odradek.seams.files import Buffer

IOV_MAX = max(16, os.sysconf("SC_IOV_MAX"))
"""Buffers that one writev or sendmsg takes."""


def rest_after(parts: Sequence[Buffer], taken: int) -> list[Buffer]:
    """The bytes of `parts` that follow the first `taken`, as buffers, empty ones left out."""
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
