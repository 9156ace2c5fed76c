"""Errors of storage, with the Kafka error codes that responses carry.

Every expected failure is a `StorageError`, which has a fixed code. After `DiskFull` the log is
consistent and usable: a retry succeeds once there is space. `LogFailed` is final: a write or a sync
failed, or a file operation was left incomplete, so the content of the disk is unknown; every later call
of that log raises it again.

`DirectoryError`s prevent a node from starting with its log directories. They have no Kafka error code.
"""

from __future__ import annotations

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.files import Path


class StorageError(KafkaError):
    """An expected error of a partition's log."""

    code = ErrorCode.unknown_server_error


class OffsetOutOfRange(StorageError):
    """The offset is below the log start offset or past the log end offset."""

    code = ErrorCode.offset_out_of_range


class InRemoteTier(OffsetOutOfRange):
    """The offset is in the log, but only in the remote tier (KIP-405).

    Followers receive this error (T-40). Consumers receive the records, or OFFSET_OUT_OF_RANGE.
    """

    code = ErrorCode.offset_moved_to_tiered_storage


class CorruptRecords(StorageError):
    """The bytes to append are not complete, valid batches: wrong size, magic or CRC."""

    code = ErrorCode.corrupt_message


class InvalidRecord(StorageError):
    """A complete batch has invalid content (Kafka's InvalidRecordException, KIP-467).

    `record_errors` are (index of the record in the batch, reason) for the Produce response.
    """

    code = ErrorCode.invalid_record

    def __init__(self, message: str = "", record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors


class NotOneBatch(InvalidRecord):
    """The data of a partition is not exactly one complete batch of magic 2."""


class InvalidCompression(StorageError):
    """The records of a batch cannot be decompressed. Kafka has no error code for this."""

    code = ErrorCode.unknown_server_error


class InvalidTimestamp(InvalidRecord):
    """A record's timestamp is too far from the broker's clock (message.timestamp.*.max.ms)."""

    code = ErrorCode.invalid_timestamp


class RecordTooLarge(StorageError):
    """A batch is larger than max.message.bytes."""

    code = ErrorCode.message_too_large


class RecordListTooLarge(StorageError):
    """The records of one append are larger than the maximum segment size."""

    code = ErrorCode.record_list_too_large


class DamagedLog(StorageError):
    """The valid part of a log ends below an offset that was known to be synced."""

    code = ErrorCode.corrupt_message

    def __init__(self, end_offset: int, synced_to: int, why: str) -> None:
        self.end_offset = end_offset
        super().__init__(f"{why}: offsets {end_offset} to {synced_to - 1} are lost")


class UnsupportedCompression(StorageError):
    """A batch has an unknown compression codec. Kafka does not expect it: the code is UNKNOWN_SERVER_ERROR."""

    code = ErrorCode.unknown_server_error


class OutOfOrderSequence(StorageError):
    """A producer's batch does not follow its last one (KIP-98)."""

    code = ErrorCode.out_of_order_sequence_number

    def __init__(self, message: str, expected: int) -> None:
        """`expected` is the sequence that would follow."""
        super().__init__(message)
        self.expected = expected


class InvalidProducerEpoch(StorageError):
    """A producer's batch carries an epoch older than the one known (KIP-98, KIP-360)."""

    code = ErrorCode.invalid_producer_epoch


class InvalidTransactionState(StorageError):
    """A batch is transactional where it may not be, or not transactional where it must be (KIP-890)."""

    code = ErrorCode.invalid_txn_state


class CoordinatorFenced(StorageError):
    """A transaction marker comes from a coordinator that has been replaced (KIP-98)."""

    code = ErrorCode.transaction_coordinator_fenced


class UnexpectedOffset(StorageError):
    """Replicated batches begin below the log end offset; their offsets are [first_offset, last_offset].

    A follower with an empty log starts it at `first_offset`, because the leader's log start offset may
    be inside a batch. For any other log this is an error.
    """

    def __init__(self, message: str, first_offset: int, last_offset: int) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class InconsistentTopicId(StorageError):
    """The `partition.metadata` of the log contains another topic id than the requested one (KIP-516)."""

    code = ErrorCode.inconsistent_topic_id


class UnknownDirectory(StorageError):
    """The node has no log directory with that path."""

    code = ErrorCode.log_dir_not_found


class ReplicaNotAvailable(StorageError):
    """The replica to move does not exist yet; its requested log directory is remembered (J-03)."""

    code = ErrorCode.replica_not_available


class NameTooLong(StorageError):
    """The topic name is too long for the suffix of an unfinished move (KAFKA-4893)."""

    code = ErrorCode.invalid_topic_exception


class CordonedDirectory(StorageError):
    """The log directory is cordoned and gets no new replicas (KIP-1066)."""

    code = ErrorCode.invalid_replica_assignment


class DiskFull(StorageError):
    """No space left on the disk: nothing was appended, and the log stays usable."""

    code = ErrorCode.kafka_storage_error


class NoDescriptors(StorageError):
    """No file descriptor is free: nothing changed, and the directory stays online."""

    code = ErrorCode.kafka_storage_error


class LogFailed(StorageError):
    """The log is offline: a write or sync failed, its directory failed, or it was closed."""

    code = ErrorCode.kafka_storage_error


class SourceFailed(LogFailed):
    """A move failed with an I/O error in a file of the source directory."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path}: {error}")
        self.error = error


class DirectoryError(Exception):
    """The node must not start with these directories; the message states how to correct this."""


class DirectoryInUse(DirectoryError):
    """Another process holds the directory's `.lock`."""


class WrongDirectory(DirectoryError):
    """A directory belongs to another node or cluster, or its `meta.properties` is invalid."""


class NoDirectory(DirectoryError):
    """None of the directories could be opened."""


class NotFormatted(DirectoryError):
    """The node is part of a cluster, and no directory contains the cluster id."""
