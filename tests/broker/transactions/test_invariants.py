"""Random histories with lost responses, crashes, failed appends and slow replicas, with invariants."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.broker.transactions.messages import TRANSACTION_VERSION_2, MarkerResult, SendMarkers
from odradek.broker.transactions.transaction_states import PREPARE_STATES
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition
from tests.broker.transactions.transaction_shard_driver import Request, Stage

PARTITIONS = ("t-0", "t-1", "u-0")

names = st.sampled_from("PQ")
is_received = st.booleans()
steps = st.one_of(
    st.tuples(st.just("begin"), names, st.booleans(), is_received),
    st.tuples(st.just("add"), names, st.sets(st.sampled_from(PARTITIONS), min_size=1)),
    st.tuples(st.just("end"), names, st.booleans(), is_received),
    st.tuples(st.just("end"), names, st.booleans(), is_received),
    st.tuples(st.just("time"), st.sampled_from([1, 59_000, 61_000, 86_400_000 * 8])),
    st.tuples(st.just("kill")),
    st.tuples(st.just("fail")),
    st.tuples(st.just("replicas"), st.sampled_from(["hold", "release", "give up"])),
    st.tuples(st.just("partitions"), st.sampled_from(["wait", "response", "one later"])),
)


class World(Stage):
    """A stage, and the markers and responses that it has sent."""

    def __init__(self, version: int, client_version: int) -> None:
        super().__init__(version)
        for name in "PQ":
            self.client(name).version = client_version
        self.given: set[tuple[int, int]] = set()

    def play(self, step: tuple[object, ...]) -> Request | None:
        match step:
            case ("begin", str(name), bool(as_itself), bool(hears)):
                return self.begin(name, as_itself=as_itself, is_received=hears)
            case ("add", str(name), set(partitions)):
                return self.add(name, *sorted(partitions))
            case ("end", str(name), bool(is_commit), bool(hears)):
                return self.end(name, is_commit=is_commit, is_received=hears)
            case ("time", int(ms)):
                self.advance(ms)
            case ("kill",):
                self.restart()
            case ("fail",):
                self.fail_with = ErrorCode.coordinator_not_available
            case ("replicas", "hold"):
                self.holding = True
            case ("replicas", str(what)):
                self.holding = False
                code = ErrorCode.coordinator_not_available if what == "give up" else None
                self.release(code)
            case ("partitions", "wait"):
                self.partitions_wait = True
            case ("partitions", "one later"):
                self.respond_markers({TopicPartition("t", 0): MarkerResult.RETRY})
            case ("partitions", _):
                self.partitions_wait = False
                self.respond_markers()
        return None

    def heal(self) -> None:
        """End all failures and let time pass."""
        self.fail_with, self.holding, self.partitions_wait = None, False, False
        self.release()
        for _ in range(5):
            self.respond_markers()


def check_markers(received: list[SendMarkers], version: int) -> None:
    """No partition gets a commit and an abort marker with the same epoch, if every transaction has its
    own epoch (KIP-890)."""
    if version < TRANSACTION_VERSION_2:
        return
    ends: dict[tuple[object, TopicPartition], bool] = {}
    for sent in received:
        for each in sent.partitions:
            assert ends.setdefault((sent.producer, each), sent.is_commit) == sent.is_commit


@given(st.lists(steps, max_size=30), st.sampled_from([(2, 2), (2, 0), (1, 0), (0, 0)]))
@settings(deadline=None, max_examples=150)
def test_random_histories(history: list[tuple[object, ...]], versions: tuple[int, int]) -> None:
    world = World(*versions)
    for step in history:
        request = world.play(step)
        transaction = world.transaction
        if transaction is not None and transaction.pending is None and not world.held:
            stands = world.replayed().transactions.get(transaction.transactional_id)
            assert stands is not None
        if request is not None and request.what == "init" and request.response is not None:
            response = request.response
            if response.error is ErrorCode.none and step[0] == "begin" and not step[2]:
                given = (response.producer_id, response.epoch)
                assert given not in world.given, "two producers got the same epoch"
                world.given.add(given)
    world.heal()
    transaction = world.transaction
    if transaction is not None:
        assert transaction.pending is None
        assert transaction.metadata.state not in PREPARE_STATES, "a transaction is never completed"
    check_markers(world.received, versions[1])
    for request in world.requests:
        assert len(request.responses) <= 1


@given(st.lists(steps, max_size=20), st.sampled_from([(2, 2), (0, 0)]))
@settings(deadline=None, max_examples=100)
def test_acknowledged_state_survives_crash(
    history: list[tuple[object, ...]], versions: tuple[int, int]
) -> None:
    """An acknowledged commit or abort is written to the partitions, whenever the broker crashes."""
    world = World(*versions)
    for step in history:
        before = len(world.received)
        request = world.play(step)
        if request is None or request.what not in ("commit", "abort") or not request.responses:
            continue
        if request.response.error is not ErrorCode.none:
            continue
        world.restart()
        is_commit = request.what == "commit"
        for sent in world.received[before:]:
            assert sent.is_commit == is_commit
