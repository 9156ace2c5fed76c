"""Topics as tables: Spark over what brokers have, and over what they have tiered."""

from __future__ import annotations

from typing import Any

from odradek.pipeline.worker_startup import speed_up_workers

__all__ = ["speed_up_workers", "register"]


def register(spark: Any) -> None:
    """Make `spark.read.format("odradek")` known to a session (docs/pipeline.md)."""
    from odradek.pipeline.data_source import register as register_source

    register_source(spark)
