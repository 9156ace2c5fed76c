"""A transaction's states, what can happen in them, and what is done about it: one table.

KIP-98 has the states, KIP-890 the second way to end a transaction: its producer's epoch moves on at
every end, so that a request of a transaction that is over can be told from one of the next. There a
producer that ends its transaction under the epoch before asks *again*, it did not hear the answer.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class State(enum.Enum):
    """Kafka's states, by their names; `code` is what records say."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    """About to be forgotten: its tombstone is being written. No record says it."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """On the way from Ongoing to PrepareAbort because somebody else takes over. It lasts for no time
    at all here; a record that says it is none of Kafka's."""

    @property
    def code(self) -> int:
        return _CODES[self]


_CODES = {state: code for code, state in enumerate(State)}
BY_CODE: Mapping[int, State] = {code: state for state, code in _CODES.items()}

LASTING = tuple(State)[:6]
"""The states that a transaction is in, or a record says, for any time."""
PREPARED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
"""It is decided how the transaction ends, and partitions are told."""
AT_REST = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
"""No transaction goes on: the id may expire, or begin its next transaction."""


class Event(enum.Enum):
    """What happens to a transactional id, as finely as the table tells it apart."""

    PRODUCER_BEGINS = "a producer takes over (InitProducerId)"
    ADDS_NEW = "it adds partitions that are not in the transaction yet"
    ADDS_KNOWN = "it adds partitions that are all in it"
    VERIFIES = "a partition's leader asks whether it is in it"
    COMMITS_V1 = "it commits, EndTxn up to version 4"
    ABORTS_V1 = "it aborts, EndTxn up to version 4"
    COMMITS = "it commits"
    ABORTS = "it aborts"
    COMMITS_AGAIN = "it commits under the epoch before"
    ABORTS_AGAIN = "it aborts under the epoch before"
    TIMES_OUT = "transaction.timeout.ms is over"
    MARKED = "every partition has its marker"
    EXPIRES = "nobody used it for transactional.id.expiration.ms"


class Step(enum.Enum):
    """What is done about an event."""

    BEGIN_EPOCH = "the next epoch, or the next producer id; → Empty"
    FENCE = "fence the producer: abort, → PrepareAbort; the one who takes over asks again"
    ADD = "add them; → Ongoing"
    LOOK = "say which are in it"
    COMMIT = "→ PrepareCommit"
    ABORT = "→ PrepareAbort"
    ABORT_NOTHING = "→ PrepareAbort, without partitions"
    COMPLETE_COMMIT = "→ CompleteCommit"
    COMPLETE_ABORT = "→ CompleteAbort"
    FORGET = "forget it"
    DONE = "it is so already"
    WAIT = "CONCURRENT_TRANSACTIONS"
    REFUSE = "INVALID_TXN_STATE"
    FENCED = "PRODUCER_FENCED"
    NOTHING = "nothing"


def _table() -> Mapping[Event, Mapping[State, Step]]:
    s, e = Step, Event
    # fmt: off
    rows = {
        #                   Empty            Ongoing    PrepareCommit      PrepareAbort      CompleteCommit   CompleteAbort
        e.PRODUCER_BEGINS: (s.BEGIN_EPOCH,   s.FENCE,   s.WAIT,            s.WAIT,           s.BEGIN_EPOCH,   s.BEGIN_EPOCH),
        e.ADDS_NEW:        (s.ADD,           s.ADD,     s.WAIT,            s.WAIT,           s.ADD,           s.ADD),
        e.ADDS_KNOWN:      (s.ADD,           s.DONE,    s.WAIT,            s.WAIT,           s.ADD,           s.ADD),
        e.VERIFIES:        (s.LOOK,          s.LOOK,    s.WAIT,            s.WAIT,           s.LOOK,          s.LOOK),
        e.COMMITS_V1:      (s.REFUSE,        s.COMMIT,  s.WAIT,            s.WAIT,           s.DONE,          s.REFUSE),
        e.ABORTS_V1:       (s.REFUSE,        s.ABORT,   s.WAIT,            s.WAIT,           s.REFUSE,        s.DONE),
        e.COMMITS:         (s.REFUSE,        s.COMMIT,  s.WAIT,            s.WAIT,           s.REFUSE,        s.REFUSE),
        e.ABORTS:          (s.ABORT_NOTHING, s.ABORT,   s.WAIT,            s.WAIT,           s.ABORT_NOTHING, s.ABORT_NOTHING),
        e.COMMITS_AGAIN:   (s.FENCED,        s.FENCED,  s.WAIT,            s.WAIT,           s.DONE,          s.REFUSE),
        e.ABORTS_AGAIN:    (s.FENCED,        s.FENCED,  s.WAIT,            s.WAIT,           s.REFUSE,        s.DONE),
        e.TIMES_OUT:       (s.NOTHING,       s.FENCE,   s.NOTHING,         s.NOTHING,        s.NOTHING,       s.NOTHING),
        e.MARKED:          (s.NOTHING,       s.NOTHING, s.COMPLETE_COMMIT, s.COMPLETE_ABORT, s.NOTHING,       s.NOTHING),
        e.EXPIRES:         (s.FORGET,        s.NOTHING, s.NOTHING,         s.NOTHING,        s.FORGET,        s.FORGET),
    }
    # fmt: on
    return {event: dict(zip(LASTING, row, strict=True)) for event, row in rows.items()}


TABLE = _table()
"""Event, then state: what is done, unless a change is just being written. Then whoever asks is told
CONCURRENT_TRANSACTIONS (but VERIFIES, which looks at what stands), and nothing else happens."""

FOLLOWS: Mapping[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.ONGOING: frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
}
"""Which states can follow on a state."""
