"""The offset checkpoint files of a log directory."""

from __future__ import annotations

from enum import Enum


class Checkpoint(Enum):
    RECOVERY_POINT = "recovery-point-offset-checkpoint"
    HIGH_WATERMARK = "replication-offset-checkpoint"
    LOG_START = "log-start-offset-checkpoint"
    CLEANER = "cleaner-offset-checkpoint"
