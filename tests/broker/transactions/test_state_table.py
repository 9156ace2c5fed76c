"""Every event in every state does what the table says, and a state changes only into what follows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from odradek.broker.transactions import records
from odradek.broker.transactions.actions import (
    NO_EPOCH,
    Outcome,
    Producer,
    ProducerResponse,
    Stored,
)
from odradek.broker.transactions.states import (
    AT_REST,
    BY_CODE,
    FOLLOWS,
    LASTING,
    PREPARED,
    TABLE,
    Event,
    State,
    Step,
)
from odradek.broker.transactions.transaction import Transaction
from odradek.protocol.errors import ErrorCode
from tests.broker.transactions.stage import ID, WALL_MS, WEEK_MS, Request, Stage, partition

PRODUCER = Producer(1000, 5)
BEFORE = Producer(1000, 4)
NONE = ErrorCode.none


def in_state(state: State, version: int = 2) -> Stage:
    """A stage on which the transaction is in the state, its producer 1000/5, and partitions wait."""
    partitions = () if state in AT_REST else (partition("t-0"),)
    stored = Stored(
        1000, 5, 60_000, state, WALL_MS, partitions, WALL_MS, client_version=version, last_epoch=4
    )
    stage = Stage(version)
    stage.partitions_wait = True
    stage.shard.transactions[ID] = Transaction(ID, stored)
    client = stage.client("P")
    client.producer, client.version = PRODUCER, version
    return stage


def ends(*, is_commit: bool, producer: Producer, version: int) -> Callable[[Stage], Request]:
    def happen(stage: Stage) -> Request:
        stage.client("P").producer = producer
        stage.client("P").version = version
        return stage.end("P", is_commit=is_commit)

    return happen


def marked(stage: Stage) -> None:
    transaction = stage.transaction
    assert transaction is not None
    (sending,) = transaction._send(transaction.stored.partitions, attempt=0).markers
    outcomes = dict.fromkeys(sending.partitions, Outcome.WRITTEN)
    stage.do(stage.shard.marked(sending, outcomes, stage.now))


def expires(stage: Stage) -> None:
    stage.now_ms = WEEK_MS
    stage.do(stage.shard.expire(ID, stage.now, WEEK_MS))


def adds(*partitions: str) -> Callable[[Stage], Request]:
    return lambda stage: stage.add("P", *partitions)


HAPPEN: Mapping[Event, Callable[[Stage], Request | None]] = {
    Event.PRODUCER_BEGINS: lambda stage: stage.begin("Q"),
    Event.ADDS_NEW: adds("t-0", "u-0"),
    Event.ADDS_KNOWN: adds("t-0"),
    Event.VERIFIES: lambda stage: stage.verify("P", "t-0"),
    Event.COMMITS_V1: ends(is_commit=True, producer=PRODUCER, version=0),
    Event.ABORTS_V1: ends(is_commit=False, producer=PRODUCER, version=0),
    Event.COMMITS: ends(is_commit=True, producer=PRODUCER, version=2),
    Event.ABORTS: ends(is_commit=False, producer=PRODUCER, version=2),
    Event.COMMITS_AGAIN: ends(is_commit=True, producer=BEFORE, version=2),
    Event.ABORTS_AGAIN: ends(is_commit=False, producer=BEFORE, version=2),
    Event.TIMES_OUT: lambda stage: stage.advance(60_001),
    Event.MARKED: marked,
    Event.EXPIRES: expires,
}

PRESENT = {Event.COMMITS_V1, Event.ABORTS_V1, Event.COMMITS, Event.ABORTS, Event.ADDS_KNOWN}
"""Under the epoch that is the last one known here: another coordinator may know of more."""

BECOMES: Mapping[Step, State] = {
    Step.BEGIN_EPOCH: State.EMPTY,
    Step.FENCE: State.PREPARE_ABORT,
    Step.ADD: State.ONGOING,
    Step.COMMIT: State.PREPARE_COMMIT,
    Step.ABORT: State.PREPARE_ABORT,
    Step.ABORT_NOTHING: State.COMPLETE_ABORT,
    Step.COMPLETE_COMMIT: State.COMPLETE_COMMIT,
    Step.COMPLETE_ABORT: State.COMPLETE_ABORT,
}
RESPONSES: Mapping[Step, ErrorCode] = {
    Step.FENCE: ErrorCode.concurrent_transactions,
    Step.WAIT: ErrorCode.concurrent_transactions,
    Step.REFUSE: ErrorCode.invalid_txn_state,
    Step.FENCED: ErrorCode.producer_fenced,
}


def told(request: Request | None) -> ErrorCode | None:
    if request is None:
        return None
    respond = request.respond
    if isinstance(respond, ProducerResponse):
        return respond.error
    (code,) = set(respond.errors.values())
    return code


@pytest.mark.parametrize(
    ("event", "state"), list(product(Event, LASTING)), ids=lambda each: each.name.lower()
)
def test_every_cell(event: Event, state: State) -> None:
    stage = in_state(state, version=0 if event in (Event.COMMITS_V1, Event.ABORTS_V1) else 2)
    step, before = TABLE[event][state], stage.shard.transactions[ID].stored
    request = HAPPEN[event](stage)
    if step is Step.FORGET:
        assert stage.transaction is None
        assert stage.log[-1][1] is None
        return
    transaction = stage.transaction
    assert transaction is not None
    assert transaction.stored.state is BECOMES.get(step, state)
    assert transaction.pending is None
    is_confirmed = event in PRESENT and step in (Step.DONE, Step.REFUSE)
    assert bool(stage.log) == (step in BECOMES or is_confirmed)
    if is_confirmed:
        assert stage.log == [records.encode(ID, before, stage.version)]
    if request is not None:
        expected = ErrorCode.transaction_abortable if step is Step.LOOK else NONE
        known = step is Step.LOOK and state is State.ONGOING
        assert told(request) is (NONE if known else RESPONSES.get(step, expected))
    if step in (Step.COMMIT, Step.ABORT, Step.FENCE):
        (sent,) = stage.sent
        assert sent.is_commit == (step is Step.COMMIT)
        assert (sent.producer, sent.partitions) == (transaction.producer, (partition("t-0"),))


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("step", [Step.COMMIT, Step.ABORT, Step.FENCE])
def test_who_ends_a_transaction_moves_its_epoch_on(step: Step, version: int) -> None:
    stage = in_state(State.ONGOING, version)
    if step is Step.FENCE:
        stage.begin("Q")
    else:
        stage.end("P", is_commit=step is Step.COMMIT)
    moves = step is Step.FENCE or version == 2
    assert stage.transaction is not None
    assert stage.transaction.producer == (1000, 6 if moves else 5)
    assert stage.sent[0].transaction_version == version


@pytest.mark.parametrize(
    ("event", "state"), list(product(Event, LASTING)), ids=lambda each: each.name.lower()
)
def test_while_a_change_is_being_written_everyone_waits(event: Event, state: State) -> None:
    stage = in_state(state, version=0 if event in (Event.COMMITS_V1, Event.ABORTS_V1) else 2)
    assert stage.transaction is not None
    stage.transaction.pending = next(iter(FOLLOWS[state]))
    request = HAPPEN[event](stage)
    assert not stage.log
    assert stage.transaction.stored.state is state
    if event is Event.VERIFIES:
        assert request is not None
        assert request.respond is not None
    elif request is not None:
        assert told(request) is ErrorCode.concurrent_transactions


@pytest.mark.parametrize("state", LASTING)
@pytest.mark.parametrize(
    ("producer", "code"),
    [
        (Producer(999, 5), ErrorCode.invalid_producer_id_mapping),
        (Producer(1000, 6), ErrorCode.producer_fenced),
        (Producer(1000, 3), ErrorCode.producer_fenced),
    ],
)
@pytest.mark.parametrize("version", [0, 2])
def test_strangers_are_turned_away(
    state: State, producer: Producer, code: ErrorCode, version: int
) -> None:
    stage = in_state(state, version)
    stage.client("P").producer = producer
    # Until the end is complete nobody's epoch is looked at, but by who asks only about what stands,
    # and at EndTxn's older versions.
    waits = ErrorCode.concurrent_transactions if state in PREPARED else code
    ends = code if version == 0 else waits
    assert told(stage.verify("P", "t-0")) is code
    assert told(stage.add("P", "t-0")) is waits
    before = stage.shard.transactions[ID].stored
    assert told(stage.end("P", is_commit=True)) is ends
    assert told(stage.end("P", is_commit=False)) is ends
    assert stage.shard.transactions[ID].stored == before
    may_be_known_elsewhere = producer == Producer(1000, 6) and state not in PREPARED
    assert len(stage.log) == (4 if may_be_known_elsewhere else 0)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("state", LASTING)
def test_nobody_is_fenced_in_an_epoch_to_come_while_a_change_is_being_written(
    state: State, version: int
) -> None:
    """It can't be, as long as it may be that others lead the partition."""
    stage = in_state(state, version)
    assert stage.transaction is not None
    stage.transaction.pending = next(iter(FOLLOWS[state]))
    stage.client("P").producer = Producer(1000, 6)
    for request in (
        stage.verify("P", "t-0"),
        stage.add("P", "t-0"),
        stage.end("P", is_commit=True),
        stage.end("P", is_commit=False),
        stage.begin("P", as_itself=True),
    ):
        assert told(request) is ErrorCode.concurrent_transactions
    assert not stage.log


