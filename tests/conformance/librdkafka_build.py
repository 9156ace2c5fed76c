"""librdkafka and its test program, built from the sources in the npm package."""

from __future__ import annotations

import re
import sys
import tarfile
from pathlib import Path

from odradek.bench.build_cache import kept, needed_program, run_build
from tests.conformance.builds import digest_of_build

VERSION = "2.15.1"
PACKAGE = "@confluentinc/kafka-javascript"
PACKAGE_VERSION = "1.10.1"
RAPIDJSON = "python-rapidjson==1.25"  # contains the headers that 0053 needs
INNER = Path("package/deps/librdkafka")


def built_tests() -> Path:
    """Directory of the built test program. Raises PeerUnavailable if a tool for the build is missing.

    This file defines sources, flags and changes, so its digest identifies the build.
    """
    compiler = needed_program("cc", "a C and C++ compiler")
    digest = digest_of_build(Path(__file__), compiler=compiler)
    return kept(f"librdkafka-{VERSION}-{digest}", _build) / INNER / "tests"


def _build(directory: Path) -> None:
    directory.mkdir()
    npm, make = needed_program("npm", "npm"), needed_program("make", "make and a C++ compiler")
    run_build([npm, "pack", "--silent", f"{PACKAGE}@{PACKAGE_VERSION}"], "npm pack", cwd=directory)
    pip = [sys.executable, "-m", "pip", "-q", "download", "--no-binary", ":all:", "--no-deps"]
    run_build([*pip, RAPIDJSON], "pip download", cwd=directory)
    for archive in [*directory.glob("*.tgz"), *directory.glob("*.tar.gz")]:
        with tarfile.open(archive) as tar:
            tar.extractall(directory, filter="data")
        archive.unlink()
    (rapidjson,) = directory.glob("python_rapidjson-*/rapidjson/include")
    sources = directory / INNER
    configure = ["./configure", "--no-download", f"--CPPFLAGS=-I{rapidjson}"]
    _ask_for_one_replica(sources / "tests")
    run_build(configure, "configuring librdkafka", cwd=sources)
    run_build([make, "-j2", "libs"], "building librdkafka", cwd=sources)
    run_build([make, "-j2", "-C", "tests", "build"], "building librdkafka's tests", cwd=sources)


def _ask_for_one_replica(tests: Path) -> None:
    """Change the replication factor of topics from three to one, for a single broker."""
    for source in tests.glob("0*.c*"):
        text = source.read_text()
        source.write_text(re.sub(r"(create_topic\w*\(.*), 3((?:, 5000)?\))", r"\1, 1\2", text))
