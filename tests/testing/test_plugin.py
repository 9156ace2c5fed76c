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


@pytest.mark.parametrize("process", [False, True])
def test_failed_test_shows_the_broker_log(pytester: pytest.Pytester, process: bool) -> None:
    pytester.makeini("[pytest]\nlog_level = DEBUG\n")
    pytester.makeconftest(
        f"""
        import pytest

        @pytest.fixture(scope="session")
        def kafka_broker_process():
            return {process}
        """
    )
    pytester.makepyfile(
        """
        from confluent_kafka.admin import AdminClient

        def test_failure(kafka_broker):
            kafka_broker.create_topic("t")
            AdminClient({"bootstrap.servers": kafka_broker.bootstrap}).list_topics("u", timeout=10)
            kafka_broker.create_topic("last")  # after the log records of the request
            assert False
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*Captured log call*",
            "INFO * odradek.controller:quorum_controller.py:* Created topic t with ID *",
            "DEBUG * odradek.network:server.py:* Accepted connection from 127.0.0.1:*",
            "DEBUG * odradek.request:request_log.py:* Completed Metadata * topics u: *",
        ]
    )
