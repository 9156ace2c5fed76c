"""The bytes of the writer of Produce responses equal those of the compiled writer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol import messages
from odradek.protocol.apis import PRODUCE
from odradek.protocol.leader_tags import NodeEndpoint
from odradek.protocol.produce_response_writer import (
    ProducedPartition,
    ProducedTopic,
    write_produce_response,
)

VERSIONS = list(PRODUCE.versions)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
texts = st.none() | st.text(max_size=150)
partitions = st.builds(
    ProducedPartition,
    index=int32,
    error_code=st.integers(-1, 133),
    base_offset=int64,
    log_append_time_ms=st.integers(-1, 2**41),
    log_start_offset=int64,
    record_errors=st.lists(st.tuples(int32, texts), max_size=3),
    error_message=texts,
    current_leader=st.none() | st.tuples(int32, int32),
)
endpoints = st.builds(
    NodeEndpoint, node_id=int32, host=st.text(max_size=150), port=int32, rack=texts
)
topics = st.tuples(st.text(max_size=150), st.none() | st.uuids(), st.lists(partitions, max_size=3))


def as_values(topic: ProducedTopic) -> dict[str, object]:
    name, topic_id, partitions = topic
    return {
        "name": name,
        "topic_id": topic_id,
        "partition_responses": [
            {
                "index": each.index,
                "error_code": each.error_code,
                "base_offset": each.base_offset,
                "log_append_time": each.log_append_time_ms,
                "log_start_offset": each.log_start_offset,
                "record_errors": [
                    {"batch_index": index, "batch_index_error_message": reason}
                    for index, reason in each.record_errors
                ],
                "error_message": each.error_message,
                **(
                    {}
                    if each.current_leader is None
                    else {
                        "current_leader": {
                            "leader_id": each.current_leader[0],
                            "leader_epoch": each.current_leader[1],
                        }
                    }
                ),
            }
            for each in partitions
        ],
    }


@pytest.mark.parametrize("version", VERSIONS)
@given(
    wanted=st.lists(topics, max_size=3),
    throttle_time_ms=st.integers(0, 2**31 - 1),
    nodes=st.lists(endpoints, max_size=2),
)
def test_every_version_equals_the_compiled_writer(
    version: int, wanted: list[ProducedTopic], throttle_time_ms: int, nodes: list[NodeEndpoint]
) -> None:
    values = {
        "responses": [as_values(topic) for topic in wanted],
        "throttle_time": throttle_time_ms,
        "node_endpoints": [
            {"node_id": each.node_id, "host": each.host, "port": each.port, "rack": each.rack}
            for each in nodes
        ],
    }
    written = write_produce_response(version, wanted, throttle_time_ms, nodes)
    assert written == messages.write_response(PRODUCE.key, version, values)
