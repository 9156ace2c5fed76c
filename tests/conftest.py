"""What holds for every test, whoever runs it and from where."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from odradek.protocol import messages

# Before the first import of the package: its failed assertions then show values, as those of test files do.
pytest.register_assert_rewrite("tests.support")

from tests.support.anomalies import (  # noqa: E402
    pytest_exception_interact as pytest_exception_interact,
)

if TYPE_CHECKING:
    from odradek.bench.s3_server import S3Server

pytest_plugins = ["tests.rotation"]

# Properties are judged by what they say, not by how long a busy machine takes to say it.
settings.register_profile("without a deadline", deadline=None)
settings.load_profile("without a deadline")


def pytest_configure() -> None:
    """Hear Ctrl-C also where a shell runs the tests in its background, and has it ignored: what
    they start would inherit that. And hear of misspelt names in messages."""
    messages.check_names()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What is there before the first test is there to the end, thousands of tests and all modules: whoever
    looks for garbage need not look there."""
    gc.freeze()


@pytest.fixture
def own_ctrl_c() -> Iterator[None]:
    """Python's handler, for whatever goes by whether it is that one: Spark leaves another one here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real one (MinIO), for whoever asks for it; its first build takes minutes, and is kept."""
    from odradek.bench.model import PeerUnavailable
    from odradek.bench.s3_server import minio, running_s3_server

    try:
        minio()
    except PeerUnavailable as unavailable:
        pytest.skip(f"no S3 server to test against: {unavailable}")
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server
