"""What storage refuses, and with which Kafka error code the edge answers it.

Every expected failure is a `StorageError`, a `KafkaError` with a fixed code. Two of them are about
the disk: `DiskFull` leaves the log consistent and usable (whoever retries after space was freed
succeeds), `LogFailed` is final: a write or a sync failed, or files were replaced by half; what is on
the disk is no longer known, and every later call of that log answers the same.
"""

from __future__ import annotations

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.files import Path


class StorageError(KafkaError):
    """An error of one partition's log."""

    code = ErrorCode.unknown_server_error


class OffsetOutOfRange(StorageError):
    """The offset is below the log's start or past its end."""

    code = ErrorCode.offset_out_of_range


class InRemoteTier(OffsetOutOfRange):
    """The offset is in the log, but on no disk here any more: it is in the remote tier (KIP-405).

    Followers are told so (T-40); consumers never: they get the records, or OFFSET_OUT_OF_RANGE.
    """

    code = ErrorCode.offset_moved_to_tiered_storage


class CorruptRecords(StorageError):
    """Bytes to be appended are not whole, valid batches: a size, magic or CRC that does not hold."""

    code = ErrorCode.corrupt_message


class InvalidRecord(StorageError):
    """A batch is whole, but says what it may not say (Kafka's InvalidRecordException, KIP-467).

    `record_errors` are (index of the record in the batch, reason) for the Produce response.
    """

    code = ErrorCode.invalid_record

    def __init__(self, message: str = "", record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors


class InvalidTimestamp(InvalidRecord):
    """A record's timestamp is too far from the broker's clock (message.timestamp.*.max.ms)."""

    code = ErrorCode.invalid_timestamp


class RecordTooLarge(StorageError):
    """A batch is larger than max.message.bytes."""

    code = ErrorCode.message_too_large


class RecordListTooLarge(StorageError):
    """What is to be appended at once is larger than a segment may be."""

    code = ErrorCode.record_list_too_large


class DamagedLog(StorageError):
    """What is whole of a log ends below what is known to have been synced."""

    code = ErrorCode.corrupt_message

    def __init__(self, end_offset: int, synced_to: int, why: str) -> None:
        self.end_offset = end_offset
        super().__init__(f"{why}: offsets {end_offset} to {synced_to - 1} were there, and are lost")


class UnsupportedCompression(StorageError):
    """A batch names a codec that does not exist."""

    code = ErrorCode.unsupported_compression_type


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
    """A batch is in a transaction where it may not be, or the other way round (KIP-890)."""

    code = ErrorCode.invalid_txn_state


class CoordinatorFenced(StorageError):
    """A transaction marker comes from a coordinator that has been replaced (KIP-98)."""

    code = ErrorCode.transaction_coordinator_fenced


class UnexpectedOffset(StorageError):
    """Replicated batches begin below the log's end: [first_offset, last_offset] is what came.

    A follower whose log is empty starts it anew at `first_offset` (the leader's log start may lie
    within a batch); any other has lost track of its leader.
    """

    def __init__(self, message: str, first_offset: int, last_offset: int) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class InconsistentTopicId(StorageError):
    """The directory's `partition.metadata` names another topic than the one asked for (KIP-516)."""

    code = ErrorCode.inconsistent_topic_id


class UnknownDirectory(StorageError):
    """No log directory of this node has that path."""

    code = ErrorCode.log_dir_not_found


class ReplicaNotAvailable(StorageError):
    """The replica to be moved is not here; where it is to go is remembered (J-03)."""

    code = ErrorCode.replica_not_available


class NameTooLong(StorageError):
    """The topic's name leaves no room for the suffix of an unfinished move (KAFKA-4893)."""

    code = ErrorCode.invalid_topic_exception


class CordonedDirectory(StorageError):
    """The directory gets no new replicas (KIP-1066)."""

    code = ErrorCode.invalid_replica_assignment


class DiskFull(StorageError):
    """No space left: nothing was appended, the log is as it was and goes on when there is space."""

    code = ErrorCode.kafka_storage_error


class NoDescriptors(StorageError):
    """No file descriptor to be had: nothing changed; back-pressure, never a failed directory."""

    code = ErrorCode.kafka_storage_error


class LogFailed(StorageError):
    """The log is offline: a write or sync failed, its directory failed, or it was closed."""

    code = ErrorCode.kafka_storage_error


class SourceFailed(LogFailed):
    """A move met `error` in a file of the source, not of the destination."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path}: {error}")
        self.error = error
