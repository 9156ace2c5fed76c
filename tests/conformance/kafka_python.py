"""kafka-python's integration tests, from its sdist.

They can use a running broker (KAFKA_URI). The sdist lacks two files that the tests import: `test/__init__.py`
and `test/service.py`, which starts and stops a broker process. The replacement of the second file below is
sufficient for a running broker.
"""

from __future__ import annotations

import os
import re
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from odradek.bench.build_cache import kept, run_build
from odradek.bench.peers.jars import kafka_version
from tests.conformance.builds import digest_of_build
from tests.conformance.model import Job, Result, failed, not_applicable, passed
from tests.conformance.programs import Ended, one_line, run_program

NEEDS = (
    "pytest==9.2.0",
    "pytest-mock==3.17.0",
    "pytest-timeout==2.4.0",
    "lz4==4.4.5",
    "python-snappy==0.7.3",
    "zstandard==0.25.0",
    "crc32c==2.9.post0",
)
TIMEOUT_S = 120.0
NOT_APPLICABLE = {"test_ssl_integration.py": "starts its own broker with certificates"}

SERVICE = '''
"""A broker that is already running."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    pass
'''

_FUNCTION = re.compile(r"^(?:E\s+)(.*)$", re.M)
_NODE = re.compile(r"^test/integration/(\S+::.+)$", re.M)


class KafkaPython:
    name = "kafka-python"
    title = "kafka-python, `test/integration`"
    version = "3.0.12"
    source = "PyPI's sdist"
    settings: Mapping[str, str] = {
        "num.partitions": "4",
        "group.min.session.timeout.ms": "1000",  # session timeout of test_group's members: 3 s
        "node.id": "0",  # its assignments use broker 0
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }

    def obtain(self) -> None:
        digest = digest_of_build(self.version, SERVICE, *NEEDS)
        kept_at = kept(f"kafka-python-{self.version}-{digest}", self._fetch)
        self._directory = kept_at / f"kafka_python-{self.version}"
        self._libraries = kept_at / "libraries"

    def _fetch(self, directory: Path) -> None:
        directory.mkdir()
        pip = [sys.executable, "-m", "pip", "-q"]
        run_build(
            [
                *pip,
                "download",
                "--no-binary",
                ":all:",
                "--no-deps",
                f"kafka-python=={self.version}",
            ],
            "pip download",
            cwd=directory,
        )
        (archive,) = directory.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(directory, filter="data")
        archive.unlink()
        tests = directory / f"kafka_python-{self.version}" / "test"
        (tests / "__init__.py").touch()
        (tests / "service.py").write_text(SERVICE)
        libraries = directory / "libraries"
        run_build([*pip, "install", "--target", str(libraries), *NEEDS], "pip install")

    def excluded(self) -> Mapping[str, str]:
        return {
            name: reason
            for name in self._names()
            for file, reason in NOT_APPLICABLE.items()
            if name.startswith(file)
        }

    def jobs(self) -> Sequence[Job]:
        excluded = self.excluded()
        return [Job(name, (name,), TIMEOUT_S) for name in self._names() if name not in excluded]

    def run(self, job: Job, bootstrap: str, directory: Path) -> Mapping[str, Result]:
        arguments = ("-rs", "--tb=short", f"--timeout={job.timeout_s:.0f}")
        log_file = directory / "output.log"
        ended = self._pytest(log_file, bootstrap, f"test/integration/{job.name}", *arguments)
        return {job.name: _result(ended)}

    def _names(self) -> list[str]:
        log_file = self._directory / "collected.log"
        listed = self._pytest(log_file, "127.0.0.1:1", "test/integration", "--collect-only")
        return _NODE.findall(listed.output)

    def _pytest(self, log_file: Path, bootstrap: str, *arguments: str) -> Ended:
        return run_program(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments],
            log_file,
            cwd=self._directory,
            timeout_s=TIMEOUT_S + 10,  # pytest's own timeout prints the stack traces
            environment={
                "PYTHONPATH": os.pathsep.join([str(self._libraries), str(self._directory)]),
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTEST_PLUGINS": "pytest_mock,pytest_timeout",
                "KAFKA_URI": f"tcp://{bootstrap}",
                "KAFKA_VERSION": kafka_version(),
                "KAFKA_ROOT": str(self._directory),  # must be a directory; its content is not run
            },
        )


def _result(ended: Ended) -> Result:
    if ended.code == 0 and re.search(r"\b1 skipped", ended.output):
        reason = re.search(r"^SKIPPED \[1\] \S+ (.*)$", ended.output, re.M)
        return not_applicable(one_line(reason[1]) if reason else "skips itself")
    if ended.code == 0:
        return passed(ended.seconds)
    failure = _FUNCTION.search(ended.output)
    return failed(ended.seconds, one_line(failure[1]) if failure else ended.how)
