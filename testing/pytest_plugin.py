"""The pytest plugin: a broker as a fixture.

`kafka_broker` is one broker for the session; each test that uses it starts without the changes of
earlier tests. `kafka_bootstrap` is its address. A project overrides `kafka_broker_configs` (a dict of
broker configs), `kafka_broker_topics`, `kafka_broker_tiered`, `kafka_broker_diskless` or
`kafka_broker_process` in its conftest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from odradek.testing.embedded import Broker, Configs


@pytest.fixture(scope="session")
def kafka_broker_configs() -> Configs:
    """Broker configs of the session's broker, by Kafka's names; override it."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker_topics() -> Mapping[str, int]:
    """Topics that exist at the start of each test, with their partition counts; override it."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker_tiered() -> bool | str:
    """Tiered storage of the session's broker: True, or the directory or URL of its remote tier.

    Override it; the default is False.
    """
    return False


@pytest.fixture(scope="session")
def kafka_broker_diskless() -> bool | str:
    """Diskless topics of the session's broker: True, or the directory or URL of their store.

    Override it; the default is False.
    """
    return False


@pytest.fixture(scope="session")
def kafka_broker_process(request: pytest.FixtureRequest) -> bool | None:
    """Whether the session's broker runs in a process of its own; override it.

    By default it does if a test of the session uses pyfakefs by a fixture or a test case class, or (None) if
    gevent, freezegun or pyfakefs has patched this process when the broker starts.
    """
    from odradek.testing.patched_modules import any_uses_fake_files

    return any_uses_fake_files(request.session.items) or None


@pytest.fixture(scope="session")
def kafka_broker_session(
    kafka_broker_configs: Configs,
    kafka_broker_topics: Mapping[str, int],
    kafka_broker_tiered: bool | str,
    kafka_broker_diskless: bool | str,
    kafka_broker_process: bool | None,
) -> Iterator[Broker]:
    """The session's broker, which is never reset."""
    from odradek.testing.embedded import Broker

    with Broker(
        configs=kafka_broker_configs,
        topics=kafka_broker_topics,
        tiered=kafka_broker_tiered,
        diskless=kafka_broker_diskless,
        process=kafka_broker_process,
    ) as broker:
        yield broker


@pytest.fixture
def kafka_broker(kafka_broker_session: Broker) -> Iterator[Broker]:
    """The session's broker, without the changes of earlier tests.

    Raises BrokerDied, which names the cause, if the broker has ended; the test during which it ends
    gets this error at its teardown.
    """
    kafka_broker_session.reset()
    yield kafka_broker_session
    kafka_broker_session.check_alive()


@pytest.fixture
def kafka_bootstrap(kafka_broker: Broker) -> str:
    """`HOST:PORT` of `kafka_broker`."""
    return kafka_broker.bootstrap
