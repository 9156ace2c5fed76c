"""Transaction coordinator on another broker, with scripted responses."""

from __future__ import annotations

from typing import Any

from odradek.protocol.apis import ADD_PARTITIONS_TO_TXN
from odradek.protocol.errors import ErrorCode
from tests.support.scripted_broker import ReceivedRequest

NONE = ErrorCode.none


class Coordinator:
    """The coordinator of another broker; the error code depends on the partition index."""

    def __init__(self) -> None:
        self.codes: dict[int, ErrorCode] = {}
        self.error = NONE
        self.instead: Any = None

    def __call__(self, asked: ReceivedRequest) -> Any:
        if asked.api is not ADD_PARTITIONS_TO_TXN or self.instead is not None:
            return self.instead if asked.api is ADD_PARTITIONS_TO_TXN else None
        results = [
            {
                "transactional_id": each.transactional_id,
                "topic_results": [
                    {
                        "name": topic.name,
                        "results_by_partition": [
                            {
                                "partition_index": index,
                                "partition_error_code": self.codes.get(index, NONE),
                            }
                            for index in topic.partitions
                        ],
                    }
                    for topic in each.topics
                ],
            }
            for each in asked.body.transactions
        ]
        refused = self.error is not NONE
        return {"error_code": self.error, "results_by_transaction": [] if refused else results}