@pytest.mark.parametrize(
    ("version", "state", "code"),
    [
        (0, State.EMPTY, ErrorCode.invalid_txn_state),
        (0, State.COMPLETE_COMMIT, NONE),
        (0, State.COMPLETE_ABORT, ErrorCode.invalid_txn_state),
        (2, State.EMPTY, ErrorCode.invalid_txn_state),
        (2, State.COMPLETE_COMMIT, ErrorCode.invalid_txn_state),
        (2, State.COMPLETE_ABORT, ErrorCode.invalid_txn_state),
    ],
)
def test_a_commit_of_nothing_is_answered_once_the_replicas_agree(
    version: int, state: State, code: ErrorCode
) -> None:
    """A coordinator that is cut off knows nothing of transactions that began elsewhere since."""
    stage = in_state(state, version)
    stage.holding = True
    request = stage.end("P", is_commit=True)
    assert request.respond is None
    assert told(stage.add("P", "t-0")) is ErrorCode.concurrent_transactions
    stage.release(ErrorCode.not_coordinator)
    assert told(request) is ErrorCode.not_coordinator
    again = stage.end("P", is_commit=True)
    stage.release()
    assert told(again) is code


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("state", sorted(PREPARED, key=lambda each: each.code))
def test_a_producer_that_ends_its_next_transaction_early_asks_again(
    state: State, is_commit: bool
) -> None:
    """It was answered under its next epoch while partitions are still told: not fenced, but early."""
    stage = in_state(state)
    assert stage.transaction is not None
    stage.client("P").producer = stage.transaction.producer
    assert told(stage.end("P", is_commit=is_commit)) is ErrorCode.concurrent_transactions
    assert not stage.log


