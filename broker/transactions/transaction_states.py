"""States of a transaction and the action for each event in each state.

The states are those of KIP-98. With KIP-890 EndTxn increments the producer epoch, so that a retry
with the previous epoch can be told from a request of the next transaction.
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

    INIT_PRODUCER_ID = "a producer takes over (InitProducerId)"
    ADD_NEW_PARTITIONS = "it adds partitions that are not in the transaction yet"
    ADD_EXISTING_PARTITIONS = "it adds partitions that are all in it"
    VERIFY_PARTITIONS = "a partition's leader asks whether it is in it"
    COMMIT_V1 = "it commits, EndTxn up to version 4"
    ABORT_V1 = "it aborts, EndTxn up to version 4"
    END_WITH_COMMIT = "it commits"
    END_WITH_ABORT = "it aborts"
    RETRY_COMMIT = "it commits under the epoch before"
    RETRY_ABORT = "it aborts under the epoch before"
    TIMEOUT = "transaction.timeout.ms is over"
    MARKERS_WRITTEN = "every partition has its marker"
    EXPIRATION = "nobody used it for transactional.id.expiration.ms"


class TransactionAction(enum.Enum):
    """Actions of the coordinator."""

    BUMP_EPOCH = "the next epoch, or the next producer id; → Empty"
    FENCE = "fence the producer: abort, → PrepareAbort; the one who takes over asks again"
    ADD = "add them; → Ongoing"
    VERIFY = "say which are in it"
    COMMIT = "→ PrepareCommit"
    ABORT = "→ PrepareAbort"
    ABORT_WITHOUT_PARTITIONS = "→ PrepareAbort, without partitions"
    COMPLETE_COMMIT = "→ CompleteCommit"
    COMPLETE_ABORT = "→ CompleteAbort"
    REMOVE = "forget it"
    DONE = "it is so already"
    WAIT = "CONCURRENT_TRANSACTIONS"
    REFUSE = "INVALID_TXN_STATE"
    FENCED = "PRODUCER_FENCED"
    NOTHING = "nothing"


def _table() -> Mapping[TransactionEvent, Mapping[TransactionState, TransactionAction]]:
    s, e = TransactionAction, TransactionEvent
    # fmt: off
    rows = {
        #                   Empty            Ongoing    PrepareCommit      PrepareAbort      CompleteCommit   CompleteAbort
        e.INIT_PRODUCER_ID: (s.BUMP_EPOCH,   s.FENCE,   s.WAIT,            s.WAIT,           s.BUMP_EPOCH,   s.BUMP_EPOCH),
        e.ADD_NEW_PARTITIONS:        (s.ADD,           s.ADD,     s.WAIT,            s.WAIT,           s.ADD,           s.ADD),
        e.ADD_EXISTING_PARTITIONS:      (s.ADD,           s.DONE,    s.WAIT,            s.WAIT,           s.ADD,           s.ADD),
        e.VERIFY_PARTITIONS:        (s.VERIFY,          s.VERIFY,    s.WAIT,            s.WAIT,           s.VERIFY,          s.VERIFY),
        e.COMMIT_V1:      (s.REFUSE,        s.COMMIT,  s.WAIT,            s.WAIT,           s.DONE,          s.REFUSE),
        e.ABORT_V1:       (s.REFUSE,        s.ABORT,   s.WAIT,            s.WAIT,           s.REFUSE,        s.DONE),
        e.END_WITH_COMMIT:         (s.REFUSE,        s.COMMIT,  s.WAIT,            s.WAIT,           s.REFUSE,        s.REFUSE),
        e.END_WITH_ABORT:          (s.ABORT_WITHOUT_PARTITIONS, s.ABORT,   s.WAIT,            s.WAIT,           s.ABORT_WITHOUT_PARTITIONS, s.ABORT_WITHOUT_PARTITIONS),
        e.RETRY_COMMIT:   (s.FENCED,        s.FENCED,  s.WAIT,            s.WAIT,           s.DONE,          s.REFUSE),
        e.RETRY_ABORT:    (s.FENCED,        s.FENCED,  s.WAIT,            s.WAIT,           s.REFUSE,        s.DONE),
        e.TIMEOUT:       (s.NOTHING,       s.FENCE,   s.NOTHING,         s.NOTHING,        s.NOTHING,       s.NOTHING),
        e.MARKERS_WRITTEN:          (s.NOTHING,       s.NOTHING, s.COMPLETE_COMMIT, s.COMPLETE_ABORT, s.NOTHING,       s.NOTHING),
        e.EXPIRATION:         (s.REMOVE,        s.NOTHING, s.NOTHING,         s.NOTHING,        s.REMOVE,        s.REMOVE),
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
