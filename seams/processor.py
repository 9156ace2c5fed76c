"""Yielding the CPU to clients on the same machine."""

from __future__ import annotations

import os
from collections.abc import Callable

let_others_run: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
"""Yield this CPU to other runnable processes: half a microsecond without any, milliseconds if one computes.

The kernel usually wakes the receiver of data on the sender's CPU, because it expects the sender to sleep soon. Without
a yield, the receiver waits until the sender sleeps.
"""
