"""A running broker that is known only by its address (`--bootstrap`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from odradek.bench.model import Feature, PeerUnavailable, Target
from odradek.bench.peers.process import responds_to_metadata
from odradek.bench.peers.topics import AdminTopics
from odradek.bench.raw_connection import RawConnection
from odradek.protocol import apis

RESPONSE_S = 5.0
NOT_STARTED_HERE = "the bench did not start this broker"


class RunningBroker:
    """The broker at the address `--bootstrap`. It is not killed or restarted, and its settings do not change."""

    name = "running-broker"
    default = False
    lacks: Mapping[Feature, str] = {
        Feature.PROCESS: NOT_STARTED_HERE,
        Feature.CLUSTER: NOT_STARTED_HERE,
        Feature.TIERED: NOT_STARTED_HERE,
        Feature.DISKLESS: NOT_STARTED_HERE,
        Feature.RESTART: NOT_STARTED_HERE,
        Feature.TWO_DIRECTORIES: NOT_STARTED_HERE,
        Feature.COMPACTION: "the workload would change a setting of the broker",
    }

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.title = bootstrap

    def obtain(self) -> None:
        """Check the address. Raises PeerUnavailable without a response, or if the cluster has other brokers."""
        address = self._target().address
        if not responds_to_metadata(address, RESPONSE_S):
            raise PeerUnavailable(f"no response from {self.bootstrap}")
        with RawConnection(address) as wire:
            brokers = len(wire.request(apis.METADATA, {"topics": []}).brokers)
        if brokers > 1:
            raise PeerUnavailable(
                f"{self.bootstrap} is one of {brokers} brokers; --bootstrap requires a cluster of one broker"
            )

    def version(self) -> str:
        return "unknown"

    def settings(self) -> Mapping[str, str]:
        return {}

    @contextmanager
    def start(self, directory: Path) -> Iterator[Target]:
        yield self._target()

    def _target(self) -> Target:
        return Target(self.name, self.bootstrap, AdminTopics(self.bootstrap))
