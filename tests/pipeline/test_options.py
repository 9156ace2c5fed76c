"""Invalid options are refused with a message that names them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from odradek.pipeline.consumer_configs import IGNORED, REFUSED
from odradek.pipeline.errors import BadOption
from odradek.pipeline.options import parse_options
from odradek.pipeline.store import open_store

GIVEN = {"kafka.bootstrap.servers": "h:9092", "subscribe": "t"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kafka.bootstrap.servers": "h"}, "kafka.bootstrap.servers=h: 'h' is not HOST:PORT"),
        ({"kafka.bootstrap.servers": ""}, "is not HOST:PORT"),
        ({"subscribe": " , "}, "subscribe= , : has no topic"),
        ({"tiered.ulr": "/tier"}, "tiered.ulr requires tiered.url"),
        ({"startingOffset": "latest"}, "startingoffset is not an option"),
        ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        ({"kafka.security.protocol": "SSL"}, "kafka.security.protocol is not supported by this source: only PLAINTEXT is supported"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit is not supported by this source"),
        ({"startingoffsets": '{"t":{"0":-3}}'}, "-3 of t-0 is not a valid value"),
        ({"endingoffsets": '{"t":{"0":7,"1":-2}}'}, "-2 of t-1 is not a valid value"),
        ({"startingoffsetsbytimestamp": '{"t":{"0":-1}}'}, "-1 of t-0 is not a valid value"),
        ({"minoffsetspertrigger": "9", "maxoffsetspertrigger": "8"}, "minOffsetsPerTrigger=9 must not exceed maxOffsetsPerTrigger=8"),
        ({"minpartitions": "many"}, "minPartitions=many: must be a whole number of at least 1"),
        ({"minpartitions": "0"}, "minPartitions=0: must be a whole number of at least 1"),
        ({"startingoffsets": "latest"}, "startingOffsets=latest is not allowed in a batch query"),
        ({"endingoffsets": "Earliest"}, "endingOffsets=earliest is not allowed"),
        ({"startingoffsets": "first"}, 'startingOffsets=first: must be JSON such as {"topic":{"0":42}}'),
        ({"startingoffsets": '{"t":5}'}, 'must be JSON such as {"topic":{"0":42}}'),
        ({"startingoffsets": '{"t":{"0":"x"}}'}, 'must be JSON such as {"topic":{"0":42}}'),
        ({"startingoffsets": '[]'}, 'must be JSON such as {"topic":{"0":42}}'),
        ({"startingoffsets": '{"t":{"0":1e999}}'}, 'must be JSON such as {"topic":{"0":42}}'),
        ({"startingoffsets": '{"t":{"0":1,"topicId":5}}'}, "startingOffsets={"),
        ({"startingoffsetsbytimestamp": '{"t":[5]}'}, 'must be JSON such as {"topic":{"0":42}}'),
        ({"subscribe": None, "assign": '{"t":0}'}, 'assign={"t":0}: must be JSON such as {"topic":[0,1]}'),
        ({"subscribe": None, "assign": "t"}, 'assign=t: must be JSON such as {"topic":[0,1]}'),
        ({"startingoffsets": '{"t":{"0":10.7}}'}, 'must be JSON such as {"topic":{"0":42}}'),
        ({"startingoffsets": '{"t":{"0":true}}'}, 'must be JSON such as {"topic":{"0":42}}'),
        ({"startingoffsets": '{"t":{"0":"1_0"}}'}, 'must be JSON such as {"topic":{"0":42}}'),
        ({"subscribe": None, "assign": '{"t":[1.5]}'}, 'must be JSON such as {"topic":[0,1]}'),
        ({"subscribe": None, "assign": '{"t":[]}'}, "assign={\"t\":[]}: has no partition"),
        ({"subscribe": None, "assign": '{}'}, "assign={}: has no partition"),
        ({"tiered.url": ""}, "tiered.url=: is empty"),
        ({"pushfilters": "maybe"}, "pushFilters=maybe"),
        ({"startingtimestamp": str(1 << 63)}, "startingTimestamp=9223372036854775808: 9223372036854775808 does not fit into 64 bits"),
        ({"endingoffsets": f'{{"t":{{"0":{1 << 63}}}}}'}, "9223372036854775808 does not fit into 64 bits"),
        ({"maxlateness": "999999999999d"}, "does not fit into 64 bits"),
        ({"kafka.fetch.max.bytes": "2147483648"}, "kafka.fetch.max.bytes=2147483648: 2147483648 does not fit into 32 bits"),
        ({"kafka.request.timeout.ms": "99999999999"}, "99999999999 does not fit into 32 bits"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(given: dict[str, str | None], message: str) -> None:
    named = {name: text for name, text in {**GIVEN, **given}.items() if text is not None}
    with pytest.raises(BadOption) as caught:
        parse_options(named, streaming=False)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushFilters"]
)
def test_batch_only_options_are_refused_for_streams(name: str) -> None:
    with pytest.raises(
        BadOption, match=f"^{name} is only allowed in batch queries, not in a stream$"
    ):
        parse_options({**GIVEN, name: "latest"}, streaming=True)


def test_options_that_do_not_change_the_records_are_ignored() -> None:
    """So a query of Spark's own source works after its format was changed."""
    given = {
        "groupIdPrefix": "reports",
        "kafka.group.id": "reports",
        "kafkaConsumer.pollTimeoutMs": "120000",
        "fetchOffset.numRetries": "5",
        "kafka.max.partition.fetch.bytes": "10485760",
        "kafka.retry.backoff.ms": "200",
        "kafka.client.rack": "a",
        "kafka.security.protocol": "PLAINTEXT",
        "kafka.exclude.internal.topics": "true",
    }
    plain = parse_options(GIVEN, streaming=False)
    assert parse_options({**GIVEN, **given}, streaming=False) == plain


