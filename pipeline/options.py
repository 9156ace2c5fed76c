"""Options of the source: those of Spark's Kafka source, with the same names, and `tiered.url`.

Options that Spark's source refuses are refused here: two ways to select topics, invalid offsets, and consumer
configs that a table does not allow. Other Kafka consumer configs (`kafka.*`) are known by name: they are ignored if
they do not change which records are read, and refused otherwise if they are not supported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from odradek.pipeline.consumer_configs import is_ignored_config, refusal_reason
from odradek.pipeline.decoding.schema import BATCHES, BINARY, JSON, RECORDS
from odradek.pipeline.errors import BadOption
from odradek.protocol.uuids import uuid_from_text

FETCH_BYTES = 4 << 20
"""Default bytes of a fetch. Buffers of this size are reused; much larger ones use new pages, which cost more than
everything else of a fetch.
"""
TRIGGER_DELAY_MS = 15 * 60 * 1000
REPORT = "report"
"""Value of `onCorruptSegment`: gaps are rows."""
EARLIEST, LATEST = -2, -1
"""Special offsets, as in Spark's JSON."""
TOPIC_ID = "topicId"
"""Key in a stream's offsets, next to a topic's partitions, with the topic's id (`stream_offsets.py`)."""
BEGIN = "begin"
"""Key in a stream's offsets with the start of the first batch."""

OF_ROWS = ("rows", "valueformat", "includeheaders")
"""Options for the row format, in lower case."""

_TOPIC_OPTIONS = ("subscribe", "subscribepattern", "assign")
_KAFKA = "kafka."
_IGNORED = frozenset(
    (
        "groupidprefix",
        "kafkaconsumer.polltimeoutms",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
    )
)
"""Options of Spark's source that only affect how it sends requests."""


@dataclass(frozen=True)
class OffsetSpec:
    """Start or end of a read; exactly one field is set, for all partitions or by partition."""

    everywhere: int | None = None
    """EARLIEST or LATEST."""
    offsets: Mapping[str, Mapping[int, int]] | None = None
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    """Topic ids to which the `offsets` belong, to detect recreated topics."""
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[str, Mapping[int, int]] | None = None


