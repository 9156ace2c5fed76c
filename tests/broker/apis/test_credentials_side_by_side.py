"""Tests of SCRAM credentials and client quotas with Apache Kafka 4.3 and Odradek."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from odradek.protocol import apis
from tests.broker.apis.side_by_side import Both, Values, ask
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import deadline

pytestmark = pytest.mark.interop

SHA_256, SHA_512 = 1, 2


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096) -> Values:
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"salt" * 4,
        "salted_password": b"salted" * 5,
    }


def deletion(name: str, mechanism: int = SHA_256) -> Values:
    return {"name": name, "mechanism": mechanism}


def test_scram_credentials(both: Both) -> None:
    def alter(deletions: Sequence[Values], upsertions: Sequence[Values]) -> None:
        both(apis.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=deletions, upsertions=upsertions)

    alter([], [upsertion("alice"), upsertion("bob", SHA_512, 16384)])
    alter([], [upsertion("alice", SHA_512)])
    for wrong in (
        upsertion("alice", SHA_256, 4095),
        upsertion("alice", SHA_256, 16385),
        upsertion("alice", 3),
        upsertion("alice", 0),
        upsertion(""),
    ):
        alter([], [wrong, upsertion("carol")])
    alter([], [upsertion("alice"), upsertion("alice", SHA_512)])
    alter([deletion("alice")], [upsertion("alice", SHA_512)])
    alter([deletion("alice"), deletion("alice", SHA_512)], [])
    alter([deletion("nobody"), deletion("bob"), deletion("", 9), deletion("bob", 9)], [])
    alter([], [])
    described_when(both, _has_users({"alice", "bob", "carol"}))
    for users in (None, [], ["alice"], ["alice", "nobody"], ["bob", "bob"], [""]):
        asked = users and [{"name": name} for name in users]
        both(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=asked)
    alter([deletion("alice"), deletion("bob", SHA_512)], [])
    described_when(both, _has_users({"alice", "carol"}))
    both(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)


def _has_users(wanted: set[str]) -> Callable[[BrokerProcess], bool]:
    def check(broker: BrokerProcess) -> bool:
        response = ask(broker, apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": None})
        return {each.user for each in response.results} == wanted

    return check


def described_when(both: Both, condition: Callable[[BrokerProcess], bool]) -> None:
    """Response of Kafka's broker once it has received the change from its controller."""
    for broker in both.brokers:
        with deadline(10, "the change") as check:
            while not condition(broker):
                check()


def component(kind: str, match_type: int, name: str | None = None) -> Values:
    return {"entity_type": kind, "match_type": match_type, "match": name}


EXACT, DEFAULT, ANY = 0, 1, 2

FILTERS: Sequence[list[Values]] = (
    [],
    [component("user", ANY)],
    [component("user", DEFAULT)],
    [component("user", EXACT, "alice")],
    [component("user", EXACT, "nobody")],
    [component("client-id", ANY)],
    [component("user", ANY), component("client-id", ANY)],
    [component("user", EXACT, "alice"), component("client-id", DEFAULT)],
    [component("ip", ANY)],
    [component("ip", EXACT, "10.0.0.1")],
    [component("ip", ANY), component("user", ANY)],
    [component("user", ANY), component("user", ANY)],
    [component("user", EXACT)],
    [component("user", DEFAULT, "x")],
    [component("user", ANY, "x")],
    [component("user", 9)],
    [component("hat", ANY)],
    [component("", ANY)],
)


def test_describe_client_quotas(both: Both) -> None:
    for version in apis.DESCRIBE_CLIENT_QUOTAS.versions:
        for components in FILTERS:
            for strict in (True, False):
                both(apis.DESCRIBE_CLIENT_QUOTAS, version, components=components, strict=strict)


def entry(entity: Sequence[tuple[str, str | None]], **ops: float | None) -> Values:
    """Alteration of the quotas of an entity; None removes a quota."""
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in ops.items()
        ],
    }


ALICE = [("user", "alice")]
ALTERATIONS: Sequence[list[Values]] = (
    [],
    [entry(ALICE, producer_byte_rate=1e9, consumer_byte_rate=2e9)],
    [entry(ALICE, producer_byte_rate=1e9), entry([("user", "bob")], request_percentage=12.5)],
    [entry([("user", None)], request_percentage=5000.0)],
    [entry([("user", "alice"), ("client-id", None)], consumer_byte_rate=1e9)],
    [entry([("client-id", "c"), ("user", "alice")], consumer_byte_rate=3e9)],
    [entry([("client-id", "c")], producer_byte_rate=1e9)],
    [entry([("client-id", None)], producer_byte_rate=None)],
    [entry(ALICE, producer_byte_rate=None, request_percentage=None)],
    [entry(ALICE)],
    [entry([], producer_byte_rate=1e9)],
    [entry([("user", "")], producer_byte_rate=1e9), entry([("user", "carol")])],
    [entry([("hat", "x")], producer_byte_rate=1e9)],
    [entry([("ip", "10.0.0.1"), ("user", "x")], connection_creation_rate=1.0)],
    [entry([("ip", "10.0.0.1")], producer_byte_rate=1e9)],
    [entry([("ip", "no such host.")], connection_creation_rate=1.0)],
    [entry([("ip", None)], connection_creation_rate=None)],
    [entry(ALICE, hats=1.0)],
    [entry(ALICE, producer_byte_rate=0.0)],
    [entry(ALICE, producer_byte_rate=-1.0)],
    [entry(ALICE, producer_byte_rate=1.5)],
    [entry(ALICE, consumer_byte_rate=1e19)],
    [entry(ALICE, consumer_byte_rate=4e9), entry(ALICE, consumer_byte_rate=5e9)],
)


def test_alter_client_quotas(both: Both) -> None:
    api = apis.ALTER_CLIENT_QUOTAS
    for version in api.versions:
        for entries in ALTERATIONS:
            for validate_only in (True, False):
                both(api, version, entries=entries, validate_only=validate_only)
    twice = [{"key": "producer_byte_rate", "value": 1e9, "remove": False}] * 2
    both(api, 1, entries=[{**entry(ALICE), "ops": twice}], validate_only=False)
    described_when(both, _has_quota_of_alice)
    for components in FILTERS:
        both(apis.DESCRIBE_CLIENT_QUOTAS, 1, components=components, strict=False)
    entities: list[list[tuple[str, str | None]]] = [
        [("user", "alice")],
        [("user", "bob")],
        [("user", None)],
        [("user", "alice"), ("client-id", None)],
        [("client-id", "c"), ("user", "alice")],
        [("client-id", "c")],
    ]
    nothing = dict.fromkeys(("producer_byte_rate", "consumer_byte_rate", "request_percentage"))
    both(api, 1, entries=[entry(each, **nothing) for each in entities], validate_only=False)


def _has_quota_of_alice(broker: BrokerProcess) -> bool:
    components = [component("user", EXACT, "alice")]
    values = {"components": components, "strict": True}
    response = ask(broker, apis.DESCRIBE_CLIENT_QUOTAS, 1, values)
    rates = [value.value for found in response.entries or () for value in found.values]
    return rates == [4e9]
