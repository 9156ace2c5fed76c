"""Every event in every state has the action of the table, and only valid transitions occur."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from odradek.broker.transactions import record_serde as records
from odradek.broker.transactions.messages import (
    NO_PRODUCER_EPOCH,
    MarkerResult,
    ProducerIdAndEpoch,
    ProducerResponse,
    TransactionMetadata,
)
from odradek.broker.transactions.transaction import Transaction
from odradek.broker.transactions.transaction_states import (
    IDLE_STATES,
    PERSISTENT_STATES,
    PREPARE_STATES,
    STATE_BY_CODE,
    TRANSACTION_ACTIONS,
    VALID_TRANSITIONS,
    TransactionAction,
    TransactionEvent,
    TransactionState,
)
from odradek.protocol.errors import ErrorCode
from tests.broker.transactions.transaction_shard_driver import (
    ID,
    WALL_MS,
    WEEK_MS,
    Request,
    Stage,
    partition,
)

PRODUCER = ProducerIdAndEpoch(1000, 5)
BEFORE = ProducerIdAndEpoch(1000, 4)
NONE = ErrorCode.none


def in_state(state: TransactionState, version: int = 2) -> Stage:
    """A stage with the transaction in this state, producer 1000/5, and pending markers."""
    partitions = () if state in IDLE_STATES else (partition("t-0"),)
    metadata = TransactionMetadata(
        1000, 5, 60_000, state, WALL_MS, partitions, WALL_MS, client_version=version, last_epoch=4
    )
    stage = Stage(version)
    stage.partitions_wait = True
    stage.shard.transactions[ID] = Transaction(ID, metadata)
    client = stage.client("P")
    client.producer, client.version = PRODUCER, version
    return stage


def ends(
    *, is_commit: bool, producer: ProducerIdAndEpoch, version: int
) -> Callable[[Stage], Request]:
    def happen(stage: Stage) -> Request:
        stage.client("P").producer = producer
        stage.client("P").version = version
        return stage.end("P", is_commit=is_commit)

    return happen


def marked(stage: Stage) -> None:
    transaction = stage.transaction
    assert transaction is not None
    (markers_to_send,) = transaction._send(transaction.metadata.partitions, attempt=0).markers
    results = dict.fromkeys(markers_to_send.partitions, MarkerResult.WRITTEN)
    stage.do(stage.shard.on_markers_sent(markers_to_send, results, stage.now))


def expires(stage: Stage) -> None:
    stage.now_ms = WEEK_MS
    stage.do(stage.shard.expire(ID, stage.now, WEEK_MS))


def adds(*partitions: str) -> Callable[[Stage], Request]:
    return lambda stage: stage.add("P", *partitions)


HAPPEN: Mapping[TransactionEvent, Callable[[Stage], Request | None]] = {
    TransactionEvent.INIT_PRODUCER_ID: lambda stage: stage.begin("Q"),
    TransactionEvent.ADD_NEW_PARTITIONS: adds("t-0", "u-0"),
    TransactionEvent.ADD_EXISTING_PARTITIONS: adds("t-0"),
    TransactionEvent.VERIFY_PARTITIONS: lambda stage: stage.verify("P", "t-0"),
    TransactionEvent.COMMIT_V1: ends(is_commit=True, producer=PRODUCER, version=0),
    TransactionEvent.ABORT_V1: ends(is_commit=False, producer=PRODUCER, version=0),
    TransactionEvent.END_WITH_COMMIT: ends(is_commit=True, producer=PRODUCER, version=2),
    TransactionEvent.END_WITH_ABORT: ends(is_commit=False, producer=PRODUCER, version=2),
    TransactionEvent.RETRY_COMMIT: ends(is_commit=True, producer=BEFORE, version=2),
    TransactionEvent.RETRY_ABORT: ends(is_commit=False, producer=BEFORE, version=2),
    TransactionEvent.TIMEOUT: lambda stage: stage.advance(60_001),
    TransactionEvent.MARKERS_WRITTEN: marked,
    TransactionEvent.EXPIRATION: expires,
}

PRESENT = {
    TransactionEvent.COMMIT_V1,
    TransactionEvent.ABORT_V1,
    TransactionEvent.END_WITH_COMMIT,
    TransactionEvent.END_WITH_ABORT,
    TransactionEvent.ADD_EXISTING_PARTITIONS,
}
"""With the current epoch: another coordinator may know a newer one."""

BECOMES: Mapping[TransactionAction, TransactionState] = {
    TransactionAction.BUMP_EPOCH: TransactionState.EMPTY,
    TransactionAction.FENCE: TransactionState.PREPARE_ABORT,
    TransactionAction.ADD: TransactionState.ONGOING,
    TransactionAction.COMMIT: TransactionState.PREPARE_COMMIT,
    TransactionAction.ABORT: TransactionState.PREPARE_ABORT,
    TransactionAction.ABORT_WITHOUT_PARTITIONS: TransactionState.COMPLETE_ABORT,
    TransactionAction.COMPLETE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionAction.COMPLETE_ABORT: TransactionState.COMPLETE_ABORT,
}
RESPONSES: Mapping[TransactionAction, ErrorCode] = {
    TransactionAction.FENCE: ErrorCode.concurrent_transactions,
    TransactionAction.WAIT: ErrorCode.concurrent_transactions,
    TransactionAction.REFUSE: ErrorCode.invalid_txn_state,
    TransactionAction.FENCED: ErrorCode.producer_fenced,
}


def received(request: Request | None) -> ErrorCode | None:
    if request is None:
        return None
    response = request.response
    if isinstance(response, ProducerResponse):
        return response.error
    (code,) = set(response.errors.values())
    return code


@pytest.mark.parametrize(
    ("event", "state"),
    list(product(TransactionEvent, PERSISTENT_STATES)),
    ids=lambda each: each.name.lower(),
)
def test_table_of_all_events_and_states(event: TransactionEvent, state: TransactionState) -> None:
    stage = in_state(
        state, version=0 if event in (TransactionEvent.COMMIT_V1, TransactionEvent.ABORT_V1) else 2
    )
    step, before = TRANSACTION_ACTIONS[event][state], stage.shard.transactions[ID].metadata
    request = HAPPEN[event](stage)
    if step is TransactionAction.REMOVE:
        assert stage.transaction is None
        assert stage.log[-1][1] is None
        return
    transaction = stage.transaction
    assert transaction is not None
    assert transaction.metadata.state is BECOMES.get(step, state)
    assert transaction.pending is None
    is_confirmed = event in PRESENT and step in (TransactionAction.DONE, TransactionAction.REFUSE)
    assert bool(stage.log) == (step in BECOMES or is_confirmed)
    if is_confirmed:
        assert stage.log == [records.encode(ID, before, stage.version)]
    if request is not None:
        expected = ErrorCode.transaction_abortable if step is TransactionAction.VERIFY else NONE
        known = step is TransactionAction.VERIFY and state is TransactionState.ONGOING
        assert received(request) is (NONE if known else RESPONSES.get(step, expected))
    if step in (TransactionAction.COMMIT, TransactionAction.ABORT, TransactionAction.FENCE):
        (sent,) = stage.sent
        assert sent.is_commit == (step is TransactionAction.COMMIT)
        assert (sent.producer, sent.partitions) == (transaction.producer, (partition("t-0"),))


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize(
    "step", [TransactionAction.COMMIT, TransactionAction.ABORT, TransactionAction.FENCE]
)
def test_end_txn_increments_epoch(step: TransactionAction, version: int) -> None:
    stage = in_state(TransactionState.ONGOING, version)
    if step is TransactionAction.FENCE:
        stage.begin("Q")
    else:
        stage.end("P", is_commit=step is TransactionAction.COMMIT)
    moves = step is TransactionAction.FENCE or version == 2
    assert stage.transaction is not None
    assert stage.transaction.producer == (1000, 6 if moves else 5)
    assert stage.sent[0].transaction_version == version


@pytest.mark.parametrize(
    ("event", "state"),
    list(product(TransactionEvent, PERSISTENT_STATES)),
    ids=lambda each: each.name.lower(),
)
def test_pending_append_returns_concurrent_transactions(
    event: TransactionEvent, state: TransactionState
) -> None:
    stage = in_state(
        state, version=0 if event in (TransactionEvent.COMMIT_V1, TransactionEvent.ABORT_V1) else 2
    )
    assert stage.transaction is not None
    stage.transaction.pending = next(iter(VALID_TRANSITIONS[state]))
    request = HAPPEN[event](stage)
    assert not stage.log
    assert stage.transaction.metadata.state is state
    if event is TransactionEvent.VERIFY_PARTITIONS:
        assert request is not None
        assert request.response is not None
    elif request is not None:
        assert received(request) is ErrorCode.concurrent_transactions


@pytest.mark.parametrize("state", PERSISTENT_STATES)
@pytest.mark.parametrize(
    ("producer", "code"),
    [
        (ProducerIdAndEpoch(999, 5), ErrorCode.invalid_producer_id_mapping),
        (ProducerIdAndEpoch(1000, 6), ErrorCode.producer_fenced),
        (ProducerIdAndEpoch(1000, 3), ErrorCode.producer_fenced),
    ],
)
@pytest.mark.parametrize("version", [0, 2])
def test_unknown_producers_are_rejected(
    state: TransactionState, producer: ProducerIdAndEpoch, code: ErrorCode, version: int
) -> None:
    stage = in_state(state, version)
    stage.client("P").producer = producer
    # While the transaction is prepared, epochs are checked only by VerifyOnly and by EndTxn below v5.
    waits = ErrorCode.concurrent_transactions if state in PREPARE_STATES else code
    ends = code if version == 0 else waits
    assert received(stage.verify("P", "t-0")) is code
    assert received(stage.add("P", "t-0")) is waits
    before = stage.shard.transactions[ID].metadata
    assert received(stage.end("P", is_commit=True)) is ends
    assert received(stage.end("P", is_commit=False)) is ends
    assert stage.shard.transactions[ID].metadata == before
    may_be_known_elsewhere = producer == ProducerIdAndEpoch(1000, 6) and state not in PREPARE_STATES
    assert len(stage.log) == (4 if may_be_known_elsewhere else 0)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("state", PERSISTENT_STATES)
def test_newer_epoch_is_not_fenced_during_pending_append(
    state: TransactionState, version: int
) -> None:
    """Another broker may be the leader of the partition."""
    stage = in_state(state, version)
    assert stage.transaction is not None
    stage.transaction.pending = next(iter(VALID_TRANSITIONS[state]))
    stage.client("P").producer = ProducerIdAndEpoch(1000, 6)
    for request in (
        stage.verify("P", "t-0"),
        stage.add("P", "t-0"),
        stage.end("P", is_commit=True),
        stage.end("P", is_commit=False),
        stage.begin("P", as_itself=True),
    ):
        assert received(request) is ErrorCode.concurrent_transactions
    assert not stage.log


@pytest.mark.parametrize(
    ("version", "state", "code"),
    [
        (0, TransactionState.EMPTY, ErrorCode.invalid_txn_state),
        (0, TransactionState.COMPLETE_COMMIT, NONE),
        (0, TransactionState.COMPLETE_ABORT, ErrorCode.invalid_txn_state),
        (2, TransactionState.EMPTY, ErrorCode.invalid_txn_state),
        (2, TransactionState.COMPLETE_COMMIT, ErrorCode.invalid_txn_state),
        (2, TransactionState.COMPLETE_ABORT, ErrorCode.invalid_txn_state),
    ],
)
def test_commit_without_transaction_waits_for_high_watermark(
    version: int, state: TransactionState, code: ErrorCode
) -> None:
    """A partitioned coordinator does not know transactions that started at the new coordinator."""
    stage = in_state(state, version)
    stage.holding = True
    request = stage.end("P", is_commit=True)
    assert request.response is None
    assert received(stage.add("P", "t-0")) is ErrorCode.concurrent_transactions
    stage.release(ErrorCode.not_coordinator)
    assert received(request) is ErrorCode.not_coordinator
    again = stage.end("P", is_commit=True)
    stage.release()
    assert received(again) is code


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("state", sorted(PREPARE_STATES, key=lambda each: each.code))
def test_end_of_next_transaction_during_prepare_is_retried(
    state: TransactionState, is_commit: bool
) -> None:
    """A producer with its next epoch is early, not fenced, while markers are written."""
    stage = in_state(state)
    assert stage.transaction is not None
    stage.client("P").producer = stage.transaction.producer
    assert received(stage.end("P", is_commit=is_commit)) is ErrorCode.concurrent_transactions
    assert not stage.log


@pytest.mark.parametrize("state", sorted(IDLE_STATES, key=lambda each: each.code))
@pytest.mark.parametrize(
    ("expected", "became"),
    [
        (PRODUCER, ProducerIdAndEpoch(1000, 6)),
        (BEFORE, PRODUCER),
        (ProducerIdAndEpoch(1000, 3), None),
        (ProducerIdAndEpoch(1000, 6), None),
        (ProducerIdAndEpoch(999, 5), None),
    ],
)
def test_init_producer_id_with_expected_producer(
    state: TransactionState, expected: ProducerIdAndEpoch, became: ProducerIdAndEpoch | None
) -> None:
    stage = in_state(state)
    stage.client("P").producer = expected
    request = stage.begin("P", as_itself=True)
    assert received(request) is (ErrorCode.producer_fenced if became is None else NONE)
    if became is not None:
        assert (request.response.producer_id, request.response.epoch) == became


@pytest.mark.parametrize("expected", [32765, 32764])
def test_retry_with_exhausted_epoch(expected: int) -> None:
    """Kafka returns UNKNOWN_SERVER_ERROR to both."""
    stage = in_state(TransactionState.EMPTY)
    assert stage.transaction is not None
    stage.transaction.metadata = replace(stage.transaction.metadata, epoch=32766, last_epoch=32765)
    stage.client("P").producer = ProducerIdAndEpoch(1000, expected)
    request = stage.begin("P", as_itself=True)
    assert received(request) is (NONE if expected == 32765 else ErrorCode.producer_fenced)
    assert stage.transaction.producer == (1000, 32766)


def test_previous_producer_id_is_accepted_only_with_exhausted_epoch() -> None:
    stage = in_state(TransactionState.EMPTY)
    assert stage.transaction is not None
    stage.transaction.metadata = replace(stage.transaction.metadata, previous_producer_id=999)
    stage.client("P").producer = ProducerIdAndEpoch(999, 5)
    assert received(stage.begin("P", as_itself=True)) is ErrorCode.producer_fenced


@pytest.mark.parametrize(("client", "cluster"), [(0, 2), (2, 0), (2, 1)])
def test_fencing_depends_on_transaction_version(client: int, cluster: int) -> None:
    """Markers have the transaction version of the cluster, not of the fenced client."""
    stage = in_state(TransactionState.ONGOING, client)
    stage.version = cluster
    stage.begin("Q")
    assert stage.sent[0].transaction_version == (2 if cluster == 2 else 0)


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_late_markers_do_not_complete_next_transaction(state: TransactionState) -> None:
    stage = in_state(state)
    transaction = stage.transaction
    assert transaction is not None
    (markers_to_send,) = transaction._send((partition("t-0"),), attempt=0).markers
    late = replace(markers_to_send, producer=BEFORE)
    stage.do(stage.shard.on_markers_sent(late, {partition("t-0"): MarkerResult.WRITTEN}, stage.now))
    assert transaction.metadata.state is state
    assert transaction.metadata.partitions == (partition("t-0"),)


def test_previous_epoch_is_rejected_after_next_transaction_started() -> None:
    stage = in_state(TransactionState.EMPTY)
    stage.begin("Q")
    assert stage.transaction is not None
    assert stage.transaction.metadata.last_epoch == NO_PRODUCER_EPOCH


def test_table_covers_all_events_and_states() -> None:
    assert {event: set(event_kind) for event, event_kind in TRANSACTION_ACTIONS.items()} == {
        e: set(PERSISTENT_STATES) for e in TransactionEvent
    }
    used = {step for event_kind in TRANSACTION_ACTIONS.values() for step in event_kind.values()}
    assert used == set(TransactionAction), "an action that no cell uses"
    assert set(VALID_TRANSITIONS) == set(PERSISTENT_STATES)
    for event_kind in TRANSACTION_ACTIONS.values():
        for state, step in event_kind.items():
            after = (
                TransactionState.PREPARE_ABORT
                if step is TransactionAction.ABORT_WITHOUT_PARTITIONS
                else BECOMES.get(step)
            )
            assert after is None or after in VALID_TRANSITIONS[state]


def test_states_have_kafkas_codes_and_names() -> None:
    assert [(STATE_BY_CODE[code].value, STATE_BY_CODE[code].code) for code in range(8)] == [
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
    names = " | ".join(state.value for state in PERSISTENT_STATES)
    lines = [f"| | {names} |", "|---|" + "---|" * len(PERSISTENT_STATES)]
    for event, event_kind in TRANSACTION_ACTIONS.items():
        cells = [
            "" if event_kind[state] is TransactionAction.NOTHING else event_kind[state].value
            for state in PERSISTENT_STATES
        ]
        if event is TransactionEvent.TIMEOUT:  # not a request: there is no response
            cells = [cell.replace("return CONCURRENT_TRANSACTIONS; ", "") for cell in cells]
        lines.append(f"| **{event.value}** | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def test_docs_page_has_table() -> None:
    text = PAGE.read_text()
    before, start, rest = text.partition("ODRADEK_REWRITE=1 -->\n")
    _, end, after = rest.partition("<!-- the end of the table -->")
    wanted = f"{before}{start}{table_as_markdown()}{end}{after}"
    if os.environ.get("ODRADEK_REWRITE"):
        PAGE.write_text(wanted)
    assert text == wanted