@pytest.mark.parametrize("state", sorted(AT_REST, key=lambda each: each.code))
@pytest.mark.parametrize(
    ("expected", "became"),
    [
        (PRODUCER, Producer(1000, 6)),
        (BEFORE, PRODUCER),
        (Producer(1000, 3), None),
        (Producer(1000, 6), None),
        (Producer(999, 5), None),
    ],
)
def test_a_producer_that_says_who_it_is(
    state: State, expected: Producer, became: Producer | None
) -> None:
    stage = in_state(state)
    stage.client("P").producer = expected
    request = stage.begin("P", as_itself=True)
    assert told(request) is (ErrorCode.producer_fenced if became is None else NONE)
    if became is not None:
        assert (request.respond.producer_id, request.respond.epoch) == became


@pytest.mark.parametrize("expected", [32765, 32764])
def test_a_retry_where_the_epochs_are_used_up(expected: int) -> None:
    """Kafka answers both with UNKNOWN_SERVER_ERROR: nobody could be given another epoch."""
    stage = in_state(State.EMPTY)
    assert stage.transaction is not None
    stage.transaction.stored = replace(stage.transaction.stored, epoch=32766, last_epoch=32765)
    stage.client("P").producer = Producer(1000, expected)
    request = stage.begin("P", as_itself=True)
    assert told(request) is (NONE if expected == 32765 else ErrorCode.producer_fenced)
    assert stage.transaction.producer == (1000, 32766)