@dataclass(frozen=True)
class SourceOptions:
    """Parsed options. Sizes are in bytes, times in ms."""

    bootstrap: str | None
    tiered_url: str | None
    """Address of the remote tier as configured on the brokers: a URL or a directory."""
    store_options: Mapping[str, str]
    """Further options of the object store, without the prefix `tiered.`."""
    subscribe: tuple[str, ...] = ()
    pattern: str | None = None
    assign: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    starting: OffsetSpec | None = None
    ending: OffsetSpec = OffsetSpec(everywhere=LATEST)
    missing_timestamp_is_latest: bool = False
    """startingOffsetsByTimestampStrategy=latest: begin at the log end if no record is late enough."""
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = TRIGGER_DELAY_MS
    """Maximum ms after a batch for which the next one waits for `min_offsets_per_trigger`; 0 does not wait."""
    fail_on_data_loss: bool = True
    read_committed: bool = False
    request_timeout_ms: int = 30_000
    fetch_max_bytes: int = FETCH_BYTES
    task_bytes: int | None = None
    """`maxBytesPerTask`: approximate bytes of the store that one task reads; more if the driver would have too many
    tasks. None: chosen by the query.
    """
    corrupt_segments: str = "fail"
    """`onCorruptSegment`: "fail", "skip" unreadable offsets and log them, or "report" them as rows whose column gap is set."""

    rows: str = RECORDS
    """Whether a row is a record or a batch."""
    value_format: str = BINARY
    """`valueFormat`: binary, or JSON with the fields of the schema's `value`."""
    push_filters: bool = False
    """`pushFilters`: the query's filters skip segments, batches and records before Spark evaluates them."""
    max_lateness_ms: int | None = None
    """`maxLateness` in ms: no record is older by more than this than an earlier one of its partition. The user
    guarantees this; the log does not.
    """

    @property
    def starts_at_latest(self) -> bool:
        """Whether a stream begins at the end of a partition, which changes with each request."""
        at = self.starting
        if at is None or at.everywhere is not None:
            return at is None or at.everywhere == LATEST
        if at.offsets is not None:
            return any(LATEST in each.values() for each in at.offsets.values())
        return self.missing_timestamp_is_latest

    @property
    def leaves_out_aborted(self) -> bool:
        """Whether aborted transactions must be known; batches are returned in any case."""
        return self.read_committed and self.rows == RECORDS

    def includes_topic(self, topic: str) -> bool:
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.subscribe or topic in self.assign

    def includes_partition(self, topic: str, partition: int) -> bool:
        return self.includes_topic(topic) and partition in self.assign.get(topic, (partition,))


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse options. Raises BadOption with what is wrong and what is valid."""
    options = {name.lower(): value for name, value in given.items() if name != "path"}
    read = _OptionReader(options, streaming)
    topics = [name for name in _TOPIC_OPTIONS if name in options]
    if len(topics) != 1:
        raise BadOption("exactly one of subscribe, subscribePattern and assign must be set")
    bootstrap, url, settings = _read_sources(read, streaming)
    delay_ms = read.checked("maxtriggerdelay", duration_ms)
    made = SourceOptions(
        bootstrap=bootstrap,
        tiered_url=url,
        store_options=settings,
        subscribe=read.checked("subscribe", _names) or (),
        pattern=read.checked("subscribepattern", _pattern),
        assign=read.checked("assign", _assignment) or {},
        starting=read.position("starting"),
        ending=(None if streaming else read.position("ending")) or OffsetSpec(everywhere=LATEST),
        missing_timestamp_is_latest=read.choice(
            "startingoffsetsbytimestampstrategy", ("error", "latest"), "error"
        )
        == "latest",
        min_partitions=read.number("minpartitions", 1),
        max_records_per_partition=read.number("maxrecordsperpartition", 1),
        max_offsets_per_trigger=read.number("maxoffsetspertrigger", 1),
        min_offsets_per_trigger=read.number("minoffsetspertrigger", 1),
        max_trigger_delay_ms=TRIGGER_DELAY_MS if delay_ms is None else delay_ms,
        fail_on_data_loss=read.flag("failondataloss", True),
        read_committed=read.choice(
            "kafka.isolation.level", ("read_uncommitted", "read_committed"), "read_uncommitted"
        )
        == "read_committed",
        request_timeout_ms=read.number("kafka.request.timeout.ms", 1, bits=32) or 30_000,
        fetch_max_bytes=read.number("kafka.fetch.max.bytes", 1, bits=32) or FETCH_BYTES,
        task_bytes=read.number("maxbytespertask", 1),
        corrupt_segments=read.choice("oncorruptsegment", ("fail", "skip", REPORT), "fail"),
        rows=read.choice("rows", (RECORDS, BATCHES), RECORDS),
        value_format=read.choice("valueformat", (BINARY, JSON), BINARY),
        push_filters=not streaming and read.flag("pushfilters", False),
        max_lateness_ms=read.checked("maxlateness", duration_ms),
    )
    read.flag("includeheaders", False)  # used by the schema
    read.refuse_the_rest()
    _check_combinations(made)
    return made


def _read_sources(
    read: _OptionReader, streaming: bool
) -> tuple[str | None, str | None, Mapping[str, str]]:
    """Read the bootstrap servers, the URL of the object store and its options. Raises BadOption."""
    bootstrap = read.checked("kafka.bootstrap.servers", _bootstrap)
    url = read.checked("tiered.url", store_url)
    if bootstrap is None and url is None:
        raise BadOption(
            "at least one of kafka.bootstrap.servers (the brokers) and tiered.url (the remote"
            " storage) must be set"
        )
    settings = read.below("tiered.")
    if url is None and settings:
        names = ", ".join(f"tiered.{name}" for name in sorted(settings))
        raise BadOption(f"{names} requires tiered.url")
    if bootstrap is None and streaming:
        raise BadOption(
            "a stream requires kafka.bootstrap.servers, because new records are read from the"
            " brokers"
        )
    return bootstrap, url, settings


def _check_combinations(made: SourceOptions) -> None:
    """Raise BadOption for options that do not go together."""
    if (made.min_offsets_per_trigger or 0) > (made.max_offsets_per_trigger or 1 << 62):
        raise BadOption(
            f"minOffsetsPerTrigger={made.min_offsets_per_trigger} must not exceed"
            f" maxOffsetsPerTrigger={made.max_offsets_per_trigger}"
        )
    if made.value_format == JSON and made.rows == BATCHES:
        raise BadOption(f"valueFormat={JSON} is not allowed with rows={BATCHES}")


def without_prefixes(given: Mapping[str, str], *prefixes: str) -> dict[str, str]:
    """Return the options, with lower-case names, without those with one of these prefixes. Options are
    case-insensitive.
    """
    options = {name.lower(): value for name, value in given.items()}
    return {name: value for name, value in options.items() if not name.startswith(prefixes)}


_SPELT = {
    name.lower(): name
    for name in (
        "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets",
        "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "minPartitions",
        "maxRecordsPerPartition", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
        "includeHeaders", "failOnDataLoss", "maxBytesPerTask", "onCorruptSegment", "rows",
        "pushFilters", "maxLateness", "valueFormat",
    )
}  # fmt: skip
"""Spelling of options by lower-case name, because Spark passes lower-case names."""
_OF_BATCHES = ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp", "pushfilters")


class _OptionReader:
    """Reads options by lower-case name, and records which are known."""

    def __init__(self, options: Mapping[str, str], streaming: bool) -> None:
        self._options = options
        self._streaming = streaming
        self._known: set[str] = set()

    def text(self, name: str) -> str | None:
        self._known.add(name)
        return self._options.get(name)

    def below(self, prefix: str) -> dict[str, str]:
        """Return the options with a prefix, without the prefix."""
        names = [n for n in self._options if n.startswith(prefix) and n not in self._known]
        self._known.update(names)
        return {name.removeprefix(prefix): self._options[name] for name in names}

    def checked(self, name: str, parse: Callable[[str], Any]) -> Any:
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise BadOption(f"{_SPELT.get(name, name)}={text}: {error}") from None

    def number(self, name: str, least: int, *, bits: int = 64) -> int | None:
        """Parse a whole number; `bits` is its size in a request, including the sign."""

        def parse(text: str) -> int:
            try:
                number = int(text)
            except ValueError:
                number = least - 1
            if number < least:
                raise ValueError(f"must be a whole number of at least {least}")
            return _within(bits, number)

        found: int | None = self.checked(name, parse)
        return found

    def choice(self, name: str, among: tuple[str, ...], default: str) -> str:
        def parse(text: str) -> str:
            if text.lower() not in among:
                raise ValueError(f"must be one of {', '.join(among)}")
            return text.lower()

        return self.checked(name, parse) or default

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def position(self, which: str) -> OffsetSpec | None:
        """Return the start or end; of several options the one that Spark prefers."""
        end = LATEST if which == "ending" else None
        at = self.number(f"{which}timestamp", 0)
        times = self.checked(f"{which}offsetsbytimestamp", partial(_by_partition, least=0))
        offsets = self.text(f"{which}offsets")
        if at is not None:
            return OffsetSpec(timestamp_ms=at)
        if times is not None:
            return OffsetSpec(timestamps_ms=times)
        if offsets is None:
            return None
        if offsets.lower() == "latest":
            if end is None and not self._streaming:
                raise BadOption(
                    "startingOffsets=latest is not allowed in a batch query: use earliest, or JSON"
                )
            return OffsetSpec(everywhere=LATEST)
        if offsets.lower() == "earliest":
            if end is not None:
                raise BadOption("endingOffsets=earliest is not allowed: use latest, or JSON")
            return OffsetSpec(everywhere=EARLIEST)
        least = EARLIEST if end is None else LATEST
        found: OffsetSpec = self.checked(f"{which}offsets", partial(_offsets, least=least))
        return found

    def refuse_the_rest(self) -> None:
        for name, value in sorted(self._options.items()):
            if name in self._known or name in _IGNORED:
                continue
            of_kafka = name.removeprefix(_KAFKA) if name.startswith(_KAFKA) else ""
            if is_ignored_config(of_kafka, value):
                continue
            if name in _OF_BATCHES:  # known for batch queries only
                raise BadOption(f"{_SPELT[name]} is only allowed in batch queries, not in a stream")
            if (why := refusal_reason(of_kafka)) is not None:
                raise BadOption(f"{name} is not supported by this source: {why}")
            raise BadOption(f"{name} is not an option of this source (docs/pipeline.md)")


def store_url(text: str) -> str:
    """Return the absolute directory of a path or a `file://` URL, because tasks have other working directories than
    the driver; another URL is returned unchanged. Raises ValueError.
    """
    from odradek.storage.tiered.store_location import directory_of

    directory = directory_of(text)
    return text if directory is None else str(directory)


def _bootstrap(text: str) -> str:
    from odradek.client.metadata import parse_bootstrap

    parse_bootstrap(text)
    return text


def _names(text: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise ValueError("has no topic")
    return found


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return text


def _assignment(text: str) -> dict[str, tuple[int, ...]]:
    with _json_such_as('{"topic":[0,1]}'):
        found = {
            topic: tuple(sorted({_whole(each) for each in partitions}))
            for topic, partitions in json.loads(text).items()
        }
    if not found or not all(found.values()):
        raise ValueError("has no partition")
    return found


def _offsets(text: str, *, least: int) -> OffsetSpec:
    """Parse Spark's JSON of offsets, or a stream's with topic ids and the start of its first batch."""
    with _json_such_as(_OF_PARTITIONS):
        given = {topic: dict(each) for topic, each in json.loads(text).items()}
    for each in given.values():
        each.pop(BEGIN, None)
    ids = {topic: each.pop(TOPIC_ID) for topic, each in given.items() if TOPIC_ID in each}
    return OffsetSpec(
        offsets=_partitions(given, least),
        topic_ids={topic: uuid_from_text(str(id)) for topic, id in ids.items()},
    )


def _by_partition(text: str, *, least: int) -> dict[str, dict[int, int]]:
    with _json_such_as(_OF_PARTITIONS):
        given = json.loads(text)
    return _partitions(given, least)


def _partitions(given: Mapping[str, Mapping[str, Any]], least: int) -> dict[str, dict[int, int]]:
    with _json_such_as(_OF_PARTITIONS):
        found = {
            topic: {_whole(partition): _whole(value) for partition, value in partitions.items()}
            for topic, partitions in given.items()
        }
    for topic, partitions in found.items():
        for partition, value in partitions.items():
            if _int64(value) < least:
                raise ValueError(f"{value} of {topic}-{partition} is not a valid value")
    return found


def _whole(given: Any) -> int:
    """Parse a whole number, or a string of one; `10.7` and `true` are invalid. Raises ValueError."""
    if isinstance(given, bool) or re.fullmatch(r"-?[0-9]+", str(given)) is None:
        raise ValueError("not a whole number")
    return int(given)


_OF_PARTITIONS = '{"topic":{"0":42}}'


@contextmanager
def _json_such_as(example: str) -> Iterator[None]:
    """Replace Python's errors for JSON of another structure by one with an example. Raises ValueError."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise ValueError(f"must be JSON such as {example}") from None


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str) -> int:
    """Parse a duration such as `1h` to ms; a number without a unit is in ms. Raises ValueError."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if found is None or (found[2] or "ms") not in _UNITS_MS:
        raise ValueError("must be a duration: a number and a unit (ms, s, m, h, d)")
    return _int64(int(found[1]) * _UNITS_MS[found[2] or "ms"])


def _int64(number: int) -> int:
    """Check that an offset or timestamp has at most 64 bits. Raises ValueError."""
    return _within(64, number)


def _within(bits: int, number: int) -> int:
    """Check that a number fits into a signed integer of `bits` bits. Raises ValueError."""
    if number >= 1 << bits - 1:
        raise ValueError(f"{number} does not fit into {bits} bits")
    return number
