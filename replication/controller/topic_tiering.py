"""Disables and enables tiered storage of topics in the form of KIP-950.

A topic has a tiered state, and a tiered epoch that increases with every disablement and when it is enabled again:

| state | disable with retain | disable with delete | enable | all brokers have finished |
|---|---|---|---|---|
| ENABLED | DISABLING with retain | DISABLING with delete | unchanged | unchanged |
| DISABLING | in progress | in progress | in progress | DISABLED |
| DISABLED with retain | unchanged | DISABLING with delete | ENABLED | unchanged |
| DISABLED with delete | invalid | unchanged | ENABLED | unchanged |

A change is refused with TIERED_STORAGE_DISABLEMENT_IN_PROGRESS ("in progress") or INVALID_REQUEST ("invalid").

The change of the configs and of the state are committed in one batch. The brokers act on the configs: after
`retain` they no longer copy, after `delete` they raise the log start offset and delete the remote data. The active
controller sends DisableRemoteTopic until every broker has responded that its part is done (`DisablementProgress`).
A new active controller starts with no responses and sends the requests again (X-09).

Apache Kafka's form (`remote.log.delete.on.disable`) does not use this state: as in Kafka, it has no progress.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from odradek.protocol.errors import TIERED_STORAGE_DISABLEMENT_IN_PROGRESS, ErrorCode
from odradek.replication.controller.controller_result import ItemRefused
from odradek.replication.controller.image import (
    NEVER_DISABLED,
    NO_LEADER,
    DisablePolicy,
    MetadataImage,
    TieredState,
    TopicImage,
    TopicTiering,
)

ENABLE: Final = "remote.storage.enable"
DISABLE_POLICY: Final = "remote.log.disable.policy"
DELETE_ON_DISABLE: Final = "remote.log.delete.on.disable"


class DisablementInProgress(ItemRefused):
    """A change of a topic whose tiered storage is being disabled (X-11)."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            TIERED_STORAGE_DISABLEMENT_IN_PROGRESS,
            f"Tiered storage of topic {topic} is being disabled. Retry when all brokers have finished:"
            f" odradek topics tiering {topic}",
        )


def disable(topic: str, before: TopicTiering, policy: DisablePolicy) -> TopicTiering:
    """Tiering of a topic after a disablement (X-01 to X-03). Raises ItemRefused, which may be
    DisablementInProgress."""
    if before.state is TieredState.DISABLING:
        raise DisablementInProgress(topic)
    if before.state is TieredState.DISABLED:
        if policy is before.policy:
            return before
        if policy is DisablePolicy.RETAIN:
            raise _invalid_request("the remote data was deleted and cannot be retained")
    epoch = before.epoch + 1
    deletes = policy is DisablePolicy.DELETE
    return TopicTiering(
        epoch, TieredState.DISABLING, policy, epoch if deletes else before.first_epoch
    )


def enable(topic: str, before: TopicTiering) -> TopicTiering:
    """Tiering of a topic after it was enabled again (X-13). Raises DisablementInProgress."""
    if before.state is TieredState.DISABLING:
        raise DisablementInProgress(topic)
    if before.state is TieredState.ENABLED:
        return before
    return replace(before, epoch=before.epoch + 1, state=TieredState.ENABLED, policy=None)


def complete(before: TopicTiering, epoch: int) -> TopicTiering:
    """Tiering of a topic after all brokers have responded for this tiered epoch (X-08)."""
    if before.state is not TieredState.DISABLING or before.epoch != epoch:
        return before
    return replace(before, state=TieredState.DISABLED)


