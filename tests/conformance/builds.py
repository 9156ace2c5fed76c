"""What exactly is measured: digests of what a result depends on, so that none outlives its cause.

A cached build is named by what it was made of and how; results by the broker's sources, the suite's
module (its version, its settings, how its output is read) and what all suites share.
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
"""Those that `odradek serve` runs."""

_HERE = Path(__file__).parent
_SUPPORT = ROOT / "tests" / "support"
SHARED = (_HERE / "brokers.py", _HERE / "programs.py", _SUPPORT / "broker_process.py")
STARTED_BY = {
    "odradek": _SUPPORT / "odradek_process.py",
    "kafka": _SUPPORT / "real_kafka.py",
}


@dataclass(frozen=True)
class Build:
    """A broker as it stands: `version` is for people, `digest` names it, `dirty` has no commit."""

    version: str
    digest: str
    dirty: bool = False


def digest_of(*parts: str | bytes | Path) -> str:
    """A name for what depends on these words and files, in this order."""
    sums = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else part
        content = content.encode() if isinstance(content, str) else content
        sums.update(len(content).to_bytes(8) + content)
    return sums.hexdigest()[:16]


def digest_of_build(*parts: str | Path, compiler: str = "") -> str:
    """`digest_of`, for what is compiled here: with the machine and what `compiler` calls itself."""
    called = ""
    if compiler:
        words = [compiler, "version" if compiler.endswith("go") else "--version"]
        called = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return digest_of(*parts, platform.machine(), platform.python_version(), called)


def broker_build(broker: str) -> Build:
    """Kafka as the pom names it, or this checkout."""
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
    """Of the directory in which a suite's results on this broker are kept."""
    files = (suite_module, *SHARED, STARTED_BY[broker])
    return f"{broker}-{digest_of(build.digest, *files)}"


def _git(*words: str) -> str | None:
    """What git says, or None where this is no checkout."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
