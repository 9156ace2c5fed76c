"""Error messages name the object, the problem and a remedy, without error code names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import trio

from odradek.client.consumer import ConsumedRecord
from odradek.client.errors import ClientError, TimedOut, Unreachable
from odradek.pipeline.brokers import ACL_HINT, REACHABILITY_HINT, RemoteMetadata, broker_error
from odradek.pipeline.brokers import RETRY_HINT as BROKER_RETRY_HINT
from odradek.pipeline.errors import PipelineError, spark_error_message
from odradek.pipeline.store_errors import CREDENTIALS_HINT, RETRY_HINT, object_error
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.objects import ObjectDenied, ObjectMissing, ObjectsUnavailable
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteAccessDenied,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageUnavailable,
)

OF_A_TASK = """[TASK_WRITE_FAILED] Task failed while writing rows to file:/out. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(X.scala:1)
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\tat org.apache.hadoop.fs.RawLocalFileSystem.write(RawLocalFileSystem.java:1)
\t... 24 more
Caused by: java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)
"""
OF_A_WORKER = """Job aborted due to stage failure: Traceback (most recent call last):
  File "worker.py", line 1, in main
odradek.pipeline.errors.MissingSegment: flights-0/7.log is not in the store

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
"""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ObjectMissing("k"), "k is missing in the store"),
        (RemoteResourceNotFound("there is no k"), "k is missing in the store"),
        (
            ObjectDenied("k: 403"),
            f"access to k was denied, so it could not be read: {CREDENTIALS_HINT}; the store responded: 403",
        ),
        (
            RemoteAccessDenied("k: 403"),
            f"access to k was denied, so it could not be read: {CREDENTIALS_HINT}; the store responded: 403",
        ),
        (
            ObjectsUnavailable("k: 503"),
            f"k could not be read: {RETRY_HINT}; the store responded: 503",
        ),
        (
            RemoteStorageUnavailable("k: 503"),
            f"k could not be read: {RETRY_HINT}; the store responded: 503",
        ),
        (RemoteStorageError("it has no key"), "k could not be read: it has no key"),
        (CorruptRemoteData("k: 3 bytes of 4"), "k is corrupt: 3 bytes of 4"),
        (ValueError("no JSON"), "k is corrupt: no JSON"),
    ],
)
def test_object_errors(error: Exception, message: str) -> None:
    assert str(object_error("k", error)) == message


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KafkaError(ErrorCode.topic_authorization_failed), f"topic authorization failed; {ACL_HINT}"),
        (KafkaError(ErrorCode.invalid_request, "t: no"), "t: no"),
        (KafkaError(ErrorCode.leader_not_available), f"leader not available; {BROKER_RETRY_HINT}"),
        (Unreachable("b: refused"), f"b: refused; {REACHABILITY_HINT}"),
        (TimedOut("b: 30 s"), f"b: 30 s; {BROKER_RETRY_HINT}"),
    ],
)  # fmt: skip
def test_broker_errors(error: KafkaError | ClientError, message: str) -> None:
    assert str(broker_error("b did not return x", error)) == f"b did not return x: {message}"


class TruncatedMetadataTopic:
    """Metadata topic without its first records."""

    begins_late = ((TopicPartition("m", 3), 7),)

    async def read_to_end(self, take: Callable[[ConsumedRecord], None]) -> None:
        pass


def test_incomplete_metadata_topic_is_an_error() -> None:
    metadata = RemoteMetadata(cast(Any, None))
    metadata._topic = cast(Any, TruncatedMetadataTopic())
    message = r"m-3 begins at offset 7, .* keep all records \(retention.ms=-1, .* the manifests .* are used"
    with pytest.raises(PipelineError, match=message):
        trio.run(metadata.read_to_end)


def test_full_disk_is_reported_in_one_line() -> None:
    assert spark_error_message(RuntimeError(OF_A_TASK)) == "IOException: No space left on device"


def test_pipeline_error_is_extracted_from_spark_error() -> None:
    error = spark_error_message(RuntimeError(OF_A_WORKER))
    assert error == "flights-0/7.log is not in the store"


def test_spark_error_without_cause_is_unchanged() -> None:
    assert (
        spark_error_message(RuntimeError("no such column: x\nin a plan"))
        == "no such column: x\nin a plan"
    )
