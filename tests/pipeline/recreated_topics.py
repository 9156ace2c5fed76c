"""Deletes and recreates topics."""

from __future__ import annotations

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.testing import Broker


def recreate_topic(broker: Broker, topic: str, partitions: int) -> tuple[str, str]:
    """Recreate the topic; return the old and the new topic id in Kafka's format."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    old = topic_id(admin, topic)
    (deleted,) = admin.delete_topics([topic]).values()
    deleted.result(30)
    while True:
        (made,) = admin.create_topics([NewTopic(topic, partitions)]).values()
        try:
            made.result(30)
            break
        except KafkaException as error:
            if "exists" not in str(error):
                raise
    return old, topic_id(admin, topic)


def topic_id(admin: AdminClient, topic: str) -> str:
    (described,) = admin.describe_topics(TopicCollection([topic])).values()
    text = str(described.result(30).topic_id)
    # Librdkafka's base64 alphabet differs from Kafka's
    return text.replace("+", "-").replace("/", "_")
