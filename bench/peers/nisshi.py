"""nisshi, a broker in Rust (a crate), with records in memory.

The first use builds the crate, which takes minutes, so nisshi is not a default peer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from odradek.bench.build_cache import kept, needed_program, run_build
from odradek.bench.model import Feature, Target
from odradek.bench.peers.process import ProcessLaunch, free_port, running
from odradek.bench.peers.topics import AdminTopics

VERSION = "0.8.1"
STORAGE = "memory://nisshi/"
REBALANCE_DELAY = "0s"


class Nisshi:
    """nisshi with its in-memory storage."""

    name = "nisshi"
    title = "nisshi, in memory"
    default = False
    lacks: Mapping[Feature, str] = {
        Feature.CLUSTER: "is one broker",
        Feature.TIERED: "has no tiered storage",
        Feature.DISKLESS: "has no diskless topics",
        Feature.RESTART: "keeps its records in memory",
        Feature.COMPACTION: "has no log directories to describe",
    }

    def obtain(self) -> None:
        self._program()

    def version(self) -> str:
        return VERSION

    def settings(self) -> Mapping[str, str]:
        return {"storage": STORAGE, "group initial rebalance delay": REBALANCE_DELAY}

    @contextmanager
    def start(self, directory: Path) -> Iterator[Target]:
        address = ("127.0.0.1", free_port())
        url = f"tcp://{address[0]}:{address[1]}"
        command = [
            str(self._program()), "broker",
            "--listener-url", url,
            "--advertised-listener-url", url,
            "--storage-engine", STORAGE,
            "--group-initial-rebalance-delay", REBALANCE_DELAY,
            "--silent",
        ]  # fmt: skip
        with running(ProcessLaunch(command, address, directory)) as process:
            yield Target(self.name, process.bootstrap, AdminTopics(process.bootstrap), process)

    def _program(self) -> Path:
        return kept(f"nisshi-{VERSION}", _build) / "bin" / "nisshi"


def _build(root: Path) -> None:
    cargo = needed_program("cargo", "a Rust toolchain, 1.96 or newer")
    run_build(
        [
            cargo, "install", "nisshi", "--version", VERSION, "--locked",
            "--no-default-features", "--features", "dynostore",
            "--root", str(root),
        ],
        "building nisshi",
    )  # fmt: skip
