"""Registration, heartbeats and session expiration of brokers (KIP-631, KIP-841, KIP-858)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.broker_directories import assign_directories
from odradek.replication.controller.broker_heartbeat_manager import BrokerHeartbeatManager
from odradek.replication.controller.broker_heartbeats import (
    BrokerHeartbeat,
    HeartbeatResponse,
    fence_stale_broker,
    process_broker_heartbeat,
    register_broker_session,
)
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.topics import NewTopic
from tests.support.cluster_images import (
    cluster,
    committed,
    create,
    directory,
    formatted,
    partition,
    perform,
    registration,
)

TIMEOUT_MS = 9000
CAUGHT_UP, FENCED, GO = "caught up", "fenced", "go"


class Controller:
    """Active controller with a clock. Its records are committed at once."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.now_ms = 1000
        self.records: Sequence[Any] = ()
        self.begin_term()

    def begin_term(self) -> None:
        self.sessions = BrokerHeartbeatManager(self.image, self.now_ms, timeout_ms=TIMEOUT_MS)

    def register(self, broker: int, incarnation: int = 0, **changes: Any) -> int:
        who = registration(broker, incarnation=incarnation, **changes)
        plan = register_broker_session(self.image, self.sessions, who, now_ms=self.now_ms)
        self.image, epoch = perform(self.image, plan)
        return epoch

    def heartbeat(self, broker: int, *, offset: int | None = None, **wants: Any) -> set[str]:
        """Process a heartbeat; by default the broker has replayed all records."""
        known = self.image.brokers[broker]
        at = self.image.offset if offset is None else offset
        plan = process_broker_heartbeat(
            self.image,
            self.sessions,
            BrokerHeartbeat(broker, known.epoch, at, **wants),
            now_ms=self.now_ms,
        )
        self.records = plan.records
        self.image, response = perform(self.image, plan)
        return reported(response)

    def fence_expired(self) -> int | None:
        plan = fence_stale_broker(self.image, self.sessions, now_ms=self.now_ms)
        self.image, broker = perform(self.image, plan)
        return broker


def reported(response: HeartbeatResponse) -> set[str]:
    flags = {
        CAUGHT_UP: response.is_caught_up,
        FENCED: response.is_fenced,
        GO: response.should_shut_down,
    }
    return {flag for flag, is_set in flags.items() if is_set}


@pytest.fixture
def controller() -> Controller:
    """Three active brokers, a topic that broker 1 leads, and one that only broker 1 has."""
    image, _ = create(
        cluster(3),
        NewTopic("t", assignments={0: (1, 2, 3)}),
        NewTopic("alone", assignments={0: (1,)}),
    )
    return Controller(image)


# Registration and unfencing


def test_broker_is_unfenced_after_replaying_its_registration() -> None:
    controller = Controller(formatted())
    epoch = controller.register(1)
    assert controller.heartbeat(1, offset=epoch - 1) == {FENCED}
    assert controller.heartbeat(1, offset=epoch, want_fence=True) == {CAUGHT_UP, FENCED}
    assert controller.records == []
    assert controller.heartbeat(1, offset=epoch) == {CAUGHT_UP}
    assert controller.image.brokers[1].active
    assert controller.heartbeat(1, offset=epoch) == {CAUGHT_UP}
    assert controller.records == []


def test_unfencing_requires_the_registration_offset(
    controller: Controller,
) -> None:
    """The broker epoch is the offset of the first record, which removes the previous incarnation."""
    controller.now_ms += TIMEOUT_MS
    epoch = controller.register(1, incarnation=1)
    assert controller.image.offset > epoch
    assert controller.heartbeat(1, offset=epoch) == {FENCED}
    assert controller.heartbeat(1, offset=controller.image.offset) == {CAUGHT_UP}


def test_new_controller_requires_its_start_offset(controller: Controller) -> None:
    controller.now_ms += TIMEOUT_MS
    epoch = controller.register(1, incarnation=1)
    controller.begin_term()
    assert controller.heartbeat(1, offset=epoch) == {FENCED}
    assert controller.heartbeat(1) == {CAUGHT_UP}


