"""Tests of `odradek acls` with a broker that has an authorizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.cli.command_line import CommandLine
from tests.support.broker_process import BrokerProcess
from tests.support.odradek_process import start_odradek
from tests.support.real_kafka import start_kafka

Acls = Callable[..., list[dict[str, str]]]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    kafka = os.environ.get("ODRADEK_INTEROP_BROKER") == "kafka"
    start: Callable[..., BrokerProcess] = start_kafka if kafka else start_odradek
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with start(tmp_path_factory.mktemp("guarded"), config=config) as broker:
        yield broker


@pytest.fixture
def acls(odradek: CommandLine, guarded: BrokerProcess) -> Acls:
    def run(*words: str) -> list[dict[str, str]]:
        done = odradek("acls", *words, "--bootstrap", guarded.bootstrap, "--json")
        found: list[dict[str, str]] = done.json
        return found

    return run


def test_acls_are_added_listed_and_removed(
    acls: Acls, odradek: CommandLine, guarded: BrokerProcess
) -> None:
    added = acls(
        "add", "--principal", "User:alice", "--operation", "read", "--operation", "describe-configs",
        "--topic", "orders",
    )  # fmt: skip
    assert [row["operation"] for row in added] == ["read", "describe-configs"]
    acls(
        "add",
        "--principal",
        "User:*",
        "--operation",
        "all",
        "--group",
        "g-",
        "--prefixed",
        "--deny",
    )
    acls("add", "--principal", "User:*", "--operation", "all", "--cluster")
    assert acls("list", "--topic", "orders") == added
    (denied,) = acls("list", "--prefixed")
    assert denied == {
        "resource": "group",
        "name": "g-",
        "pattern": "prefixed",
        "principal": "User:*",
        "host": "*",
        "operation": "all",
        "permission": "deny",
    }
    table = odradek("acls", "list", "--cluster", "--bootstrap", guarded.bootstrap).words
    assert table[0] == [
        "RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION",
    ]  # fmt: skip
    assert table[1] == [
        "cluster",
        "kafka-cluster",
        "literal",
        "User:*",
        "*",
        "all",
        "allow",
    ]
    assert acls("remove", "--principal", "User:alice", "--operation", "read") == [added[0]]
    assert len(acls("remove", "--topic", "orders")) == 1
    assert acls("list", "--topic", "orders") == []


def test_errors_are_reported(odradek: CommandLine, guarded: BrokerProcess) -> None:
    where = ("--bootstrap", guarded.bootstrap)
    assert "specify a principal" in odradek("acls", "remove", *where, code=2).stderr
    wrong = ("acls", "add", "--operation", "read", "--topic", "t", *where)
    assert "principal" in odradek(*wrong, "--principal", "x", code=1).stderr
    odradek("acls", "add", "--principal", "User:a", "--operation", "read", *where, code=2)
    odradek("acls", code=2)


def test_acls_without_authorizer_fail(odradek: CommandLine) -> None:
    assert "authorizer.class.name" in odradek("acls", "list", code=1).stderr
