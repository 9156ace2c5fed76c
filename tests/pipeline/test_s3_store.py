"""Segments that a broker has copied to S3 are read from there, with obstore's requests."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.pipeline.errors import DeniedSegment
from odradek.pipeline.options import parse_options
from odradek.pipeline.planning import BrokerRange, flatten_ranges
from odradek.pipeline.query import Query
from odradek.pipeline.segment_columns import SegmentSlice
from odradek.testing import Broker
from tests.pipeline.tiering import QUICK, TIERED
from tests.support.spark_reading import by_consumer, by_tasks

if TYPE_CHECKING:
    from odradek.bench.s3_server import S3Server

pytestmark = pytest.mark.interop
TIMEOUT_SECONDS = 60.0


def test_records_in_s3_are_read(tmp_path: Path, s3_server: S3Server) -> None:
    url = s3_server.new_store()
    settings = {f"rsm.config.{name}": value for name, value in s3_server.options.items()}
    with Broker(tiered=url, data=tmp_path / "data", configs={**QUICK, **settings}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        (made,) = admin.create_topics([NewTopic("events", 1, config=TIERED)]).values()
        made.result(30)
        producer, random = (
            Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 3000}),
            Random(1),
        )
        for number in range(2000):
            producer.produce("events", key=b"%d" % number, value=random.randbytes(100), partition=0)
        producer.flush()
        options = {
            "tiered.url": url,
            "subscribe": "events",
            "maxBytesPerTask": 50_000,
            **{f"tiered.{name}": value for name, value in s3_server.options.items()},
        }
        both = {**options, "kafka.bootstrap.servers": broker.bootstrap}
        _wait_until_tiered(broker)
        expected = by_consumer(broker.bootstrap, "events", [0])
        assert by_tasks(both) == expected
        query = Query(parse_options({k: str(v) for k, v in both.items()}, streaming=False))
        pieces = list(flatten_ranges(query.plan(query.ranges()).pieces))
        assert [type(each) for each in pieces][-2:] == [SegmentSlice, BrokerRange]
        alone = by_tasks(options)
        assert alone == expected[: len(alone)]
        assert len(alone) > 1000
        with pytest.raises(DeniedSegment, match=r"give .* credentials"):
            by_tasks({**options, "tiered.aws_secret_access_key": "another"})


def _wait_until_tiered(broker: Broker) -> None:
    """Wait until all but the active segment are copied and deleted locally."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        found = broker.node.partitions.opened("events", 0)
        if found is not None and found.log.local_log_start_offset > 1000:
            return
        assert time.monotonic() < deadline, "nothing was tiered"
        time.sleep(0.1)
