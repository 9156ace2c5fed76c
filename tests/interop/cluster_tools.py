"""Kafka's tools, run against a cluster."""

from __future__ import annotations

import re

from odradek.testing.cluster.cluster import Cluster
from tests.support.kafka_tools import ToolRun, run_tool
from tests.support.waiting import deadline

TIMEOUT_S = 60


def tool(cluster: Cluster, name: str, *words: str, **options: object) -> ToolRun:
    where = ("--bootstrap-server", cluster.bootstrap)
    given = (*words, *where) if name == "cluster" else (*where, *words)
    return run_tool(name, *given, **options).check()  # type: ignore[arg-type]


def until(cluster: Cluster, text: str, name: str, *words: str) -> ToolRun:
    """Repeat a tool until its output matches `text`; returns the output."""
    with deadline(TIMEOUT_S, f"{name} {' '.join(words)} to print {text}") as check:
        while not re.search(text, (found := tool(cluster, name, *words)).stdout):
            check()
    return found


def create(cluster: Cluster, topic: str, assignment: str) -> None:
    tool(cluster, "topics", "--create", "--topic", topic, "--replica-assignment", assignment)
    until(cluster, topic, "topics", "--list")