class DisablementProgress:
    """Responses to DisableRemoteTopic of one topic and tiered epoch.

    A response covers the partitions that the broker led when the request was sent. If another broker
    becomes the leader, it has to respond again, because it may delete what the previous leader did not.

    An incomplete copy may be deleted once its broker copies no more: a leader waits for the copies of the other
    brokers (`copying`), and these report the end of their copies before their own deletions are done.
    """

    def __init__(self, topic_id: UUID, epoch: int) -> None:
        self.topic_id = topic_id
        self.epoch = epoch
        self._responded: dict[int, tuple[int, Mapping[int, int]]] = {}
        """Of each broker that has responded: its broker epoch, and the leader epoch of each partition that it led."""
        self._ended: dict[int, int] = {}
        """Broker epoch of each broker whose copies have ended."""
        self._reasons: dict[int, str] = {}

    def is_current(self, image: MetadataImage) -> bool:
        """Whether the topic exists and is still being disabled in this epoch."""
        tiering = image.tiering.get(self.topic_id)
        return (
            tiering is not None
            and tiering.state is TieredState.DISABLING
            and tiering.epoch == self.epoch
        )

    def responded(self, broker_id: int, sent_with: MetadataImage) -> None:
        """The broker has finished its part, for a request with the offset of this image."""
        broker = sent_with.brokers.get(broker_id)
        topic = sent_with.topics_by_id.get(self.topic_id)
        if broker is not None and topic is not None:
            self.ended_copies(broker_id, sent_with)
            self._responded[broker_id] = broker.epoch, _leader_epochs(topic).get(broker_id, {})
            self._reasons.pop(broker_id, None)

    def ended_copies(self, broker_id: int, sent_with: MetadataImage) -> bool:
        """The broker copies no segment any more, for a request with this image; return whether that is new."""
        broker = sent_with.brokers.get(broker_id)
        if broker is None or self._ended.get(broker_id) == broker.epoch:
            return False
        self._ended[broker_id] = broker.epoch
        return True

    def not_finished(self, broker_id: int, reason: str) -> None:
        """The broker has not finished its part, or cannot be reached."""
        self._reasons[broker_id] = reason

    def reason(self, broker_id: int) -> str | None:
        """Why the broker has not finished; None if it has, or if there is no response yet."""
        return self._reasons.get(broker_id)

    def copying(self, image: MetadataImage) -> list[int]:
        """The registered brokers that may still copy segments, in order. A broker that has restarted may copy until
        its metadata is current."""
        return [
            broker_id
            for broker_id, broker in sorted(image.brokers.items())
            if self._ended.get(broker_id) != broker.epoch
        ]

    def missing(self, image: MetadataImage) -> list[int]:
        """The registered brokers that have to respond, in order."""
        topic = image.topics_by_id.get(self.topic_id)
        if topic is None:
            return []
        led = _leader_epochs(topic)
        return [
            broker_id
            for broker_id, broker in sorted(image.brokers.items())
            if not self._is_done(broker_id, broker.epoch, led.get(broker_id, {}))
        ]

    def is_complete(self, image: MetadataImage) -> bool:
        """Whether every broker has responded, and every partition has a leader that has."""
        topic = image.topics_by_id.get(self.topic_id)
        return (
            topic is not None
            and not self.missing(image)
            and all(each.leader != NO_LEADER for each in topic.partitions.values())
        )

    def _is_done(self, broker_id: int, broker_epoch: int, led: Mapping[int, int]) -> bool:
        found = self._responded.get(broker_id)
        if found is None or found[0] != broker_epoch:
            return False
        return led.items() <= found[1].items()


def _leader_epochs(topic: TopicImage) -> dict[int, dict[int, int]]:
    """Leader epoch of each partition, by leader."""
    by_leader: dict[int, dict[int, int]] = {}
    for index, partition in topic.partitions.items():
        by_leader.setdefault(partition.leader, {})[index] = partition.leader_epoch
    return by_leader


# Configs


