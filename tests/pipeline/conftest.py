"""One Spark session for all tests of this folder, because its start takes longer than most tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Session with two local threads and the registered source."""
    from pyspark.sql import SparkSession

    from odradek.pipeline import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        # The tests are too short for the JVM's second compiler to be worth its cost.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    register(session)
    yield session
    session.stop()


@pytest.fixture
def denied_object_reset() -> Iterator[None]:
    """Let a test deny reads of one object with `DenyingStore.denied`; the next test denies none."""
    from tests.pipeline.tiered_queries import DenyingStore

    yield
    DenyingStore.denied = ""
