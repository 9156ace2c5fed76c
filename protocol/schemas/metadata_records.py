"""All metadata records, whose modules are loaded when a record of them is first used.

`from odradek.protocol.schemas.metadata_records import TopicRecord` loads only the records of topics, so a broker
without ACLs never loads the records of ACLs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.protocol.schemas.cluster_records import (
        AbortTransactionRecord as AbortTransactionRecord,
    )
    from odradek.protocol.schemas.cluster_records import (
        BeginTransactionRecord as BeginTransactionRecord,
    )
    from odradek.protocol.schemas.cluster_records import (
        BrokerEndpoint as BrokerEndpoint,
    )
    from odradek.protocol.schemas.cluster_records import (
        BrokerFeature as BrokerFeature,
    )
    from odradek.protocol.schemas.cluster_records import (
        BrokerRegistrationChangeRecord as BrokerRegistrationChangeRecord,
    )
    from odradek.protocol.schemas.cluster_records import (
        ControllerEndpoint as ControllerEndpoint,
    )
    from odradek.protocol.schemas.cluster_records import (
        ControllerFeature as ControllerFeature,
    )
    from odradek.protocol.schemas.cluster_records import (
        EndTransactionRecord as EndTransactionRecord,
    )
    from odradek.protocol.schemas.cluster_records import (
        FeatureLevelRecord as FeatureLevelRecord,
    )
    from odradek.protocol.schemas.cluster_records import (
        FenceBrokerRecord as FenceBrokerRecord,
    )
    from odradek.protocol.schemas.cluster_records import (
        NoOpRecord as NoOpRecord,
    )
    from odradek.protocol.schemas.cluster_records import (
        ProducerIdsRecord as ProducerIdsRecord,
    )
    from odradek.protocol.schemas.cluster_records import (
        RegisterBrokerRecord as RegisterBrokerRecord,
    )
    from odradek.protocol.schemas.cluster_records import (
        RegisterControllerRecord as RegisterControllerRecord,
    )
    from odradek.protocol.schemas.cluster_records import (
        UnfenceBrokerRecord as UnfenceBrokerRecord,
    )
    from odradek.protocol.schemas.cluster_records import (
        UnregisterBrokerRecord as UnregisterBrokerRecord,
    )
    from odradek.protocol.schemas.cluster_records import (
        ZkMigrationStateRecord as ZkMigrationStateRecord,
    )
    from odradek.protocol.schemas.security_records import (
        AccessControlEntryRecord as AccessControlEntryRecord,
    )
    from odradek.protocol.schemas.security_records import (
        ClientQuotaEntity as ClientQuotaEntity,
    )
    from odradek.protocol.schemas.security_records import (
        ClientQuotaRecord as ClientQuotaRecord,
    )
    from odradek.protocol.schemas.security_records import (
        DelegationTokenRecord as DelegationTokenRecord,
    )
    from odradek.protocol.schemas.security_records import (
        RemoveAccessControlEntryRecord as RemoveAccessControlEntryRecord,
    )
    from odradek.protocol.schemas.security_records import (
        RemoveDelegationTokenRecord as RemoveDelegationTokenRecord,
    )
    from odradek.protocol.schemas.security_records import (
        RemoveUserScramCredentialRecord as RemoveUserScramCredentialRecord,
    )
    from odradek.protocol.schemas.security_records import (
        UserScramCredentialRecord as UserScramCredentialRecord,
    )
    from odradek.protocol.schemas.topic_records import (
        ClearElrRecord as ClearElrRecord,
    )
    from odradek.protocol.schemas.topic_records import (
        ConfigRecord as ConfigRecord,
    )
    from odradek.protocol.schemas.topic_records import (
        PartitionChangeRecord as PartitionChangeRecord,
    )
    from odradek.protocol.schemas.topic_records import (
        PartitionRecord as PartitionRecord,
    )
    from odradek.protocol.schemas.topic_records import (
        RemoveTopicRecord as RemoveTopicRecord,
    )
    from odradek.protocol.schemas.topic_records import (
        TopicRecord as TopicRecord,
    )

FAMILIES: dict[str, tuple[str, ...]] = {
    "topic_records": (
        "TopicRecord",
        "RemoveTopicRecord",
        "PartitionRecord",
        "PartitionChangeRecord",
        "ConfigRecord",
        "ClearElrRecord",
    ),
    "cluster_records": (
        "BrokerEndpoint",
        "BrokerFeature",
        "RegisterBrokerRecord",
        "UnregisterBrokerRecord",
        "BrokerRegistrationChangeRecord",
        "FenceBrokerRecord",
        "UnfenceBrokerRecord",
        "ControllerEndpoint",
        "ControllerFeature",
        "RegisterControllerRecord",
        "FeatureLevelRecord",
        "ProducerIdsRecord",
        "NoOpRecord",
        "BeginTransactionRecord",
        "EndTransactionRecord",
        "AbortTransactionRecord",
        "ZkMigrationStateRecord",
    ),
    "security_records": (
        "AccessControlEntryRecord",
        "RemoveAccessControlEntryRecord",
        "UserScramCredentialRecord",
        "RemoveUserScramCredentialRecord",
        "DelegationTokenRecord",
        "RemoveDelegationTokenRecord",
        "ClientQuotaEntity",
        "ClientQuotaRecord",
    ),
}
"""The modules of metadata records, with their classes."""
_MODULE_OF = {name: module for module, names in FAMILIES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(name)
    return getattr(import_module(f"odradek.protocol.schemas.{module}"), name)
