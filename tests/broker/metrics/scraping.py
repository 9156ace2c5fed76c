"""Scrapes of a broker's metrics endpoint."""

from __future__ import annotations

import re
import urllib.request

from odradek.testing import Broker

CONFIGS = {"odradek.metrics.listener": "127.0.0.1:0"}


LINE = re.compile(r'([a-z_]+)(\{[a-zA-Z]+="[^"]*"(?:,[a-zA-Z]+="[^"]*")*\})? (-?[0-9.e+-]+)')


def url(broker: Broker, path: str = "/metrics") -> str:
    return f"http://{broker.node.metrics_address}{path}"


def scrape(broker: Broker) -> dict[str, float]:
    """Values of the metrics by name with labels."""
    with urllib.request.urlopen(url(broker), timeout=10) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = response.read().decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match is not None, line
            name = match[1] + (match[2] or "")
            assert name not in found, f"{name} is reported twice"
            found[name] = float(match[3])
    return found
