"""SCRAM credentials and client quotas: Apache Kafka 4.3 and us, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from odradek.protocol import apis
from tests.broker.apis_admin.side_by_side import Both, Values, ask
from tests.interop.broker_process import BrokerProcess, deadline

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
        answer = ask(broker, apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": None})
        return {each.user for each in answer.results} == wanted

    return check


def described_when(both: Both, condition: Callable[[BrokerProcess], bool]) -> None:
    """Kafka's broker hears of changes from its controller, a moment later."""
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