def test_the_id_before_is_known_only_by_its_last_epoch() -> None:
    stage = in_state(State.EMPTY)
    assert stage.transaction is not None
    stage.transaction.stored = replace(stage.transaction.stored, previous_producer_id=999)
    stage.client("P").producer = Producer(999, 5)
    assert told(stage.begin("P", as_itself=True)) is ErrorCode.producer_fenced


@pytest.mark.parametrize(("client", "cluster"), [(0, 2), (2, 0), (2, 1)])
def test_a_fence_is_of_the_clusters_version(client: int, cluster: int) -> None:
    """Partitions are told by which rules the epoch moved on; who is fenced has no say in it."""
    stage = in_state(State.ONGOING, client)
    stage.version = cluster
    stage.begin("Q")
    assert stage.sent[0].transaction_version == (2 if cluster == 2 else 0)


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_markers_of_a_transaction_that_is_over_complete_no_other(state: State) -> None:
    stage = in_state(state)
    transaction = stage.transaction
    assert transaction is not None
    (sending,) = transaction._send((partition("t-0"),), attempt=0).markers
    late = replace(sending, producer=BEFORE)
    stage.do(stage.shard.marked(late, {partition("t-0"): Outcome.WRITTEN}, stage.now))
    assert transaction.stored.state is state
    assert transaction.stored.partitions == (partition("t-0"),)


def test_the_epoch_before_is_not_known_after_anyone_began() -> None:
    stage = in_state(State.EMPTY)
    stage.begin("Q")
    assert stage.transaction is not None
    assert stage.transaction.stored.last_epoch == NO_EPOCH


def test_the_table_is_whole() -> None:
    assert {event: set(row) for event, row in TABLE.items()} == {e: set(LASTING) for e in Event}
    used = {step for row in TABLE.values() for step in row.values()}
    assert used == set(Step), "a step that no cell uses"
    assert set(FOLLOWS) == set(LASTING)
    for row in TABLE.values():
        for state, step in row.items():
            after = State.PREPARE_ABORT if step is Step.ABORT_NOTHING else BECOMES.get(step)
            assert after is None or after in FOLLOWS[state]


def test_states_have_kafkas_codes_and_names() -> None:
    assert [(BY_CODE[code].value, BY_CODE[code].code) for code in range(8)] == [
        ("Empty", 0),
        ("Ongoing", 1),
        ("PrepareCommit", 2),
        ("PrepareAbort", 3),
        ("CompleteCommit", 4),
        ("CompleteAbort", 5),
        ("Dead", 6),
        ("PrepareEpochFence", 7),
    ]


PAGE = Path(__file__).parents[3] / "docs" / "transactions.md"


def table_as_markdown() -> str:
    names = " | ".join(state.value for state in LASTING)
    lines = [f"| | {names} |", "|---|" + "---|" * len(LASTING)]
    for event, row in TABLE.items():
        cells = ("" if row[state] is Step.NOTHING else row[state].value for state in LASTING)
        lines.append(f"| **{event.value}** | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def test_the_page_shows_the_table() -> None:
    text = PAGE.read_text()
    before, start, rest = text.partition("ODRADEK_REWRITE=1 -->\n")
    _, end, after = rest.partition("<!-- the end of the table -->")
    wanted = f"{before}{start}{table_as_markdown()}{end}{after}"
    if os.environ.get("ODRADEK_REWRITE"):
        PAGE.write_text(wanted)
    assert text == wanted
