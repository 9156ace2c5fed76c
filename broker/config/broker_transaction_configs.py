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
        doc="The minimum number of in-sync replicas for writes to `__transaction_state`."),
    row("transaction.state.log.load.buffer.size", INT, "5242880", HIGH, at_least(1), effect=True,
        doc="The size in bytes of the batches that are read when the transaction coordinator loads producer "
            "ids and transactions."),
    row("transaction.state.log.replication.factor", SHORT, "3", HIGH, at_least(1), effect=True,
        doc="The replication factor of `__transaction_state`. The topic is not created until there are this "
            "many brokers."),
    row("transaction.state.log.num.partitions", INT, "50", HIGH, at_least(1), effect=True,
        doc="The number of partitions of `__transaction_state`. It must not be changed after deployment."),
    row("transaction.state.log.segment.bytes", INT, "104857600", HIGH, at_least(1), effect=True,
        doc="The segment size of `__transaction_state` in bytes. It should be small, so that compaction and "
            "loading are fast."),
    row("transaction.partition.verification.enable", BOOLEAN, "true", LOW, mode=CLUSTER_WIDE,
        effect=True,
        doc="Whether the broker verifies with the transaction coordinator that a partition is in the "
            "transaction before it appends records of the transaction."),
    row("producer.id.expiration.ms", INT, "86400000", LOW, at_least(1), CLUSTER_WIDE, effect=True,
        doc="The time in ms after the last write of a producer id after which a partition leader removes "
            "its state. It is kept while the producer id has an open transaction. Deletion of the "
            "producer's last records may remove it earlier."),
    row("producer.id.expiration.check.interval.ms", INT, "600000", LOW, at_least(1),
        internal=True, effect=True,
        doc="The interval in ms at which expired producer ids are removed. For tests."),
    row("transactional.id.expiration.ms", INT, "604800000", HIGH, at_least(1), effect=True,
        doc="The time in ms without a status update of its transaction after which the transaction "
            "coordinator removes a transactional id. Ids with a transaction in progress do not expire."),
    row("transaction.max.timeout.ms", INT, "900000", HIGH, at_least(1), effect=True,
        doc="The maximum timeout of a transaction in ms. InitProducerId requests with a larger timeout are "
            "rejected."),
    row("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, "10000", LOW, at_least(1),
        effect=True,
        doc="The interval in ms at which timed-out transactions are aborted."),
    row("transaction.remove.expired.transaction.cleanup.interval.ms", INT, "3600000", LOW, at_least(1),
        effect=True,
        doc="The interval in ms at which expired transactional ids are removed."),
    row("transaction.two.phase.commit.enable", BOOLEAN, "false", LOW,
        doc="Whether a transactional producer may take part in a two-phase commit (KIP-939)."),
    row("add.partitions.to.txn.retry.backoff.max.ms", INT, "100", HIGH, at_least(0), effect=True,
        doc="The maximum time in ms for which the broker retries to add a partition to a transaction."),
    row("add.partitions.to.txn.retry.backoff.ms", INT, "20", HIGH, at_least(1), effect=True,
        doc="The time in ms that the broker waits before it retries to add a partition to a transaction."),
)
# fmt: on
