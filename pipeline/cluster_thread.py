"""A cluster's connections on a loop in a thread of its own, for callers without one."""

from __future__ import annotations

from odradek.client.metadata import Cluster, open_cluster, parse_bootstrap
from odradek.pipeline.errors import BadOption
from odradek.seams.loop_thread import LoopThread
from odradek.seams.tcp import TcpNetwork

START_SECONDS = 30.0


def connected(bootstrap: str, timeout_ms: int, client_id: str) -> LoopThread[Cluster]:
    """Raises BadOption where `bootstrap` names no addresses."""
    try:
        parse_bootstrap(bootstrap)
    except ValueError as error:
        raise BadOption(f"the brokers' address: {error}") from None
    return LoopThread(
        lambda: open_cluster(
            TcpNetwork(), bootstrap, client_id=client_id, timeout_s=timeout_ms / 1000
        ),
        name=client_id,
        start_s=START_SECONDS,
    )