def change_tiering(
    image: MetadataImage,
    topic: str,
    before: Mapping[str, str],
    after: Mapping[str, str],
    *,
    requested: Collection[str],
    retain_on_disable: bool,
) -> tuple[Mapping[str, str | None], list[Any]]:
    """Further config changes, and the tiering record, for a change of a topic's configs.

    `requested` are the configs that an incremental request sets. `retain_on_disable`: a disablement without a policy
    retains (X-02). Raises ItemRefused.
    """
    found = image.topics_by_name.get(topic)
    tiering = NEVER_DISABLED if found is None else image.tiering_of(found.id)
    policy = _policy_in(after)
    if tiering.state is TieredState.DISABLING and {ENABLE, DISABLE_POLICY} & set(requested):
        raise DisablementInProgress(topic)
    is_enabled, was_enabled = (_is_true(configs.get(ENABLE)) for configs in (after, before))
    more: dict[str, str | None] = {}
    if is_enabled:
        if policy is not None:
            if before.get(DISABLE_POLICY) != after[DISABLE_POLICY]:
                raise _invalid_request(f"{DISABLE_POLICY} requires {ENABLE}=false")
            more[DISABLE_POLICY] = None
        changed = enable(topic, tiering)
    else:
        if policy is None and was_enabled and retain_on_disable and not _deletes(after):
            policy = DisablePolicy.RETAIN
            more[DISABLE_POLICY] = policy.value
        changed = _disabled(topic, tiering, policy, was_enabled, after)
    if found is None or changed is tiering:
        return more, []
    return more, [tiering_record(found.id, changed)]


def _disabled(
    topic: str,
    tiering: TopicTiering,
    policy: DisablePolicy | None,
    was_enabled: bool,
    after: Mapping[str, str],
) -> TopicTiering:
    """Tiering of a topic whose configs do not enable tiered storage."""
    if policy is None:
        if tiering.state is TieredState.DISABLING:
            raise DisablementInProgress(topic)
        if tiering.policy is DisablePolicy.RETAIN:
            raise _invalid_request(
                f"{DISABLE_POLICY} cannot be removed while remote data is retained. Set it to delete,"
                f" or {ENABLE} to true."
            )
        return tiering
    if not was_enabled and tiering.state is TieredState.ENABLED:
        raise _invalid_request(f"{DISABLE_POLICY} requires a topic with {ENABLE}=true")
    if policy is DisablePolicy.RETAIN and _deletes(after):
        raise _invalid_request(
            f"{DISABLE_POLICY}=retain contradicts {DELETE_ON_DISABLE}=true, which has to be removed first"
        )
    if policy is tiering.policy and tiering.state is TieredState.DISABLING:
        return tiering  # other configs change
    return disable(topic, tiering, policy)


def _policy_in(configs: Mapping[str, str]) -> DisablePolicy | None:
    """The policy in the configs of a topic. Raises ItemRefused (X-12)."""
    text = configs.get(DISABLE_POLICY)
    try:
        return None if text is None else DisablePolicy(text)
    except ValueError:
        known = ", ".join(policy.value for policy in DisablePolicy)
        raise _invalid_request(
            f"Invalid value {text} for configuration {DISABLE_POLICY}: must be one of {known}"
        ) from None


def is_tiered(configs: Mapping[str, str]) -> bool:
    """Whether the configs of a topic enable tiered storage."""
    return _is_true(configs.get(ENABLE))


def _is_true(text: str | None) -> bool:
    return text is not None and text.strip().lower() == "true"


def _deletes(configs: Mapping[str, str]) -> bool:
    return _is_true(configs.get(DELETE_ON_DISABLE))


def _invalid_request(reason: str) -> ItemRefused:
    return ItemRefused(ErrorCode.invalid_request, reason)


# Records


def tiering_record(topic_id: UUID, tiering: TopicTiering) -> Any:
    """A NoOpRecord whose tagged fields are the tiering of a topic: Kafka skips them (X-03)."""
    from odradek.protocol.schemas.cluster_records import NoOpRecord

    return NoOpRecord(
        tiered_topic_id=topic_id,
        tiered_epoch=tiering.epoch,
        tiered_state=int(tiering.state),
        tiered_policy=tiering.policy.value if tiering.policy is not None else "",
        tiered_first_epoch=tiering.first_epoch,
    )
