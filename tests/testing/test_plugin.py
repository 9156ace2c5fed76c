"""The pytest plugin in a separate test session that uses only its fixtures."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


def test_tests_share_a_broker_but_no_topics(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def kafka_broker_configs():
            return {"num.partitions": "4"}
        """
    )
    pytester.makepyfile(
        """
        from confluent_kafka.admin import AdminClient

        seen = []

        def topics(bootstrap):
            return AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics

        def test_one(kafka_broker, kafka_bootstrap):
            kafka_broker.create_topic("t")
            assert len(topics(kafka_bootstrap)["t"].partitions) == 4
            seen.append(kafka_bootstrap)

        def test_two(kafka_bootstrap):
            assert seen == [kafka_bootstrap]
            assert "t" not in topics(kafka_bootstrap)
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)
