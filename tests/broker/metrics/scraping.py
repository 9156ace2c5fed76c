"""Scrapes of a broker's metrics endpoint."""

from __future__ import annotations

import urllib.request

from odradek.testing import Broker
from tests.broker.metrics.exposition_lint import LINE, lint

CONFIGS = {"odradek.metrics.listener": "127.0.0.1:0"}


def url(broker: Broker, path: str = "/metrics") -> str:
    return f"http://{broker.node.metrics_address}{path}"


def scrape(broker: Broker) -> dict[str, float]:
    """Values of the metrics by name with labels. Checks the conventions of the page."""
    with urllib.request.urlopen(url(broker), timeout=10) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = response.read().decode()
    assert lint(text) == []
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match is not None, line
            name = match[1] + (match[2] or "")
            found[name] = float(match[3])
    return found
