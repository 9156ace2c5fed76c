"""The table of the APIs of Apache Kafka 4.3, with one row for each.

Dispatch, ApiVersions and docs/compatibility.md are derived from it. `PRIVATE_APIS` has those that Kafka lacks. A node
serves the APIs for which it has a handler. The versions are the stable ones; InitProducerId 6 is unreleased in 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Flag, auto

from odradek.seams.values import value_class

NEVER = 1 << 15
"""Value of `flexible_version` of an API without flexible versions."""


class Listeners(Flag):
    """Listeners that serve an API: those of brokers, of controllers, or of both."""

    BROKER = auto()
    CONTROLLER = auto()
    EITHER = BROKER | CONTROLLER


BROKER, CONTROLLER, EITHER = Listeners.BROKER, Listeners.CONTROLLER, Listeners.EITHER


@value_class
class Api:
    """An API with its lowest and highest version, both inclusive."""

    key: int
    name: str
    """Name of the API in kio, such as `list_offsets`."""
    min_version: int
    max_version: int
    flexible_version: int
    """First flexible version (KIP-482: compact encodings and tagged fields), or NEVER."""
    listeners: Listeners
    advertised_min: int
    """Lowest version that ApiVersions returns (for Produce 0, KAFKA-18659)."""

    @property
    def title(self) -> str:
        """Name of the API in Kafka, such as `ListOffsets`."""
        return self.name.title().replace("_", "")

    @property
    def versions(self) -> range:
        return range(self.min_version, self.max_version + 1)

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def flexible(self, version: int) -> bool:
        return version >= self.flexible_version

    def __hash__(self) -> int:
        return self.key


APIS: Mapping[int, Api]
_rows: dict[int, Api] = {}


def _api(
    key: int,
    name: str,
    low: int,
    high: int,
    flexible: int,
    listeners: Listeners,
    advertised_min: int | None = None,
) -> Api:
    lowest_shown = low if advertised_min is None else advertised_min
    row = Api(key, name, low, high, flexible, listeners, lowest_shown)
    _rows[key] = row
    return row


PRODUCE = _api(0, "produce", 3, 13, 9, BROKER, advertised_min=0)
FETCH = _api(1, "fetch", 4, 18, 12, EITHER)
LIST_OFFSETS = _api(2, "list_offsets", 1, 11, 6, BROKER)
METADATA = _api(3, "metadata", 0, 13, 9, BROKER)
OFFSET_COMMIT = _api(8, "offset_commit", 2, 10, 8, BROKER)
OFFSET_FETCH = _api(9, "offset_fetch", 1, 10, 6, BROKER)
FIND_COORDINATOR = _api(10, "find_coordinator", 0, 6, 3, BROKER)
JOIN_GROUP = _api(11, "join_group", 0, 9, 6, BROKER)
HEARTBEAT = _api(12, "heartbeat", 0, 4, 4, BROKER)
LEAVE_GROUP = _api(13, "leave_group", 0, 5, 4, BROKER)
SYNC_GROUP = _api(14, "sync_group", 0, 5, 4, BROKER)
DESCRIBE_GROUPS = _api(15, "describe_groups", 0, 6, 5, BROKER)
LIST_GROUPS = _api(16, "list_groups", 0, 5, 3, BROKER)
SASL_HANDSHAKE = _api(17, "sasl_handshake", 0, 1, NEVER, EITHER)
API_VERSIONS = _api(18, "api_versions", 0, 4, 3, EITHER)
CREATE_TOPICS = _api(19, "create_topics", 2, 7, 5, EITHER)
DELETE_TOPICS = _api(20, "delete_topics", 1, 6, 4, EITHER)
DELETE_RECORDS = _api(21, "delete_records", 0, 2, 2, BROKER)
INIT_PRODUCER_ID = _api(22, "init_producer_id", 0, 5, 2, BROKER)
OFFSET_FOR_LEADER_EPOCH = _api(23, "offset_for_leader_epoch", 2, 4, 4, BROKER)
ADD_PARTITIONS_TO_TXN = _api(24, "add_partitions_to_txn", 0, 5, 3, BROKER)
ADD_OFFSETS_TO_TXN = _api(25, "add_offsets_to_txn", 0, 4, 3, BROKER)
END_TXN = _api(26, "end_txn", 0, 5, 3, BROKER)
WRITE_TXN_MARKERS = _api(27, "write_txn_markers", 1, 2, 1, BROKER)
TXN_OFFSET_COMMIT = _api(28, "txn_offset_commit", 0, 5, 3, BROKER)
DESCRIBE_ACLS = _api(29, "describe_acls", 1, 3, 2, EITHER)
CREATE_ACLS = _api(30, "create_acls", 1, 3, 2, EITHER)
DELETE_ACLS = _api(31, "delete_acls", 1, 3, 2, EITHER)
DESCRIBE_CONFIGS = _api(32, "describe_configs", 1, 4, 4, EITHER)
ALTER_CONFIGS = _api(33, "alter_configs", 0, 2, 2, EITHER)
ALTER_REPLICA_LOG_DIRS = _api(34, "alter_replica_log_dirs", 1, 2, 2, BROKER)
DESCRIBE_LOG_DIRS = _api(35, "describe_log_dirs", 1, 5, 2, BROKER)
SASL_AUTHENTICATE = _api(36, "sasl_authenticate", 0, 2, 2, EITHER)
CREATE_PARTITIONS = _api(37, "create_partitions", 0, 3, 2, EITHER)
CREATE_DELEGATION_TOKEN = _api(38, "create_delegation_token", 1, 3, 2, EITHER)
RENEW_DELEGATION_TOKEN = _api(39, "renew_delegation_token", 1, 2, 2, EITHER)
EXPIRE_DELEGATION_TOKEN = _api(40, "expire_delegation_token", 1, 2, 2, EITHER)
DESCRIBE_DELEGATION_TOKEN = _api(41, "describe_delegation_token", 1, 3, 2, EITHER)
DELETE_GROUPS = _api(42, "delete_groups", 0, 2, 2, BROKER)
ELECT_LEADERS = _api(43, "elect_leaders", 0, 2, 2, EITHER)
INCREMENTAL_ALTER_CONFIGS = _api(44, "incremental_alter_configs", 0, 1, 1, EITHER)
ALTER_PARTITION_REASSIGNMENTS = _api(45, "alter_partition_reassignments", 0, 1, 0, EITHER)
LIST_PARTITION_REASSIGNMENTS = _api(46, "list_partition_reassignments", 0, 0, 0, EITHER)
OFFSET_DELETE = _api(47, "offset_delete", 0, 0, NEVER, BROKER)
DESCRIBE_CLIENT_QUOTAS = _api(48, "describe_client_quotas", 0, 1, 1, BROKER)
ALTER_CLIENT_QUOTAS = _api(49, "alter_client_quotas", 0, 1, 1, EITHER)
DESCRIBE_USER_SCRAM_CREDENTIALS = _api(50, "describe_user_scram_credentials", 0, 0, 0, EITHER)
ALTER_USER_SCRAM_CREDENTIALS = _api(51, "alter_user_scram_credentials", 0, 0, 0, EITHER)
VOTE = _api(52, "vote", 0, 2, 0, CONTROLLER)
BEGIN_QUORUM_EPOCH = _api(53, "begin_quorum_epoch", 0, 1, 1, CONTROLLER)
END_QUORUM_EPOCH = _api(54, "end_quorum_epoch", 0, 1, 1, CONTROLLER)
DESCRIBE_QUORUM = _api(55, "describe_quorum", 0, 2, 0, EITHER)
ALTER_PARTITION = _api(56, "alter_partition", 2, 3, 0, CONTROLLER)
UPDATE_FEATURES = _api(57, "update_features", 0, 2, 0, EITHER)
ENVELOPE = _api(58, "envelope", 0, 0, 0, CONTROLLER)
FETCH_SNAPSHOT = _api(59, "fetch_snapshot", 0, 1, 0, CONTROLLER)
DESCRIBE_CLUSTER = _api(60, "describe_cluster", 0, 2, 0, EITHER)
DESCRIBE_PRODUCERS = _api(61, "describe_producers", 0, 0, 0, BROKER)
BROKER_REGISTRATION = _api(62, "broker_registration", 0, 4, 0, CONTROLLER)
BROKER_HEARTBEAT = _api(63, "broker_heartbeat", 0, 2, 0, CONTROLLER)
UNREGISTER_BROKER = _api(64, "unregister_broker", 0, 0, 0, EITHER)
DESCRIBE_TRANSACTIONS = _api(65, "describe_transactions", 0, 0, 0, BROKER)
LIST_TRANSACTIONS = _api(66, "list_transactions", 0, 2, 0, BROKER)
ALLOCATE_PRODUCER_IDS = _api(67, "allocate_producer_ids", 0, 0, 0, CONTROLLER)
CONSUMER_GROUP_HEARTBEAT = _api(68, "consumer_group_heartbeat", 0, 1, 0, BROKER)
CONSUMER_GROUP_DESCRIBE = _api(69, "consumer_group_describe", 0, 1, 0, BROKER)
CONTROLLER_REGISTRATION = _api(70, "controller_registration", 0, 0, 0, CONTROLLER)
GET_TELEMETRY_SUBSCRIPTIONS = _api(71, "get_telemetry_subscriptions", 0, 0, 0, BROKER)
PUSH_TELEMETRY = _api(72, "push_telemetry", 0, 0, 0, BROKER)
ASSIGN_REPLICAS_TO_DIRS = _api(73, "assign_replicas_to_dirs", 0, 0, 0, CONTROLLER)
LIST_CONFIG_RESOURCES = _api(74, "list_config_resources", 0, 1, 0, BROKER)
DESCRIBE_TOPIC_PARTITIONS = _api(75, "describe_topic_partitions", 0, 0, 0, BROKER)
SHARE_GROUP_HEARTBEAT = _api(76, "share_group_heartbeat", 1, 1, 0, BROKER)
SHARE_GROUP_DESCRIBE = _api(77, "share_group_describe", 1, 1, 0, BROKER)
SHARE_FETCH = _api(78, "share_fetch", 1, 2, 0, BROKER)
SHARE_ACKNOWLEDGE = _api(79, "share_acknowledge", 1, 2, 0, BROKER)
ADD_RAFT_VOTER = _api(80, "add_raft_voter", 0, 1, 0, EITHER)
REMOVE_RAFT_VOTER = _api(81, "remove_raft_voter", 0, 0, 0, EITHER)
UPDATE_RAFT_VOTER = _api(82, "update_raft_voter", 0, 0, 0, CONTROLLER)
INITIALIZE_SHARE_GROUP_STATE = _api(83, "initialize_share_group_state", 0, 0, 0, BROKER)
READ_SHARE_GROUP_STATE = _api(84, "read_share_group_state", 0, 0, 0, BROKER)
WRITE_SHARE_GROUP_STATE = _api(85, "write_share_group_state", 0, 1, 0, BROKER)
DELETE_SHARE_GROUP_STATE = _api(86, "delete_share_group_state", 0, 0, 0, BROKER)
READ_SHARE_GROUP_STATE_SUMMARY = _api(87, "read_share_group_state_summary", 0, 1, 0, BROKER)
STREAMS_GROUP_HEARTBEAT = _api(88, "streams_group_heartbeat", 0, 0, 0, BROKER)
STREAMS_GROUP_DESCRIBE = _api(89, "streams_group_describe", 0, 0, 0, BROKER)
DESCRIBE_SHARE_GROUP_OFFSETS = _api(90, "describe_share_group_offsets", 0, 1, 0, BROKER)
ALTER_SHARE_GROUP_OFFSETS = _api(91, "alter_share_group_offsets", 0, 0, 0, BROKER)
DELETE_SHARE_GROUP_OFFSETS = _api(92, "delete_share_group_offsets", 0, 0, 0, BROKER)

APIS = _rows

DISABLE_REMOTE_TOPIC = Api(20_950, "disable_remote_topic", 0, 0, 0, BROKER, 0)
DESCRIBE_TOPIC_TIERING = Api(20_951, "describe_topic_tiering", 0, 0, 0, EITHER, 0)

DISKLESS_CREATE_PARTITIONS = Api(93, "diskless_create_partitions", 0, 0, 0, BROKER, 0)
DISKLESS_DELETE_TOPICS = Api(94, "diskless_delete_topics", 0, 0, 0, BROKER, 0)
DISKLESS_COMMIT_FILE = Api(95, "diskless_commit_file", 0, 0, 0, BROKER, 0)
DISKLESS_DELETE_RECORDS = Api(96, "diskless_delete_records", 0, 0, 0, BROKER, 0)
DISKLESS_LIST_OFFSETS = Api(97, "diskless_list_offsets", 0, 0, 0, BROKER, 0)
DISKLESS_FIND_BATCHES = Api(98, "diskless_find_batches", 0, 0, 0, BROKER, 0)
DISKLESS_DESCRIBE_FILES = Api(100, "diskless_describe_files", 0, 0, 0, BROKER, 0)
DISKLESS_HAND_OVER_FILE = Api(21_640, "diskless_hand_over_file", 0, 0, 0, BROKER, 0)
DISKLESS_DESCRIBE_COORDINATORS = Api(21_641, "diskless_describe_coordinators", 0, 0, 0, BROKER, 0)
DISKLESS_FETCH_SNAPSHOT = Api(21_642, "diskless_fetch_snapshot", 0, 0, 0, BROKER, 0)
DISKLESS_LIST_FILES = Api(21_643, "diskless_list_files", 0, 0, 0, BROKER, 0)
DISKLESS_APIS: Mapping[int, Api] = {
    api.key: api
    for api in (
        DISKLESS_CREATE_PARTITIONS,
        DISKLESS_DELETE_TOPICS,
        DISKLESS_COMMIT_FILE,
        DISKLESS_DELETE_RECORDS,
        DISKLESS_LIST_OFFSETS,
        DISKLESS_FIND_BATCHES,
        DISKLESS_DESCRIBE_FILES,
        DISKLESS_HAND_OVER_FILE,
        DISKLESS_DESCRIBE_COORDINATORS,
        DISKLESS_FETCH_SNAPSHOT,
        DISKLESS_LIST_FILES,
    )
}
"""APIs of the coordinators of diskless topics: those of KIP-1164 (D-01), and private ones from 21640 on.

Apache Kafka 4.3 does not have them, and a later version may use their keys for other APIs.
"""

PRIVATE_APIS: Mapping[int, Api] = {
    **{api.key: api for api in (DISABLE_REMOTE_TOPIC, DESCRIBE_TOPIC_TIERING)},
    **DISKLESS_APIS,
}
"""APIs of Odradek that Kafka does not have, by key. ApiVersions does not report them."""


def find_api(key: int) -> Api | None:
    """The API with this key, None if there is none."""
    return APIS.get(key) or PRIVATE_APIS.get(key)


def compatibility_rows(served: Iterable[Api]) -> list[tuple[str, int, str, str]]:
    """Rows of docs/compatibility.md: name, key, Kafka's versions and Odradek's versions of every API, by key.

    `served` are the APIs that have a handler. The versions of an API that is not served are "".
    """
    served_keys = {api.key for api in served}
    rows = []
    for api in APIS.values():
        versions = (
            f"{api.min_version}-{api.max_version}"
            if len(api.versions) > 1
            else str(api.min_version)
        )
        rows.append((api.title, api.key, versions, versions if api.key in served_keys else ""))
    return rows
