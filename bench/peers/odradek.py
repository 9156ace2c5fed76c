"""Odradek as a peer: the `odradek serve` of this installation."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import odradek.bench
from odradek.bench.model import Feature, Target
from odradek.bench.peers.clusters import (
    three_brokers,
    three_diskless_brokers,
    three_tiered_brokers,
)
from odradek.bench.peers.process import ProcessLaunch, free_port, running
from odradek.bench.peers.topics import AdminTopics
from odradek.broker.local_cluster.odradek_nodes import OdradekNodes
from odradek.seams.real import real_seams

# As in Kafka's example configuration: the first assignment of a group does not wait for more members.
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


def keep_compiled() -> None:
    """Remove PYTHONDONTWRITEBYTECODE from the environment, so that a node does not compile modules at each start."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class Odradek:
    """Odradek with the code of this installation."""

    name = "odradek"
    title = "Odradek"
    default = True
    lacks: Mapping[Feature, str] = {}

    def obtain(self) -> None:
        """Do nothing: it is installed."""
        keep_compiled()

    def version(self) -> str:
        """Return the version, with the commit in a checkout."""
        number = importlib.metadata.version("odradek")
        git = shutil.which("git")
        if git is None:
            return number
        done = subprocess.run(
            [git, "describe", "--always", "--dirty"],
            cwd=Path(odradek.bench.__file__).parent,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return f"{number} ({done.stdout.strip()})" if done.returncode == 0 else number

    def settings(self) -> Mapping[str, str]:
        return SETTINGS

    @contextmanager
    def start_cluster(self, directory: Path) -> Iterator[Target]:
        with three_brokers(self.name, OdradekNodes(real_seams()), directory) as target:
            yield target

    @contextmanager
    def start_tiered(self, directory: Path) -> Iterator[Target]:
        with three_tiered_brokers(self.name, OdradekNodes(real_seams()), directory) as target:
            yield target

    @contextmanager
    def start_diskless(self, directory: Path) -> Iterator[Target]:
        with three_diskless_brokers(self.name, OdradekNodes(real_seams()), directory) as target:
            yield target

    @contextmanager
    def start(self, directory: Path) -> Iterator[Target]:
        address = ("127.0.0.1", free_port())
        sets = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
        command = [
            sys.executable, "-m", "odradek.cli", "serve",
            "--listen", f"{address[0]}:{address[1]}",
            "--log-dirs", f"{directory / 'data'},{directory / 'data-2'}",
            *sets,
        ]  # fmt: skip
        with running(ProcessLaunch(command, address, directory)) as process:
            yield Target(self.name, process.bootstrap, AdminTopics(process.bootstrap), process)
