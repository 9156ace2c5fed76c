"""The mark of a clean shutdown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CleanMark:
    broker_epoch: int | None