def test_new_incarnation_waits_for_session_expiration(controller: Controller) -> None:
    epoch = controller.image.brokers[1].epoch
    assert controller.register(1) == epoch, "the same one may always"
    controller.heartbeat(1)
    controller.now_ms += TIMEOUT_MS - 1
    with pytest.raises(KafkaError) as refused:
        controller.register(1, incarnation=1)
    assert refused.value.code is ErrorCode.duplicate_broker_registration
    controller.now_ms += 1
    assert controller.register(1, incarnation=1) > epoch


def test_fenced_broker_with_heartbeat_has_a_session(controller: Controller) -> None:
    controller.heartbeat(1, want_fence=True)
    with pytest.raises(KafkaError) as refused:
        controller.register(1, incarnation=1)
    assert refused.value.code is ErrorCode.duplicate_broker_registration


def test_unregistered_id_can_be_registered(controller: Controller) -> None:
    from odradek.replication.controller.broker_registration import unregister_broker

    controller.image = committed(controller.image, unregister_broker(controller.image, 1).records)
    controller.register(1, incarnation=1)
    assert controller.heartbeat(1) == {CAUGHT_UP}


# Clean and unclean shutdowns (KIP-966)


@pytest.mark.parametrize(("clean", "eligible"), [(True, (1,)), (False, ())])
def test_broker_stays_in_elr_after_clean_shutdown(
    controller: Controller, clean: bool, eligible: tuple[int, ...]
) -> None:
    epoch = controller.image.brokers[1].epoch
    assert controller.heartbeat(1, want_shut_down=True, want_fence=True) == {CAUGHT_UP, FENCED, GO}
    assert partition(controller.image, "alone").elr == (1,)
    controller.register(1, incarnation=1, previous_epoch=epoch if clean else -1)
    assert partition(controller.image, "alone").elr == eligible
    assert partition(controller.image, "alone").last_known_elr == (1,)
    controller.heartbeat(1)
    found = partition(controller.image, "alone")
    assert (found.leader, found.leader_recovery_state) == (1, 0 if clean else 1)


def test_new_incarnation_of_unfenced_broker_leaves_isr_and_leadership(
    controller: Controller,
) -> None:
    epoch = controller.image.brokers[1].epoch
    controller.now_ms += TIMEOUT_MS
    controller.register(1, incarnation=1, previous_epoch=epoch)
    assert (partition(controller.image, "t").leader, partition(controller.image, "t").isr) == (
        2,
        (2, 3),
    )
    assert controller.image.brokers[1].fenced


# Controlled shutdown


def test_controlled_shutdown_ends_when_unfenced_brokers_have_replayed_it(
    controller: Controller,
) -> None:
    """KIP-841: leaders move first, while the broker still serves requests."""
    for broker in (2, 3):
        controller.heartbeat(broker)
    assert controller.heartbeat(1, want_shut_down=True) == {CAUGHT_UP}
    moved = controller.image.offset
    assert controller.image.brokers[1].in_controlled_shutdown
    assert not controller.image.brokers[1].fenced
    assert (partition(controller.image, "t").leader, partition(controller.image, "t").isr) == (
        2,
        (2, 3),
    )
    assert partition(controller.image, "alone").leader == -1

    assert controller.heartbeat(1, want_shut_down=True) == {CAUGHT_UP}, (
        "no other broker has replayed it"
    )
    assert controller.records == []
    controller.heartbeat(2, offset=moved)
    controller.heartbeat(3, offset=moved - 1)
    assert controller.heartbeat(1, want_shut_down=True) == {CAUGHT_UP}, "3 does not know yet"
    controller.heartbeat(3, offset=moved)
    assert controller.heartbeat(1, want_shut_down=True) == {CAUGHT_UP, FENCED, GO}
    assert controller.image.brokers[1].fenced


