"""Brokers inside a test: an embedded broker, clusters of processes, a pytest plugin, and virtual seams.

`Broker` and `Cluster` are imported when first asked for: a test suite that installs the plugin and starts no broker
pays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.testing.cluster.blocking import Cluster
    from odradek.testing.embedded import Broker

__all__ = ["Broker", "Cluster"]


def __getattr__(name: str) -> Any:
    if name == "Broker":
        from odradek.testing.embedded import Broker

        return Broker
    if name == "Cluster":
        from odradek.testing.cluster.blocking import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
