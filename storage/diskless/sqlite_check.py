"""Check of a database of a diskless coordinator's state when it is opened (`sqlite_schema.py`).

It finds every damaged row, and pages of the file that are lost or older than the others. It reads the whole database:
about two seconds per million batches.
"""

from __future__ import annotations

import sqlite3
from typing import Final
from uuid import UUID

from odradek.seams.values import value_class
from odradek.storage.diskless.sqlite_schema import (
    APPLICATION_ID,
    BATCH_CHECK_SUM,
    MIGRATIONS,
    row_crc,
)

CRC_COLUMNS: Final = {
    "partitions": "topic_id, id, partition_index, name, log_start_offset, high_watermark, live_batches, live_bytes",
    "producers": "batches, partition_id, producer_id, epoch, last_append_ms",
    "files": "x'', id, object_key, object_format, size, uploader_broker_id, owner_ids, uploaded_ms, is_owner,"
    " live_batches, live_bytes, unused_since_ms",
    "file_batches": "batch_keys, file_id",
    "deletions": "x'', id, partition_id, end_offset, append_ms",
}
"""Columns of the CRC of each table, the blob first."""
META_COLUMNS: Final = (
    "topic_id, cluster_id, coordinator_id, applied_offset, clock_ms, rows, crc_sum"
)


@value_class
class StateIdentity:
    """The coordinator whose state a database has: its cluster, and its partition of `__diskless_metadata`."""

    cluster_id: str
    topic_id: UUID
    coordinator_id: int


def problem_of(connection: sqlite3.Connection, identity: StateIdentity) -> str | None:
    """Reason why the database cannot be used, or None. Raises sqlite3.DatabaseError for some damages."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        return "it is not the database of a diskless coordinator"
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not 0 < version <= len(MIGRATIONS):
        return (
            f"its schema has version {version}, and this version of Odradek has {len(MIGRATIONS)}"
        )
    rows = connection.execute("SELECT cluster_id, topic_id, coordinator_id FROM meta").fetchall()
    if len(rows) != 1:
        return "it has no identity"
    if rows[0] != (identity.cluster_id, identity.topic_id.bytes, identity.coordinator_id):
        return f"it is of partition {rows[0][2]} of the topic {rows[0][1].hex()} of the cluster {rows[0][0]}"
    return None


def damage_of(connection: sqlite3.Connection) -> str | None:
    """Damage of a database with the newest schema, or None. Raises sqlite3.DatabaseError for some damages."""
    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        return f"integrity check: {found}"
    connection.create_function("row_crc", -1, row_crc, deterministic=True)
    return _wrong_crc(connection) or _wrong_batches(connection)


def _wrong_crc(connection: sqlite3.Connection) -> str | None:
    rows = crc_sum = 0
    for table, columns in CRC_COLUMNS.items():
        count, table_sum, wrong = connection.execute(
            f"SELECT count(*), coalesce(sum(crc), 0), coalesce(sum(crc <> row_crc({columns})), 0) FROM {table}"
        ).fetchone()
        if wrong:
            return f"{wrong} rows of the table {table} have a wrong CRC"
        rows += count
        crc_sum += table_sum
    known = connection.execute(
        f"SELECT rows, crc_sum, crc = row_crc({META_COLUMNS}) FROM meta"
    ).fetchone()
    if known != (rows, crc_sum, 1):
        return "rows are missing or outdated"
    return None


def _wrong_batches(connection: sqlite3.Connection) -> str | None:
    """Compare the rows of batches with their check sums, their partitions and their files."""
    (wrong,) = connection.execute(
        f"SELECT count(*) FROM batches WHERE check_sum <> {BATCH_CHECK_SUM}"
    ).fetchone()
    if wrong:
        return f"{wrong} batches have a wrong check sum"
    (wrong,) = connection.execute(
        """SELECT count(*) FROM partitions p LEFT JOIN (
            SELECT partition_id, count(*) AS batches, sum(byte_size) AS bytes, max(last_offset) AS last
            FROM partitions CROSS JOIN batches ON partition_id = id AND last_offset >= log_start_offset
            GROUP BY partition_id
        ) b ON b.partition_id = p.id
        WHERE p.live_batches <> coalesce(b.batches, 0) OR p.live_bytes <> coalesce(b.bytes, 0)
            OR b.last >= p.high_watermark"""
    ).fetchone()
    if wrong:
        return f"{wrong} partitions do not have the expected batches"
    stored = connection.execute("SELECT count(*), sum(byte_size) FROM batches").fetchone()
    tracked = connection.execute(
        "SELECT total(live_batches), sum(live_bytes) FROM files"
    ).fetchone()
    if (stored[0], stored[1] or 0) != (tracked[0], tracked[1] or 0):
        return "the files do not have the expected batches"
    return None
