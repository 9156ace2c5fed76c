"""Private tagged fields of Metadata for the produce gateways of diskless topics (KIP-1163, KIP-1164, D-24).

| message | field | tag | type |
|---|---|---|---|
| Metadata request | `RACK_OF_CLIENT` | 21640 | string; empty if the client has no rack |
| Metadata response, partition | `PREFERRED_BROKERS` | 21640 | array of int32: broker ids |

KIP-1163 adds the fields in a later version of Metadata. Clients of Apache Kafka do not send the first field, and only
responses to requests with it have the second one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from odradek.protocol import messages
from odradek.protocol.codec.structure import FieldPlan, Structure
from odradek.protocol.codec.writing import compile_writer

PREFERRED_BROKERS: Final = FieldPlan(
    "preferred_produce_brokers", "int32", (), is_array=True, tag=messages.RACK_OF_CLIENT.tag
)
_writers: dict[int, Callable[[Any], bytes]] = {}


def metadata_topic_writer(version: int) -> Callable[[Any], bytes]:
    """Returns a function that encodes a topic of a Metadata response with `preferred_produce_brokers`."""
    write = _writers.get(version)
    if write is None:
        topic = _struct_in(messages.structure_of(3, version, "response"), "topics")
        partition = _struct_in(topic, "partitions")
        extended = replace(
            partition,
            tagged=(*partition.tagged, PREFERRED_BROKERS),
            unknown_names=lambda names: partition.unknown_names(names - {PREFERRED_BROKERS.name}),
        )
        fields = (
            replace(each, of=extended) if each.name == "partitions" else each
            for each in topic.plain
        )
        write = _writers[version] = compile_writer(replace(topic, plain=tuple(fields)))
    return write


def _struct_in(structure: Structure, name: str) -> Structure:
    """Structure of the items of an array."""
    of = next(each.of for each in structure.plain if each.name == name)
    assert of is not None
    return of
