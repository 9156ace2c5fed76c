"""States of a transaction and the action for each event in each state.

The states are those of KIP-98. With KIP-890 EndTxn increments the producer epoch, so that a retry
with the previous epoch can be distinguished from a request of the next transaction.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class TransactionState(enum.Enum):
    """Kafka's states; `code` is the value in records."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    """The tombstone is being written; never in a record."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """Intermediate state in Kafka; not used here and invalid in a record."""

    @property
    def code(self) -> int:
        return _CODES[self]


_CODES = {state: code for code, state in enumerate(TransactionState)}
STATE_BY_CODE: Mapping[int, TransactionState] = {code: state for state, code in _CODES.items()}

PERSISTENT_STATES = tuple(TransactionState)[:6]
"""States that records can have."""
PREPARE_STATES = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The outcome is decided and markers are being written."""
IDLE_STATES = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)
"""No transaction is open: the id may expire or start its next transaction."""


class TransactionEvent(enum.Enum):
    """Events of a transactional id, as the table distinguishes them."""

    INIT_PRODUCER_ID = "InitProducerId"
    ADD_NEW_PARTITIONS = "AddPartitionsToTxn with new partitions"
    ADD_EXISTING_PARTITIONS = "AddPartitionsToTxn with partitions that are all in the transaction"
    VERIFY_PARTITIONS = "AddPartitionsToTxn with VerifyOnly"
    COMMIT_V1 = "EndTxn v0-4, commit"
    ABORT_V1 = "EndTxn v0-4, abort"
    END_WITH_COMMIT = "EndTxn v5, commit"
    END_WITH_ABORT = "EndTxn v5, abort"
    RETRY_COMMIT = "EndTxn v5, commit, with the previous epoch (retry)"
    RETRY_ABORT = "EndTxn v5, abort, with the previous epoch (retry)"
    TIMEOUT = "transaction.timeout.ms exceeded"
    MARKERS_WRITTEN = "all markers written"
    EXPIRATION = "unused for transactional.id.expiration.ms"


class TransactionAction(enum.Enum):
    """Actions of the coordinator."""

    BUMP_EPOCH = "increment the epoch, or allocate a new producer id; → Empty"
    FENCE = "fence the producer and abort; return CONCURRENT_TRANSACTIONS; → PrepareAbort"
    ADD = "add the partitions; → Ongoing"
    VERIFY = "return NONE or TRANSACTION_ABORTABLE for each partition"
    COMMIT = "→ PrepareCommit"
    ABORT = "→ PrepareAbort"
    ABORT_WITHOUT_PARTITIONS = "→ PrepareAbort without partitions"
    COMPLETE_COMMIT = "→ CompleteCommit"
    COMPLETE_ABORT = "→ CompleteAbort"
    REMOVE = "append a tombstone; → Dead"
    DONE = "return NONE"
    WAIT = "return CONCURRENT_TRANSACTIONS"
    REFUSE = "return INVALID_TXN_STATE"
    FENCED = "return PRODUCER_FENCED"
    NOTHING = "nothing"


def _table() -> Mapping[TransactionEvent, Mapping[TransactionState, TransactionAction]]:
    s, e = TransactionAction, TransactionEvent
    # fmt: off
    rows = {
        #                           Empty                       Ongoing    PrepareCommit      PrepareAbort      CompleteCommit              CompleteAbort
        e.INIT_PRODUCER_ID:        (s.BUMP_EPOCH,               s.FENCE,   s.WAIT,            s.WAIT,           s.BUMP_EPOCH,               s.BUMP_EPOCH),
        e.ADD_NEW_PARTITIONS:      (s.ADD,                      s.ADD,     s.WAIT,            s.WAIT,           s.ADD,                      s.ADD),
        e.ADD_EXISTING_PARTITIONS: (s.ADD,                      s.DONE,    s.WAIT,            s.WAIT,           s.ADD,                      s.ADD),
        e.VERIFY_PARTITIONS:       (s.VERIFY,                   s.VERIFY,  s.WAIT,            s.WAIT,           s.VERIFY,                   s.VERIFY),
        e.COMMIT_V1:               (s.REFUSE,                   s.COMMIT,  s.WAIT,            s.WAIT,           s.DONE,                     s.REFUSE),
        e.ABORT_V1:                (s.REFUSE,                   s.ABORT,   s.WAIT,            s.WAIT,           s.REFUSE,                   s.DONE),
        e.END_WITH_COMMIT:         (s.REFUSE,                   s.COMMIT,  s.WAIT,            s.WAIT,           s.REFUSE,                   s.REFUSE),
        e.END_WITH_ABORT:          (s.ABORT_WITHOUT_PARTITIONS, s.ABORT,   s.WAIT,            s.WAIT,           s.ABORT_WITHOUT_PARTITIONS, s.ABORT_WITHOUT_PARTITIONS),
        e.RETRY_COMMIT:            (s.FENCED,                   s.FENCED,  s.WAIT,            s.WAIT,           s.DONE,                     s.REFUSE),
        e.RETRY_ABORT:             (s.FENCED,                   s.FENCED,  s.WAIT,            s.WAIT,           s.REFUSE,                   s.DONE),
        e.TIMEOUT:                 (s.NOTHING,                  s.FENCE,   s.NOTHING,         s.NOTHING,        s.NOTHING,                  s.NOTHING),
        e.MARKERS_WRITTEN:         (s.NOTHING,                  s.NOTHING, s.COMPLETE_COMMIT, s.COMPLETE_ABORT, s.NOTHING,                  s.NOTHING),
        e.EXPIRATION:              (s.REMOVE,                   s.NOTHING, s.NOTHING,         s.NOTHING,        s.REMOVE,                   s.REMOVE),
    }
    # fmt: on
    return {
        event: dict(zip(PERSISTENT_STATES, event_kind, strict=True))
        for event, event_kind in rows.items()
    }


TRANSACTION_ACTIONS = _table()
"""Action by event and state. While an append is pending every request but VERIFY_PARTITIONS gets
CONCURRENT_TRANSACTIONS."""

VALID_TRANSITIONS: Mapping[TransactionState, frozenset[TransactionState]] = {
    TransactionState.EMPTY: frozenset(
        {
            TransactionState.EMPTY,
            TransactionState.ONGOING,
            TransactionState.PREPARE_ABORT,
            TransactionState.DEAD,
        }
    ),
    TransactionState.ONGOING: frozenset(
        {TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}
    ),
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.COMPLETE_COMMIT}),
    TransactionState.PREPARE_ABORT: frozenset({TransactionState.COMPLETE_ABORT}),
    TransactionState.COMPLETE_COMMIT: frozenset(
        {
            TransactionState.EMPTY,
            TransactionState.ONGOING,
            TransactionState.PREPARE_ABORT,
            TransactionState.DEAD,
        }
    ),
    TransactionState.COMPLETE_ABORT: frozenset(
        {
            TransactionState.EMPTY,
            TransactionState.ONGOING,
            TransactionState.PREPARE_ABORT,
            TransactionState.DEAD,
        }
    ),
}
"""Valid next states."""
