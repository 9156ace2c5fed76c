"""Broker configs of producer ids and transactions."""

from __future__ import annotations

from odradek.broker.config.config_key import (
    BOOLEAN,
    CLUSTER_WIDE,
    HIGH,
    INT,
    LOW,
    SHORT,
    Rows,
    row,
)
from odradek.broker.config.validators import (
    at_least,
)

# The formatter would put every column on a line of its own.
# fmt: off
TRANSACTIONS: Rows = (
    row("transaction.state.log.min.isr", INT, "2", HIGH, at_least(1), effect=True,
        doc="In-sync replicas that writes to `__transaction_state` need."),
    row("transaction.state.log.load.buffer.size", INT, "5242880", HIGH, at_least(1), effect=True,
        doc="Bytes read at once when a coordinator loads its transactions."),
    row("transaction.state.log.replication.factor", SHORT, "3", HIGH, at_least(1), effect=True,
        doc="Replicas of `__transaction_state`, which is not created while there are fewer brokers."),
    row("transaction.state.log.num.partitions", INT, "50", HIGH, at_least(1), effect=True,
        doc="Partitions of `__transaction_state`; not to be changed once it is there."),
    row("transaction.state.log.segment.bytes", INT, "104857600", HIGH, at_least(1), effect=True,
        doc="Segment size of `__transaction_state`, in bytes."),
    row("transaction.partition.verification.enable", BOOLEAN, "true", LOW, mode=CLUSTER_WIDE,
        effect=True,
        doc="Check that a partition was added to the transaction before records of it are written."),
    row("producer.id.expiration.ms", INT, "86400000", LOW, at_least(1), CLUSTER_WIDE, effect=True,
        doc="How long a partition remembers an idle producer, in ms. A transaction's lasts at least "
            "until it ends."),
    row("producer.id.expiration.check.interval.ms", INT, "600000", LOW, at_least(1),
        internal=True, effect=True,
        doc="How often producers are looked at for expiry, in ms. For tests."),
    row("transactional.id.expiration.ms", INT, "604800000", HIGH, at_least(1), effect=True,
        doc="How long a transactional id is remembered after its last use, in ms."),
    row("transaction.max.timeout.ms", INT, "900000", HIGH, at_least(1), effect=True,
        doc="Longest timeout a transaction may ask for, in ms."),
    row("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, "10000", LOW, at_least(1),
        effect=True,
        doc="How often transactions that are out of time are aborted, in ms."),
    row("transaction.remove.expired.transaction.cleanup.interval.ms", INT, "3600000", LOW, at_least(1),
        effect=True,
        doc="How often expired transactional ids are removed, in ms."),
    row("transaction.two.phase.commit.enable", BOOLEAN, "false", LOW,
        doc="Let a transaction be one part of a two-phase commit that another system decides."),
    row("add.partitions.to.txn.retry.backoff.max.ms", INT, "100", HIGH, at_least(0), effect=True,
        doc="How long adding a partition to a transaction is tried again on the server's side, in ms."),
    row("add.partitions.to.txn.retry.backoff.ms", INT, "20", HIGH, at_least(1), effect=True,
        doc="Pause before adding a partition to a transaction is tried again, in ms."),
)
# fmt: on
