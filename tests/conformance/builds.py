"""Digests of everything that a result depends on, so that results of other versions are not used.

The digest of a cached build covers its sources and the compiler. The digest of results covers the broker's
sources, the suite's module (version, settings, parsing of the output), and the modules that all suites share.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from odradek.bench.peers.jars import POM, kafka_version

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "conformance.md"

LAYERS = ("seams", "protocol", "client", "storage", "replication", "broker", "cli")
"""Folders that `odradek serve` runs."""

_HERE = Path(__file__).parent
_SUPPORT = ROOT / "tests" / "support"
SHARED = (_HERE / "brokers.py", _HERE / "programs.py", _SUPPORT / "broker_process.py")
STARTED_BY = {
    "odradek": _SUPPORT / "odradek_process.py",
    "kafka": _SUPPORT / "real_kafka.py",
}


@dataclass(frozen=True)
class Build:
    """Version of a broker: `version` is for people, `digest` identifies it, `dirty` means uncommitted
    changes.
    """

    version: str
    digest: str
    dirty: bool = False


def digest_of(*parts: str | bytes | Path) -> str:
    """Digest of these words and files, in this order."""
    sums = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else part
        content = content.encode() if isinstance(content, str) else content
        sums.update(len(content).to_bytes(8) + content)
    return sums.hexdigest()[:16]


def digest_of_build(*parts: str | Path, compiler: str = "") -> str:
    """`digest_of` for a compiled program: includes the machine and the version of `compiler`."""
    called = ""
    if compiler:
        words = [compiler, "version" if compiler.endswith("go") else "--version"]
        called = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return digest_of(*parts, platform.machine(), platform.python_version(), called)


def broker_build(broker: str) -> Build:
    """Kafka's version from the pom, or the version of this checkout."""
    if broker == "kafka":
        return Build(kafka_version(), digest_of(POM))
    sources = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
    named: Iterable[str | Path] = (
        part for path in sources for part in (str(path.relative_to(ROOT)), path)
    )
    digest = digest_of(*named, ROOT / "pyproject.toml", ROOT / "constraints.txt")
    number = importlib.metadata.version("odradek")
    commit = _git("rev-parse", "--short=10", "HEAD")
    if commit is None:
        return Build(number, digest)
    changed = _git("status", "--porcelain", "--", ".", f":!{PAGE.relative_to(ROOT)}")
    dirty = bool(changed)
    return Build(f"{number} ({commit}{'-dirty' if dirty else ''})", digest, dirty)


def results_name(broker: str, build: Build, suite_module: Path) -> str:
    """Name of the directory with the suite's results for this broker."""
    files = (suite_module, *SHARED, STARTED_BY[broker])
    return f"{broker}-{digest_of(build.digest, *files)}"


def _git(*words: str) -> str | None:
    """Output of a git command; None outside a checkout."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
