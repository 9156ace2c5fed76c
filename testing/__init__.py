"""Brokers for tests: an embedded broker, clusters of processes, a pytest plugin, and virtual seams.

The classes are imported on first use, so that a test suite that installs the plugin but
starts no broker does not load them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.testing.broker_death import BrokerDied
    from odradek.testing.cluster.cluster import Cluster
    from odradek.testing.embedded import Broker

__all__ = ["Broker", "BrokerDied", "Cluster"]


def __getattr__(name: str) -> Any:
    if name == "Broker":
        from odradek.testing.embedded import Broker

        return Broker
    if name == "BrokerDied":
        from odradek.testing.broker_death import BrokerDied

        return BrokerDied
    if name == "Cluster":
        from odradek.testing.cluster.cluster import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
