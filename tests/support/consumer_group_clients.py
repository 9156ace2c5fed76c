"""Members of consumer groups (KIP-848) that send raw requests to a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from odradek.protocol import apis
from tests.support.group_clients import Peer

TOPICS = {"orders": 2, "payments": 4}


JOINS, LEAVES, LEAVES_FOR_NOW = 0, -1, -2


Owned = dict[str, list[int]]


See = Callable[[Any], Any]


class Reader(Peer):
    """A client of one broker, with the topic ids of that broker."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        response = self.ask("admin", apis.METADATA, 12, topics=[{"name": name} for name in TOPICS])
        self.ids: dict[str, UUID] = {each.name: each.topic_id for each in response.topics}

    def beat(self, who: str, group: str, epoch: int, version: int = 1, **fields: Any) -> Any:
        """Send a heartbeat; with epoch 0 it has all fields."""
        owned: Owned | None = fields.pop("owned", {} if epoch == JOINS else None)
        values: dict[str, Any] = {
            "group_id": group,
            "member_id": f"{who}-member",
            "member_epoch": epoch,
            "rebalance_timeout": 60_000 if epoch == JOINS else -1,
            "subscribed_topic_names": ["orders"] if epoch == JOINS else None,
            **fields,
            "topic_partitions": None
            if owned is None
            else [
                {"topic_id": self.ids.get(topic, UUID(int=7)), "partitions": partitions}
                for topic, partitions in owned.items()
            ],
        }
        return self.ask(who, apis.CONSUMER_GROUP_HEARTBEAT, version, **values)

    def look(self, see: See, group: str) -> None:
        """Descriptions and offsets of a group, from all APIs."""
        for version in apis.CONSUMER_GROUP_DESCRIBE.versions:
            asked = {"group_ids": [group], "include_authorized_operations": True}
            see(self.ask("admin", apis.CONSUMER_GROUP_DESCRIBE, version, **asked))
        for version in (5, 6):
            see(self.ask("admin", apis.DESCRIBE_GROUPS, version, groups=[group]))
        listed = self.ask("admin", apis.LIST_GROUPS, 5)
        see(tuple(each for each in listed.groups if each.group_id == group))

    def commit(self, who: str, group: str, epoch: int, version: int = 9, **fields: Any) -> Any:
        named = {"topic_id": self.ids["orders"]} if version >= 10 else {"name": "orders"}
        partitions = [
            {"partition_index": index, "committed_offset": 5, "committed_metadata": ""}
            for index in (0, 1)
        ]
        return self.ask(
            who, apis.OFFSET_COMMIT, version, group_id=group, generation_id_or_member_epoch=epoch,
            topics=[{**named, "partitions": partitions}], **{"member_id": f"{who}-member", **fields},
        )  # fmt: skip

    def fetch(self, group: str, member_id: str | None, epoch: int) -> Any:
        asked = {"group_id": group, "member_id": member_id, "member_epoch": epoch, "topics": None}
        return self.ask("admin", apis.OFFSET_FETCH, 9, groups=[asked])
