"""Table of the operations that each API needs, as in Kafka 4.3.

`cluster` is checked once per request, before anything else (for configs: for brokers and client metrics); the
other columns are checked for each topic, group or transactional id in the request. Handlers check other
operations themselves: alternatives (CREATE on the cluster instead of on topics) and second operations on the
same resource (DESCRIBE, without which a topic is reported as unknown).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from odradek.protocol import apis
from odradek.protocol.apis import Api
from odradek.replication.controller.acls import AclOperation as Op
from odradek.seams.values import value_class


@value_class
class Rule:
    """Operation needed on each resource type; None if the API has no such resource."""

    cluster: Op | None = None
    topic: Op | None = None
    group: Op | None = None
    transactional_id: Op | None = None


RULES: Final[Mapping[Api, Rule]] = {
    # Records
    apis.PRODUCE: Rule(topic=Op.WRITE, transactional_id=Op.WRITE),
    apis.FETCH: Rule(topic=Op.READ),
    apis.LIST_OFFSETS: Rule(topic=Op.DESCRIBE),
    apis.OFFSET_FOR_LEADER_EPOCH: Rule(topic=Op.DESCRIBE),
    apis.DELETE_RECORDS: Rule(topic=Op.DELETE),
    # Topics
    apis.METADATA: Rule(topic=Op.DESCRIBE),
    apis.DESCRIBE_TOPIC_PARTITIONS: Rule(topic=Op.DESCRIBE),
    apis.DESCRIBE_TOPIC_TIERING: Rule(topic=Op.DESCRIBE),
    apis.CREATE_TOPICS: Rule(topic=Op.CREATE),
    apis.DELETE_TOPICS: Rule(topic=Op.DELETE),
    apis.CREATE_PARTITIONS: Rule(topic=Op.ALTER),
    apis.DESCRIBE_PRODUCERS: Rule(topic=Op.READ),
    # Groups
    apis.FIND_COORDINATOR: Rule(group=Op.DESCRIBE, transactional_id=Op.DESCRIBE),
    apis.JOIN_GROUP: Rule(group=Op.READ),
    apis.SYNC_GROUP: Rule(group=Op.READ),
    apis.HEARTBEAT: Rule(group=Op.READ),
    apis.LEAVE_GROUP: Rule(group=Op.READ),
    apis.OFFSET_COMMIT: Rule(group=Op.READ, topic=Op.READ),
    apis.OFFSET_FETCH: Rule(group=Op.DESCRIBE, topic=Op.DESCRIBE),
    apis.OFFSET_DELETE: Rule(group=Op.DELETE, topic=Op.READ),
    apis.DESCRIBE_GROUPS: Rule(group=Op.DESCRIBE),
    apis.LIST_GROUPS: Rule(group=Op.DESCRIBE),
    apis.DELETE_GROUPS: Rule(group=Op.DELETE),
    apis.CONSUMER_GROUP_HEARTBEAT: Rule(group=Op.READ, topic=Op.DESCRIBE),
    apis.CONSUMER_GROUP_DESCRIBE: Rule(group=Op.DESCRIBE, topic=Op.DESCRIBE),
    # Transactions
    apis.INIT_PRODUCER_ID: Rule(transactional_id=Op.WRITE),
    apis.ADD_PARTITIONS_TO_TXN: Rule(transactional_id=Op.WRITE, topic=Op.WRITE),
    apis.ADD_OFFSETS_TO_TXN: Rule(transactional_id=Op.WRITE, group=Op.READ),
    apis.TXN_OFFSET_COMMIT: Rule(transactional_id=Op.WRITE, group=Op.READ, topic=Op.READ),
    apis.END_TXN: Rule(transactional_id=Op.WRITE),
    apis.DESCRIBE_TRANSACTIONS: Rule(transactional_id=Op.DESCRIBE, topic=Op.DESCRIBE),
    apis.LIST_TRANSACTIONS: Rule(transactional_id=Op.DESCRIBE),
    # Configs: those of brokers and of client metrics are the cluster's
    apis.DESCRIBE_CONFIGS: Rule(
        cluster=Op.DESCRIBE_CONFIGS, topic=Op.DESCRIBE_CONFIGS, group=Op.DESCRIBE_CONFIGS
    ),
    apis.ALTER_CONFIGS: Rule(
        cluster=Op.ALTER_CONFIGS, topic=Op.ALTER_CONFIGS, group=Op.ALTER_CONFIGS
    ),
    apis.INCREMENTAL_ALTER_CONFIGS: Rule(
        cluster=Op.ALTER_CONFIGS, topic=Op.ALTER_CONFIGS, group=Op.ALTER_CONFIGS
    ),
    apis.LIST_CONFIG_RESOURCES: Rule(cluster=Op.DESCRIBE_CONFIGS),
    # The cluster
    apis.DESCRIBE_ACLS: Rule(cluster=Op.DESCRIBE),
    apis.CREATE_ACLS: Rule(cluster=Op.ALTER),
    apis.DELETE_ACLS: Rule(cluster=Op.ALTER),
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: Rule(cluster=Op.DESCRIBE),
    apis.ALTER_USER_SCRAM_CREDENTIALS: Rule(cluster=Op.ALTER),
    apis.DESCRIBE_CLIENT_QUOTAS: Rule(cluster=Op.DESCRIBE_CONFIGS),
    apis.ALTER_CLIENT_QUOTAS: Rule(cluster=Op.ALTER_CONFIGS),
    apis.DESCRIBE_LOG_DIRS: Rule(cluster=Op.DESCRIBE),
    apis.ALTER_REPLICA_LOG_DIRS: Rule(cluster=Op.ALTER),
    apis.ELECT_LEADERS: Rule(cluster=Op.ALTER),
    apis.ALTER_PARTITION_REASSIGNMENTS: Rule(cluster=Op.ALTER),
    apis.LIST_PARTITION_REASSIGNMENTS: Rule(cluster=Op.DESCRIBE),
    apis.UPDATE_FEATURES: Rule(cluster=Op.ALTER),
    apis.DESCRIBE_QUORUM: Rule(cluster=Op.DESCRIBE),
    apis.UNREGISTER_BROKER: Rule(cluster=Op.ALTER),
    apis.WRITE_TXN_MARKERS: Rule(cluster=Op.ALTER),
    # The quorum. On a controller listener Fetch is of the metadata log and needs CLUSTER_ACTION
    apis.VOTE: Rule(cluster=Op.CLUSTER_ACTION),
    apis.BEGIN_QUORUM_EPOCH: Rule(cluster=Op.CLUSTER_ACTION),
    apis.END_QUORUM_EPOCH: Rule(cluster=Op.CLUSTER_ACTION),
    apis.FETCH_SNAPSHOT: Rule(cluster=Op.CLUSTER_ACTION),
    apis.UPDATE_RAFT_VOTER: Rule(cluster=Op.CLUSTER_ACTION),
    apis.ADD_RAFT_VOTER: Rule(cluster=Op.ALTER),
    apis.REMOVE_RAFT_VOTER: Rule(cluster=Op.ALTER),
    # Requests of nodes to the active controller
    apis.ENVELOPE: Rule(cluster=Op.CLUSTER_ACTION),
    apis.DISABLE_REMOTE_TOPIC: Rule(cluster=Op.CLUSTER_ACTION),
    apis.BROKER_REGISTRATION: Rule(cluster=Op.CLUSTER_ACTION),
    apis.BROKER_HEARTBEAT: Rule(cluster=Op.CLUSTER_ACTION),
    apis.CONTROLLER_REGISTRATION: Rule(cluster=Op.CLUSTER_ACTION),
    apis.ALLOCATE_PRODUCER_IDS: Rule(cluster=Op.CLUSTER_ACTION),
    apis.ALTER_PARTITION: Rule(cluster=Op.CLUSTER_ACTION),
    apis.ASSIGN_REPLICAS_TO_DIRS: Rule(cluster=Op.CLUSTER_ACTION),
    # Requests of brokers to the coordinators of diskless topics (D-01)
    **dict.fromkeys(apis.DISKLESS_APIS.values(), Rule(cluster=Op.CLUSTER_ACTION)),
    # Without authorization
    apis.API_VERSIONS: Rule(),
    apis.DESCRIBE_CLUSTER: Rule(),
    apis.GET_TELEMETRY_SUBSCRIPTIONS: Rule(),
    apis.PUSH_TELEMETRY: Rule(),
    apis.CREATE_DELEGATION_TOKEN: Rule(),
    apis.RENEW_DELEGATION_TOKEN: Rule(),
    apis.EXPIRE_DELEGATION_TOKEN: Rule(),
    apis.DESCRIBE_DELEGATION_TOKEN: Rule(),
}
