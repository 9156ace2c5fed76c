"""Creates 1,000 topics, one per request, or all in one request.

The time is from a request until its response has been received, on one connection. It does not include decoding the
response. A run counts only if Metadata returns a leader for every topic. The deletion of the topics is not measured.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from odradek.bench.model import (
    Feature,
    Metric,
    Parameter,
    Stage,
    Target,
    WorkloadFailed,
    WorkloadOutcome,
)
from odradek.bench.raw_connection import RawConnection, must_be_none
from odradek.protocol import apis

TOPICS = 1000
TIMEOUT_MS = 60_000
LEADERS_S = 60.0
ASK_EVERY_S = 0.05
SECONDS = Metric("seconds", "s", "lower")

_runs = itertools.count(1)


@dataclass(frozen=True)
class CreateTopics:
    """Creates `TOPICS` topics of one partition, `per_request` per request."""

    name: str
    title: str
    per_request: int
    metrics: Sequence[Metric] = (SECONDS,)
    needs: frozenset[Feature] = frozenset({Feature.CREATE_TOPICS})
    stage: Stage = Stage.SHARED
    default: bool = True

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"topics": TOPICS, "per_request": self.per_request}

    def run(self, target: Target) -> WorkloadOutcome:
        number = next(_runs)
        names = [f"{self.name}-{number}-{index}" for index in range(TOPICS)]
        with RawConnection(target.address) as wire:
            wire.request(apis.METADATA, {"topics": []})
            try:
                seconds = sum(
                    _create(wire, names[first : first + self.per_request])
                    for first in range(0, TOPICS, self.per_request)
                )
                _wait_for_leaders(wire, names)
            except BaseException:
                # The first error is reported. The connection may still have a pending response.
                with suppress(WorkloadFailed, OSError), RawConnection(target.address) as another:
                    _delete(another, names)
                raise
            _delete(wire, names)
        return WorkloadOutcome({SECONDS.name: seconds})


def _create(wire: RawConnection, names: Sequence[str]) -> float:
    """Create topics in one request; returns the seconds until the response was received."""
    request = {
        "topics": [
            {
                "name": name,
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
            for name in names
        ],
        "timeout": TIMEOUT_MS,
        "validate_only": False,
    }
    began = time.perf_counter()
    wire.send(apis.CREATE_TOPICS, request)
    wire.wait()
    seconds = time.perf_counter() - began
    for topic in wire.receive().topics:
        must_be_none(topic.error_code, f"creating {topic.name}")
    return seconds


def _wait_for_leaders(wire: RawConnection, names: Sequence[str]) -> None:
    end = time.monotonic() + LEADERS_S
    while missing := _without_leader(wire, names):
        if time.monotonic() > end:
            raise WorkloadFailed(f"{len(missing)} topics have no leader, {missing[0]} among them")
        time.sleep(ASK_EVERY_S)


def _without_leader(wire: RawConnection, names: Sequence[str]) -> list[str]:
    response = wire.request(
        apis.METADATA,
        {
            "topics": [{"name": name, "topic_id": None} for name in names],
            "allow_auto_topic_creation": False,
        },
    )
    led = {topic.name for topic in response.topics if not topic.error_code and _is_led(topic)}
    return [name for name in names if name not in led]


def _is_led(topic: Any) -> bool:
    return len(topic.partitions) == 1 and topic.partitions[0].leader_id >= 0


def _delete(wire: RawConnection, names: Sequence[str]) -> None:
    """Delete topics. Raises WorkloadFailed if one is not deleted, because it would affect later runs."""
    if wire.version(apis.DELETE_TOPICS) >= 6:
        topics: Mapping[str, Any] = {"topics": [{"name": n, "topic_id": None} for n in names]}
    else:
        topics = {"topic_names": list(names)}
    response = wire.request(apis.DELETE_TOPICS, {**topics, "timeout": TIMEOUT_MS})
    for each in response.responses:
        must_be_none(each.error_code, f"deleting {each.name}")


WORKLOADS: tuple[CreateTopics, ...] = (
    CreateTopics("topics-one-by-one", f"create {TOPICS:,} topics, one per request", 1),
    CreateTopics("topics-at-once", f"create {TOPICS:,} topics in one request", TOPICS),
)
