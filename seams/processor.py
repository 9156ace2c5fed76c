"""The processor, which this process shares with clients on the same machine."""

from __future__ import annotations

import os
from collections.abc import Callable

let_others_run: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
"""Go on after whoever waits for this very processor: half a microsecond where nobody does, and some
milliseconds where somebody computes. Who is sent something is mostly woken on the sender's processor,
since the kernel takes a sender to be about to sleep, and would wait until it does."""
