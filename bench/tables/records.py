"""Generates the records of the two topics: batches like those of a Java producer (16 KiB), sent repeatedly.

The records of a batch are drawn from a seed, and a topic has `POOL` different batches; later sends change only the
base timestamp. The bytes are those of real batches, the brokers do not wait for the generator, and the expected result
of each query is known.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from odradek.protocol.records.batch import CRC_START
from odradek.protocol.records.compression import LZ4, NONE
from odradek.protocol.records.crc32c import crc32c
from odradek.protocol.records.records import Record, build_batch

PARTITIONS = 4
BATCH_BYTES = 16384
"""`batch.size` of Java's producer, by default."""
POOL = 128
START_MS = 1_790_000_000_000
DAY_MS = 86_400_000
DAYS = 30

JSON_BYTES, SMALL_BYTES = 1024, 100
CARRIERS = ("AA", "AS", "B6", "DL", "EV", "F9", "UA", "WN")
_TEXT = (
    "about above across after again along amber anchor artist apple arrow autumn basket beacon before"
    " better border bottle branch bridge bright broken butter button candle canvas carbon castle circle"
    " coffee copper corner cotton cradle damage dollar double dragon driver eleven engine fabric falcon"
)
_WORDS = _TEXT.split()
_BASE_TIMESTAMP_AT, _MAX_TIMESTAMP_AT, _CRC_AT = 27, 35, 17


@dataclass(frozen=True)
class Topic:
    """The properties of a topic: `batch_records` records per batch, each with `record_bytes` of key and value."""

    name: str
    title: str
    record_bytes: int
    codec: int
    batch_records: int
    make: Callable[[random.Random, int], tuple[bytes | None, bytes]]
    """Returns the key and the value of a record, by its number."""


def _order(chance: random.Random, number: int) -> tuple[bytes | None, bytes]:
    order = {
        "id": chance.randrange(1 << 53),
        "carrier": CARRIERS[number % len(CARRIERS)],
        "amount": _amount(chance),
        "customer": f"{chance.randrange(1 << 64):016x}",
        "position": [chance.uniform(-90, 90), chance.uniform(-180, 180)],
        "tags": {word: chance.randrange(1000) for word in chance.sample(_WORDS, 6)},
        "text": "",
    }
    key = b"order-%010d" % number
    missing = JSON_BYTES - len(key) - len(json.dumps(order))
    words = ""
    while len(words) < missing:
        words += f"{chance.choice(_WORDS)} "
    order["text"] = words[:missing]
    return key, json.dumps(order).encode()


def _amount(chance: random.Random) -> int:
    return chance.randrange(1, 100_000)


def _small(chance: random.Random, number: int) -> tuple[bytes | None, bytes]:
    return None, chance.randbytes(SMALL_BYTES)


ORDERS = Topic("orders", "1 KiB of JSON, lz4", JSON_BYTES, LZ4, 32, _order)
SMALL = Topic("small", "100 bytes, uncompressed", SMALL_BYTES, NONE, 146, _small)
WARM_UP = Topic("warm-up", ORDERS.title, JSON_BYTES, LZ4, 32, _order)
"""A small topic with the records of the first one, for the warm-up of an application."""


@dataclass(frozen=True)
class TopicContent:
    """A topic with `batches` batches in each partition."""

    topic: Topic
    batches: int

    @property
    def records(self) -> int:
        return PARTITIONS * self.batches * self.topic.batch_records

    @property
    def record_bytes(self) -> int:
        """Return the bytes of keys and values."""
        return self.records * self.topic.record_bytes

    @property
    def step_ms(self) -> int:
        """Return the time between two records of a partition."""
        return max(1, DAYS * DAY_MS // (self.batches * self.topic.batch_records))

    def at_ms(self, batch: int) -> int:
        """Return the timestamp of a batch's first record, in each partition."""
        return START_MS + batch * self.topic.batch_records * self.step_ms

    def hour_ms(self) -> tuple[int, int]:
        """Return the start and the end (exclusive) of one hour in the middle of the thirty days."""
        begin = self.at_ms(self.batches // 2) + 1
        return begin, begin + 3_600_000

    def records_between(self, since_ms: int, until_ms: int) -> int:
        """Return the number of records from the first timestamp to before the second."""
        count = self.batches * self.topic.batch_records

        def before(at_ms: int) -> int:
            return min(count, max(0, -(-(at_ms - START_MS) // self.step_ms)))

        return PARTITIONS * (before(until_ms) - before(since_ms))

    def total_amount(self) -> int:
        """Return the sum of `amount` over all orders."""
        amounts = pool(self.topic, self.step_ms).amounts
        whole, rest = divmod(self.batches, POOL)
        return PARTITIONS * (whole * sum(amounts) + sum(amounts[:rest]))

    def batch(self, number: int) -> bytes:
        """Return the bytes of a batch, which are the same in all partitions."""
        data = bytearray(pool(self.topic, self.step_ms).batches[number % POOL])
        begin = self.at_ms(number)
        end = begin + (self.topic.batch_records - 1) * self.step_ms
        data[_BASE_TIMESTAMP_AT:_MAX_TIMESTAMP_AT] = begin.to_bytes(8, "big")
        data[_MAX_TIMESTAMP_AT : _MAX_TIMESTAMP_AT + 8] = end.to_bytes(8, "big")
        crc = crc32c(memoryview(data)[CRC_START:])
        data[_CRC_AT : _CRC_AT + 4] = crc.to_bytes(4, "big")
        return bytes(data)


@dataclass(frozen=True)
class Pool:
    """The different batches of a topic, and the sum of the orders in each."""

    batches: Sequence[bytes]
    amounts: Sequence[int]


@cache
def pool(topic: Topic, step_ms: int) -> Pool:
    """Generate the batches in about a second, with `step_ms` between records."""
    chance = random.Random(topic.name)
    batches, amounts = [], []
    for number in range(POOL):
        records, amount = [], 0
        for index in range(topic.batch_records):
            key, value = topic.make(chance, number * topic.batch_records + index)
            records.append(Record(index, index * step_ms, key, value))
            amount += json.loads(value)["amount"] if topic.codec == LZ4 else 0
        batches.append(bytes(build_batch(records, compression=topic.codec)))
        amounts.append(amount)
    return Pool(batches, amounts)


def content(topic: Topic, record_bytes: int) -> TopicContent:
    """Size the contents to about this number of bytes."""
    batch_bytes = topic.batch_records * topic.record_bytes
    return TopicContent(topic, max(1, record_bytes // (batch_bytes * PARTITIONS)))
