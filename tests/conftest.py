"""Configuration and fixtures of all tests."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from odradek.protocol import messages

# This precedes the first import of the package, so that its failed assertions show values as those of test files do.
pytest.register_assert_rewrite("tests.support")

from tests.support.anomalies import (  # noqa: E402
    pytest_exception_interact as pytest_exception_interact,
)

if TYPE_CHECKING:
    from odradek.bench.s3_server import S3Server

pytest_plugins = ["tests.rotation"]

# A busy machine may exceed any deadline of Hypothesis.
settings.register_profile("without a deadline", deadline=None)
settings.load_profile("without a deadline")


def pytest_configure() -> None:
    """Check the names of message fields, and restore the default handler of SIGINT.

    A shell ignores SIGINT in background processes, and processes that tests start would inherit that.
    """
    messages.check_names()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Exclude the collected tests and the modules, which exist to the end, from garbage collections."""
    gc.freeze()


@pytest.fixture(autouse=True)
def unchanged_log_levels() -> Iterator[None]:
    """Restore the levels of the root logger and of Odradek's loggers: a broker in the tests' process changes them when
    a client alters them (BROKER_LOGGER), and the messages of later tests would be others."""
    levels = {logger: logger.level for logger in _loggers()}
    yield
    for logger in _loggers():
        before = levels.get(logger, logging.NOTSET)
        if logger.level != before:
            logger.setLevel(before)


def _loggers() -> list[logging.Logger]:
    named = logging.root.manager.loggerDict.items()
    of_odradek = [
        logger
        for name, logger in named
        if name.startswith("odradek") and isinstance(logger, logging.Logger)
    ]
    return [logging.root, *of_odradek]


@pytest.fixture
def own_ctrl_c() -> Iterator[None]:
    """Install Python's handler of SIGINT for a test that depends on it; Spark leaves another one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running MinIO. Its first build takes minutes and is kept."""
    from odradek.bench.model import PeerUnavailable
    from odradek.bench.s3_server import minio, running_s3_server

    try:
        minio()
    except PeerUnavailable as unavailable:
        pytest.skip(f"no S3 server to test against: {unavailable}")
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server