def test_broker_without_leaders_shuts_down_at_once(controller: Controller) -> None:
    assert controller.heartbeat(3, want_shut_down=True) == {CAUGHT_UP, FENCED, GO}
    assert controller.image.brokers[3].fenced
    assert partition(controller.image, "t").isr == (1, 2)


def test_last_broker_shuts_down_at_once(controller: Controller) -> None:
    for broker in (2, 3):
        controller.heartbeat(broker, want_fence=True)
    assert controller.heartbeat(1, want_shut_down=True) == {CAUGHT_UP}
    assert controller.heartbeat(1, want_shut_down=True) == {CAUGHT_UP, FENCED, GO}


def test_fenced_broker_shuts_down_at_once(controller: Controller) -> None:
    assert controller.heartbeat(1, want_fence=True) == {CAUGHT_UP, FENCED}
    assert controller.heartbeat(1, offset=0, want_shut_down=True) == {FENCED, GO}


def test_broker_after_controlled_shutdown_can_be_replaced_at_once(controller: Controller) -> None:
    controller.heartbeat(3, want_shut_down=True)
    controller.register(3, incarnation=1)
    assert controller.heartbeat(3) == {CAUGHT_UP}


def test_partly_committed_shutdown_continues_with_next_heartbeat(
    controller: Controller,
) -> None:
    before = controller.image
    controller.heartbeat(1, want_shut_down=True)
    # The remaining changes exceed the batch
    controller.image = committed(before, controller.records[:1])
    assert partition(controller.image, "t").leader == 1
    assert controller.heartbeat(1, want_shut_down=True) == {CAUGHT_UP}
    assert partition(controller.image, "t").leader == 2
    for broker in (2, 3):
        controller.heartbeat(broker)
    assert GO in controller.heartbeat(1, want_shut_down=True)


def test_new_controller_continues_controlled_shutdown(controller: Controller) -> None:
    controller.heartbeat(1, want_shut_down=True)
    controller.begin_term()
    assert controller.heartbeat(1, want_shut_down=True) == {CAUGHT_UP, FENCED, GO}


def test_broker_that_died_during_controlled_shutdown_can_be_replaced_at_once(
    controller: Controller,
) -> None:
    """KAFKA-19047: the session is live, but the broker was in controlled shutdown."""
    epoch = controller.image.brokers[1].epoch
    for broker in (2, 3):
        controller.heartbeat(broker)
    assert controller.heartbeat(1, want_shut_down=True) == {CAUGHT_UP}
    assert controller.register(1, incarnation=1, previous_epoch=epoch) > epoch
    found = controller.image.brokers[1]
    assert (found.fenced, found.in_controlled_shutdown) == (True, False)
    assert controller.heartbeat(1) == {CAUGHT_UP}
    assert partition(controller.image, "alone").leader == 1
    with pytest.raises(KafkaError) as refused:
        controller.register(1, incarnation=2)
    assert refused.value.code is ErrorCode.duplicate_broker_registration


def test_broker_without_heartbeat_can_be_replaced_at_once(controller: Controller) -> None:
    """The session of the previous incarnation, which was in controlled shutdown, does not apply to it."""
    for broker in (2, 3):
        controller.heartbeat(broker)
    assert controller.heartbeat(1, want_shut_down=True) == {CAUGHT_UP}
    controller.register(1, incarnation=1)
    epoch = controller.register(1, incarnation=2)
    assert controller.image.brokers[1].epoch == epoch
    controller.heartbeat(1)
    with pytest.raises(KafkaError) as refused:
        controller.register(1, incarnation=3)
    assert refused.value.code is ErrorCode.duplicate_broker_registration


def test_broker_in_controlled_shutdown_must_register_again(controller: Controller) -> None:
    controller.heartbeat(1, want_shut_down=True)
    controller.now_ms += TIMEOUT_MS
    while controller.fence_expired() is not None:
        pass
    assert controller.image.brokers[1].fenced
    assert controller.heartbeat(1) == {CAUGHT_UP, FENCED}
    assert controller.heartbeat(1, want_shut_down=True) == {CAUGHT_UP, FENCED, GO}


