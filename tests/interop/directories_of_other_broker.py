"""Log directories that one kind of broker left and the other kind opens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.odradek_process import start_odradek
from tests.support.real_kafka import start_kafka


def open_directories(
    kind: str, directory: Path, former: BrokerProcess, config: Mapping[str, str] | None = None
) -> BrokerProcess:
    """Start a broker of the other kind on the log directories of `former`."""
    if kind == "odradek":
        return start_odradek(directory, config=config, log_dirs=former.log_dirs)
    return start_kafka(
        directory,
        config=config,
        log_dirs=former.log_dirs,
        formatted=True,
        static_voter=former.kind == "odradek",
    )