KAFKAS = """
    allow.auto.create.topics auto.commit.interval.ms auto.offset.reset bootstrap.servers check.crcs client.dns.lookup
    client.id client.rack config.providers connections.max.idle.ms default.api.timeout.ms enable.auto.commit
    enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id
    group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms interceptor.classes
    internal.throw.on.fetch.stable.offset.unsupported isolation.level key.deserializer max.partition.fetch.bytes
    max.poll.interval.ms max.poll.records metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms
    metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
    partition.assignment.strategy receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms
    request.timeout.ms retry.backoff.max.ms retry.backoff.ms security.protocol security.providers send.buffer.bytes
    session.timeout.ms share.acknowledgement.mode share.acquire.mode socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms value.deserializer
    sasl.jaas.config sasl.mechanism ssl.truststore.location ssl.engine.factory.class
"""
"""All configs of Kafka's consumer (`ConsumerConfig.configNames()` of 4.3.0), except for most of sasl.… and ssl.…"""
SERVED = {"bootstrap.servers", "fetch.max.bytes", "isolation.level", "request.timeout.ms"}


@pytest.mark.parametrize("name", sorted({*KAFKAS.split()} - SERVED))
def test_kafka_consumer_configs_are_ignored_or_refused_with_a_reason(
    name: str,
) -> None:
    given = {**GIVEN, f"kafka.{name}": "1"}
    if name in IGNORED:
        plain = parse_options(GIVEN, streaming=False)
        assert parse_options(given, streaming=False) == plain
        return
    with pytest.raises(
        BadOption, match=f"^kafka.{re.escape(name)} is not supported by this source: "
    ):
        parse_options(given, streaming=False)


def test_ignored_configs_are_kafkas() -> None:
    assert {*IGNORED, *REFUSED, *SERVED} == {
        each for each in KAFKAS.split() if not each.startswith(("sasl.", "ssl."))
    }
    for name in ("retry.backoff.ms", "kafka.retry.backoff.mss", "sasl.mechanism"):
        with pytest.raises(BadOption, match=f"^{name} is not an option of this source"):
            parse_options({**GIVEN, name: "1"}, streaming=False)


def test_directory_is_converted_to_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given, called in (("tier", str(tmp_path / "tier")), ("s3://b/p", "s3://b/p")):
        found = parse_options({**GIVEN, "tiered.url": given}, streaming=False)
        assert found.tiered_url == called


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("{}/tiers", {}),
        ("file://{}/tiers", {}),
        ("{}", {}),  # exists, but is not a store
        ("file://{}", {"prefix": "history"}),
    ],
)
def test_missing_directory_is_not_created(
    tmp_path: Path, form: str, options: dict[str, str]
) -> None:
    target = form.format(tmp_path)
    with pytest.raises(
        BadOption,
        match=rf"^tiered.url is {target}, and {tmp_path}/\S+ is not a directory: give the",
    ):
        open_store(target, options)
    assert not any(tmp_path.iterdir())
