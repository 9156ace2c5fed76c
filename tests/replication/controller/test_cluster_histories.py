"""Random histories of a cluster: invariants after any sequence of controller operations.

The image equals the one that its snapshot yields, and the one that all records yield. Deltas contain exactly the
differences. The leader of a partition is in the ISR, the ISR and the ELR are disjoint, every replica has a directory,
and epochs do not decrease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from odradek.protocol.errors import KafkaError
from odradek.replication.controller import broker_directories, broker_fencing, broker_registration
from odradek.replication.controller.broker_directories import assign_directories
from odradek.replication.controller.configs import ConfigAlteration, incremental_alter_configs
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.create_partitions import NewPartitions, create_partitions
from odradek.replication.controller.features import (
    DEFAULT_FEATURES,
    ELIGIBLE_LEADER_REPLICAS,
    METADATA_VERSION,
    elr_enabled,
)
from odradek.replication.controller.image import BROKER, TOPIC, MetadataDelta, MetadataImage
from odradek.replication.controller.image_builder import apply_records
from odradek.replication.controller.image_records import snapshot_records
from odradek.replication.controller.leader_and_isr_updates import MIN_ISR
from odradek.replication.controller.producer_ids import allocate_producer_ids
from odradek.replication.controller.topics import (
    NewTopic,
    TopicDefaults,
    create_topics,
    delete_topics,
)
from tests.replication.controller.history_checks import check_epochs, rebuilt
from tests.support.cluster_images import (
    any_config,
    cluster,
    create,
    directory,
    entropy,
    registration,
)

BROKERS = st.integers(1, 4)
TOPICS = st.sampled_from(["a", "b", "c.d", "c_d"])


class ClusterHistory(RuleBasedStateMachine):
    features: ClassVar[Mapping[str, int]] = DEFAULT_FEATURES

    def __init__(self) -> None:
        super().__init__()
        image = cluster(3, racks=["r", "s"], features=self.features)
        self.image, _ = create(image, NewTopic("a", 2, 3), NewTopic("b", 1, 1), seed=9)
        self.log = list(snapshot_records(self.image))  # compared with the records by an invariant
        self.incarnations = 0
        self.entropy = entropy(1)

    def decide(self, operation: Callable[[], ControllerResult[Any]]) -> Any:
        try:
            plan = operation()
        except KafkaError:
            return None
        before = self.image
        delta = apply_records(before, plan.records, offset=before.offset + len(plan.records))
        self.image = delta.image
        self.log += plan.records
        check_delta(delta)
        check_epochs(before, self.image)
        return plan.result

    # Operations

    @rule(broker=BROKERS, clean=st.booleans(), at_once=st.booleans(), unclean=st.booleans())
    def restart(self, broker: int, clean: bool, at_once: bool, unclean: bool) -> None:
        self.incarnations += 1
        known = self.image.brokers.get(broker)
        who = registration(
            broker,
            rack="r" if broker % 2 else None,
            directories=2 if broker == 4 else 1,
            incarnation=self.incarnations,
            previous_epoch=known.epoch if clean and known else -1,
        )
        register = broker_fencing.start_broker if at_once else broker_registration.register_broker
        self.decide(
            lambda: register(
                self.image, who, next_offset=self.image.offset + 1, unclean_election=unclean
            )
        )

    @rule(
        broker=BROKERS,
        operation=st.sampled_from(
            [
                broker_fencing.fence_broker,
                broker_fencing.unfence_broker,
                broker_fencing.begin_controlled_shutdown,
            ]
        ),
        unclean=st.booleans(),
    )
    def change_broker(self, broker: int, operation: Any, unclean: bool) -> None:
        known = self.image.brokers.get(broker)
        epoch = known.epoch if known else 0
        self.decide(lambda: operation(self.image, broker, epoch, unclean_election=unclean))

    @rule(broker=BROKERS)
    def unregister(self, broker: int) -> None:
        self.decide(lambda: broker_registration.unregister_broker(self.image, broker))

    @rule(broker=BROKERS, number=st.integers(0, 1), cordon=st.booleans())
    def lose_directory(self, broker: int, number: int, cordon: bool) -> None:
        known = self.image.brokers.get(broker)
        epoch = known.epoch if known else 0
        where = [directory(broker, number)]
        operation = (
            broker_directories.mark_directories_cordoned
            if cordon
            else broker_directories.mark_directories_offline
        )
        self.decide(lambda: operation(self.image, broker, epoch, where))

    @rule(broker=BROKERS)
    def recover(self, broker: int) -> None:
        self.restart(broker, clean=False, at_once=True, unclean=False)

    @rule(
        name=TOPICS,
        partitions=st.integers(1, 3),
        factor=st.integers(1, 4),
        min_isr=st.sampled_from([None, "1", "2", "3"]),
    )
    def create(self, name: str, partitions: int, factor: int, min_isr: str | None) -> None:
        configs = {} if min_isr is None else {MIN_ISR: min_isr}
        self.decide(
            lambda: create_topics(
                self.image,
                [NewTopic(name, partitions, factor, configs=configs)],
                entropy=self.entropy,
                defaults=TopicDefaults(),
                validate_config=any_config,
            )
        )

    @rule(names=st.lists(TOPICS, max_size=2))
    def delete(self, names: list[str]) -> None:
        self.decide(lambda: delete_topics(self.image, names))

    @rule(name=TOPICS, count=st.integers(1, 6))
    def grow(self, name: str, count: int) -> None:
        self.decide(
            lambda: create_partitions(
                self.image, [NewPartitions(name, count)], entropy=self.entropy
            )
        )

    @rule(
        resource=st.sampled_from([(TOPIC, "a"), (TOPIC, "c.d"), (BROKER, ""), (BROKER, "1")]),
        name=st.sampled_from([MIN_ISR, "unclean.leader.election.enable"]),
        value=st.sampled_from([None, "1", "2", "true"]),
    )
    def configure(self, resource: tuple[int, str], name: str, value: str | None) -> None:
        if name == MIN_ISR and value == "true":
            return
        change = ConfigAlteration(name, 1 if value is None else 0, value)
        self.decide(
            lambda: incremental_alter_configs(
                self.image, [(resource, [change])], validate_config=any_config, list_configs={}
            )
        )

    @rule(broker=BROKERS, number=st.integers(0, 1))
    def assign(self, broker: int, number: int) -> None:
        known = self.image.brokers.get(broker)
        epoch = known.epoch if known else 0
        where = {
            (topic_id, index): directory(broker, number)
            for topic_id, topic in self.image.topics_by_id.items()
            for index in topic.partitions
        }
        self.decide(lambda: assign_directories(self.image, broker, epoch, where))

    @rule(broker=BROKERS)
    def take_producer_ids(self, broker: int) -> None:
        known = self.image.brokers.get(broker)
        epoch = known.epoch if known else 0
        self.decide(lambda: allocate_producer_ids(self.image, broker, epoch))

    # Invariants

    @invariant()
    def the_snapshot_gives_the_image(self) -> None:
        assert rebuilt(self.image) == self.image

    @invariant()
    def the_log_gives_the_image(self) -> None:
        replayed = apply_records(MetadataImage(), self.log, offset=self.image.offset).image
        assert replace(replayed, epoch=self.image.epoch) == self.image

    @invariant()
    def partitions_are_in_order(self) -> None:
        image = self.image
        assert {topic.id for topic in image.topics_by_name.values()} == set(image.topics_by_id)
        for topic in image.topics_by_id.values():
            assert list(topic.partitions) == list(range(len(topic.partitions)))
            for partition in topic.partitions.values():
                assert len(partition.directories) == len(partition.replicas)
                assert len(set(partition.isr)) == len(partition.isr)
                assert set(partition.isr) <= set(partition.replicas)
                assert set(partition.elr) <= set(partition.replicas)
                assert not set(partition.elr) & set(partition.isr)
                assert len(partition.last_known_elr) <= 1
                if partition.leader >= 0:
                    assert partition.leader in partition.isr
                    assert image.is_active(partition.leader)
                    assert partition.last_known_elr == ()
                elif elr_enabled(image.features):
                    assert partition.isr == ()
                else:
                    assert partition.isr, "some replica is known to have all committed records"


def check_delta(delta: MetadataDelta) -> None:
    """A delta contains only the differences between the images."""
    before, after = delta.before, delta.image
    assert set(delta.created_topics) == set(after.topics_by_id) - set(before.topics_by_id)
    assert set(delta.deleted_topics) == set(before.topics_by_id) - set(after.topics_by_id)
    for topic_id, topic in after.topics_by_id.items():
        known = before.topics_by_id.get(topic_id)
        for index, partition in topic.partitions.items():
            same = known is not None and known.partitions.get(index) == partition
            reported = delta.changed_partitions.get((topic_id, index))
            assert reported == partition if reported is not None else same
    for resource in {*before.configs, *after.configs}:
        if before.configs.get(resource) != after.configs.get(resource):
            assert resource in delta.changed_configs
    for broker in {*before.brokers, *after.brokers}:
        changed = before.brokers.get(broker) != after.brokers.get(broker)
        assert changed == (broker in delta.changed_brokers)


class WithoutElr(ClusterHistory):
    features: ClassVar[Mapping[str, int]] = {**DEFAULT_FEATURES, ELIGIBLE_LEADER_REPLICAS: 0}


class BeforeDirectories(ClusterHistory):
    features: ClassVar[Mapping[str, int]] = {METADATA_VERSION: 14}


SETTINGS = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestClusterHistory = ClusterHistory.TestCase
TestClusterHistory.settings = SETTINGS
TestWithoutElr = WithoutElr.TestCase
TestWithoutElr.settings = SETTINGS
TestBeforeDirectories = BeforeDirectories.TestCase
TestBeforeDirectories.settings = SETTINGS