# Session expiration


def test_expired_brokers_are_fenced_one_at_a_time_oldest_first(controller: Controller) -> None:
    for broker in (1, 3):
        controller.now_ms += 10
        controller.heartbeat(broker)
    controller.now_ms = 1010 + TIMEOUT_MS - 1
    assert [controller.fence_expired() for _ in range(2)] == [2, None]
    controller.now_ms += 11
    assert [controller.fence_expired() for _ in range(3)] == [1, 3, None]
    assert partition(controller.image, "t").leader == -1
    assert partition(controller.image, "t").last_known_elr == (3,)
    assert controller.sessions.next_deadline_ms is None


def test_heartbeat_keeps_the_session(controller: Controller) -> None:
    for broker in (1, 2, 3):
        controller.heartbeat(broker)
    deadline = controller.sessions.next_deadline_ms
    assert deadline == controller.now_ms + TIMEOUT_MS
    controller.now_ms = deadline - 1
    assert controller.fence_expired() is None
    controller.heartbeat(1)
    controller.now_ms = deadline
    assert controller.fence_expired() == 2


def test_uncommitted_fencing_is_repeated(controller: Controller) -> None:
    controller.now_ms += TIMEOUT_MS
    for _ in range(2):
        plan = fence_stale_broker(controller.image, controller.sessions, now_ms=controller.now_ms)
        assert plan.result == 1
        assert plan.records


def test_expired_broker_is_unfenced_by_next_heartbeat(
    controller: Controller,
) -> None:
    controller.now_ms += TIMEOUT_MS
    assert controller.fence_expired() == 1
    assert controller.heartbeat(1) == {CAUGHT_UP}
    assert controller.image.brokers[1].active
    assert partition(controller.image, "alone").leader == 1


def test_heartbeat_of_earlier_incarnation_is_stale(controller: Controller) -> None:
    deadline = controller.sessions.next_deadline_ms
    stale = BrokerHeartbeat(1, controller.image.brokers[1].epoch - 1, 99)
    for heartbeat in (stale, BrokerHeartbeat(9, 0, 99)):
        with pytest.raises(KafkaError) as refused:
            process_broker_heartbeat(controller.image, controller.sessions, heartbeat, now_ms=5000)
        assert refused.value.code is ErrorCode.stale_broker_epoch
    assert controller.sessions.next_deadline_ms == deadline


# Directories


def test_heartbeat_reports_offline_directories() -> None:
    """KIP-858: a broker that restarts without one of its directories leads the partitions in the other."""
    image, _ = create(
        cluster(2, directories=2),
        NewTopic("a", assignments={0: (1,)}),
        NewTopic("b", assignments={0: (1,)}),
    )
    where = {
        (image.topics_by_name[name].id, 0): directory(1, number)
        for number, name in enumerate(("a", "b"))
    }
    epoch = image.brokers[1].epoch
    image = committed(image, assign_directories(image, 1, epoch, where).records)
    controller = Controller(image)
    controller.heartbeat(1, want_fence=True)
    assert partition(controller.image, "b").leader == -1
    assert controller.heartbeat(1, offline=[directory(1, 1)]) == {CAUGHT_UP}
    assert partition(controller.image, "a").leader == 1
    found = partition(controller.image, "b")
    assert (found.leader, found.leader_epoch, found.elr) == (-1, 1, (1,))
    assert controller.image.brokers[1].directories == (directory(1, 0),)
    controller.heartbeat(1, offline=[directory(1, 1)])
    assert controller.records == []


def test_heartbeat_reports_cordoned_directories(controller: Controller) -> None:
    """KIP-1066. None: the broker has not reported its cordoned directories yet."""
    controller.heartbeat(1, cordoned=None)
    assert controller.records == []
    controller.heartbeat(1, cordoned=[directory(1)])
    assert controller.image.brokers[1].cordoned_directories == (directory(1),)
    assert not controller.image.brokers[1].has_uncordoned_directory
    controller.heartbeat(1, cordoned=[directory(1)])
    assert controller.records == []
