"""Server-side assignors of consumer groups (KIP-848). No state, no I/O."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.broker.groups.assignors import range_assignor, uniform_assignor
from odradek.broker.groups.assignors.spec import Assign

ASSIGNORS: Mapping[str, Assign] = {
    uniform_assignor.NAME: uniform_assignor.assign,
    range_assignor.NAME: range_assignor.assign,
}
"""Assignors by the name in heartbeats and in `group.consumer.assignors`."""
CLASSES: Mapping[str, str] = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": uniform_assignor.NAME,
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": range_assignor.NAME,
}
"""Kafka's class names, which `group.consumer.assignors` also accepts."""
