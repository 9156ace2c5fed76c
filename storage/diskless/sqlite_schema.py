"""Schema of the SQLite database of a diskless coordinator's state, as numbered migrations (D-16).

`PRAGMA user_version` is the number of migrations that the database has. A database with more of them is of a newer
version of Odradek; it is not downgraded but rebuilt.

Every row is checked when the database is opened, because SQLite has no checksums and the state must equal the log:

- Rows of batches have `check_sum`, which SQLite computes from their integers (`BATCH_CHECK_SUM`).
- Other rows have a CRC of their columns, and `meta` has the sum of all these CRCs, which a lost or an outdated page
  of the file does not match.
- `partitions` has the number and bytes of live batches, and `files` has those of all batches of the table.

`live_batches` of a file includes the batches that `deletions` lists. They are removed from `batches` in steps.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence
from typing import Final

APPLICATION_ID: Final = 0x4F_44_44_4C
"""`PRAGMA application_id` of the databases: "ODDL"."""
_PRIME: Final = (1 << 31) - 1


def _check_sum(columns: Sequence[str]) -> str:
    """Expression whose value differs if one bit of one of the integers differs.

    The remainders of a power of two by the prime number, and their multiples by smaller numbers, are never 0. No
    intermediate value exceeds 63 bits.
    """
    terms = [f"({name} % {_PRIME}) * {2 * n + 3}" for n, name in enumerate(columns)]
    return f"({' + '.join(terms)}) % {_PRIME}"


BATCH_COLUMNS: Final = (
    "partition_id",
    "last_offset",
    "base_offset",
    "batch_id",
    "file_id",
    "byte_offset",
    "byte_size",
    "magic",
    "log_append_ms",
    "max_timestamp_ms",
    "timestamp_type",
)
BATCH_CHECK_SUM: Final = _check_sum(BATCH_COLUMNS)

MIGRATIONS: Final[Sequence[Sequence[str]]] = (
    (
        """CREATE TABLE meta (
            id INTEGER PRIMARY KEY CHECK (id = 0),
            cluster_id TEXT NOT NULL,
            topic_id BLOB NOT NULL,
            coordinator_id INTEGER NOT NULL,
            applied_offset INTEGER NOT NULL,
            clock_ms INTEGER NOT NULL,
            rows INTEGER NOT NULL,
            crc_sum INTEGER NOT NULL,
            crc INTEGER NOT NULL
        )""",
        """CREATE TABLE partitions (
            id INTEGER PRIMARY KEY,
            topic_id BLOB NOT NULL,
            partition_index INTEGER NOT NULL,
            name TEXT NOT NULL,
            log_start_offset INTEGER NOT NULL,
            high_watermark INTEGER NOT NULL,
            live_batches INTEGER NOT NULL,
            live_bytes INTEGER NOT NULL,
            crc INTEGER NOT NULL,
            UNIQUE (topic_id, partition_index)
        )""",
        f"""CREATE TABLE batches (
            partition_id INTEGER NOT NULL,
            last_offset INTEGER NOT NULL,
            base_offset INTEGER NOT NULL,
            batch_id INTEGER NOT NULL,
            file_id INTEGER NOT NULL,
            byte_offset INTEGER NOT NULL,
            byte_size INTEGER NOT NULL,
            magic INTEGER NOT NULL,
            log_append_ms INTEGER NOT NULL,
            max_timestamp_ms INTEGER NOT NULL,
            timestamp_type INTEGER NOT NULL,
            check_sum INTEGER NOT NULL GENERATED ALWAYS AS ({BATCH_CHECK_SUM}) STORED,
            PRIMARY KEY (partition_id, last_offset)
        ) WITHOUT ROWID""",
        """CREATE TABLE producers (
            partition_id INTEGER NOT NULL,
            producer_id INTEGER NOT NULL,
            epoch INTEGER NOT NULL,
            last_append_ms INTEGER NOT NULL,
            batches BLOB NOT NULL,
            crc INTEGER NOT NULL,
            PRIMARY KEY (partition_id, producer_id)
        ) WITHOUT ROWID""",
        """CREATE TABLE files (
            id INTEGER PRIMARY KEY,
            object_key TEXT NOT NULL UNIQUE,
            object_format INTEGER NOT NULL,
            size INTEGER NOT NULL,
            uploader_broker_id INTEGER NOT NULL,
            owner_ids TEXT NOT NULL,
            is_owner INTEGER NOT NULL,
            live_batches INTEGER NOT NULL,
            live_bytes INTEGER NOT NULL,
            uploaded_ms INTEGER NOT NULL,
            unused_since_ms INTEGER NOT NULL,
            crc INTEGER NOT NULL
        )""",
        """CREATE TABLE file_batches (
            file_id INTEGER PRIMARY KEY,
            batch_keys BLOB NOT NULL,
            crc INTEGER NOT NULL
        )""",
        "CREATE INDEX files_by_upload ON files (uploaded_ms)",
        "CREATE INDEX unused_files ON files (is_owner, object_key) WHERE live_batches = 0",
        """CREATE TABLE deletions (
            id INTEGER PRIMARY KEY,
            partition_id INTEGER NOT NULL,
            end_offset INTEGER NOT NULL,
            append_ms INTEGER NOT NULL,
            crc INTEGER NOT NULL
        )""",
    ),
)
"""Statements of each migration. A landed migration is never changed: it is followed by another one."""


def row_crc(blob: bytes, *values: object) -> int:
    """CRC of the columns of a row, of which one is a blob."""
    return zlib.crc32(blob, zlib.crc32(repr(values).encode()))


def migrate(
    connection: sqlite3.Connection, migrations: Sequence[Sequence[str]] = MIGRATIONS
) -> None:
    """Apply the migrations that the database does not have, in the transaction of the caller."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for statements in migrations[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(migrations)}")
