"""A broker that runs already, wherever that is: only its address is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from odradek.bench.model import Feature, PeerUnavailable, Target
from odradek.bench.peers.process import responses_metadata
from odradek.bench.peers.topics import AdminTopics
from odradek.bench.wire import Wire
from odradek.protocol import apis

RESPONSE_S = 5.0
NOT_STARTED = "the bench did not start this broker"


class GivenAddress:
    """What `--bootstrap` names. Its process can't be looked at, nor killed, nor be had fresh; its own
    settings are left alone."""

    name = "given"
    default = False
    lacks: Mapping[Feature, str] = {
        Feature.PROCESS: NOT_STARTED,
        Feature.CLUSTER: NOT_STARTED,
        Feature.TIERED: NOT_STARTED,
        Feature.RESTART: NOT_STARTED,
        Feature.TWO_DIRECTORIES: NOT_STARTED,
        Feature.COMPACTION: "a setting of the whole broker would be changed for it",
    }

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.title = bootstrap

    def obtain(self) -> None:
        """Raises PeerUnavailable if nobody answers, or there are others, who would be asked for nothing."""
        address = self._target().address
        if not responses_metadata(address, RESPONSE_S):
            raise PeerUnavailable(f"no response from {self.bootstrap}")
        with Wire(address) as wire:
            brokers = len(wire.ask(apis.METADATA, {"topics": []}).brokers)
        if brokers > 1:
            raise PeerUnavailable(
                f"{self.bootstrap} is one of {brokers} brokers, and the bench measures one by itself"
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
