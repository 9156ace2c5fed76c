"""kfake, franz-go's cluster for tests (github.com/twmb/franz-go/pkg/kfake), as a process."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from odradek.bench.build_cache import digest, kept, needed_program, run_build
from odradek.bench.model import Feature, Target
from odradek.bench.peers.process import ProcessLaunch, free_port, running
from odradek.bench.peers.topics import AdminTopics

SOURCES = Path(__file__).parent / "kfake_server"
MODULE = "github.com/twmb/franz-go/pkg/kfake"


class Kfake:
    """kfake with its records in memory, or with a data directory (without fsync, its default)."""

    default = True

    def __init__(self, *, on_disk: bool) -> None:
        self._on_disk = on_disk
        self.name = "kfake-disk" if on_disk else "kfake"
        self.title = "kfake, on disk" if on_disk else "kfake, in memory"
        self.lacks: Mapping[Feature, str] = {
            Feature.CLUSTER: "all its brokers run in one process",
            Feature.TIERED: "has no tiered storage",
            Feature.DISKLESS: "has no diskless topics",
            Feature.LZ4: "librdkafka does not detect its support for lz4",
            Feature.TWO_DIRECTORIES: "has at most one log directory",
            Feature.COMPACTION: "does not respond during compaction for longer than client timeouts",
            **({} if on_disk else {Feature.RESTART: "keeps its records in memory"}),
        }

    def obtain(self) -> None:
        self._program()

    def version(self) -> str:
        found = re.search(rf"{re.escape(MODULE)} (\S+)", (SOURCES / "go.mod").read_text())
        assert found is not None
        return found[1]

    def settings(self) -> Mapping[str, str]:
        return {"data directory": "yes" if self._on_disk else "none"}

    @contextmanager
    def start(self, directory: Path) -> Iterator[Target]:
        port = free_port()
        command = [str(self._program()), str(port)]
        if self._on_disk:
            command.append(str(directory / "data"))
        with running(ProcessLaunch(command, ("127.0.0.1", port), directory)) as process:
            yield Target(self.name, process.bootstrap, AdminTopics(process.bootstrap), process)

    def _program(self) -> Path:
        sources = sorted(
            path for path in SOURCES.iterdir() if path.name.startswith(("main", "go."))
        )
        return kept(f"kfake-{digest(*sources)}", _build)


def _build(program: Path) -> None:
    go = needed_program("go", "a Go toolchain, 1.26 or newer")
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(shutil.copytree(SOURCES, Path(directory) / "kfake_server"))
        run_build([go, "build", "-o", str(program), "."], "building kfake", cwd=copy)
