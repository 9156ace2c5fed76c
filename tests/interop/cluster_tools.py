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
    """The tool's output, once it matches."""
    with deadline(TIMEOUT_S, f"{name} {' '.join(words)} to tell {text}") as check:
        while not re.search(text, (found := tool(cluster, name, *words)).stdout):
            check()
    return found


def create(cluster: Cluster, topic: str, assignment: str) -> None:
    tool(cluster, "topics", "--create", "--topic", topic, "--replica-assignment", assignment)
    until(cluster, topic, "topics", "--list")
