"""Admin functions for ACLs: list, create and delete.

Each function raises KafkaError for an error code, and ClientError if there is no response.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from odradek.client.errors import check
from odradek.client.metadata import Cluster
from odradek.protocol import apis
from odradek.protocol.acls import AclOperation, AclResource, PatternType, Permission
from odradek.seams.values import value_class


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """ACL: allows or denies an operation on resources to a principal (`User:alice`) from a host."""

    resource_type: AclResource
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: Permission


@value_class
class AclFilter:
    """Filter of ACLs; None and ANY match all."""

    resource_type: AclResource = AclResource.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: Permission = Permission.ANY

    def as_values(self) -> dict[str, Any]:
        return {
            "resource_type_filter": int(self.resource_type),
            "resource_name_filter": self.resource_name,
            "pattern_type_filter": int(self.pattern_type),
            "principal_filter": self.principal,
            "host_filter": self.host,
            "operation": int(self.operation),
            "permission_type": int(self.permission),
        }


async def list_acls(cluster: Cluster, wanted: AclFilter) -> list[Acl]:
    """List the ACLs that match, sorted."""
    connection = await cluster.any_node()
    response = await connection.request(
        apis.DESCRIBE_ACLS, wanted.as_values(), timeout_s=cluster.timeout_s
    )
    check(response.error_code, response.error_message, about="ACLs")
    return sorted(
        Acl(
            AclResource(resource.resource_type),
            resource.resource_name,
            PatternType(resource.pattern_type),
            row.principal,
            row.host,
            AclOperation(row.operation),
            Permission(row.permission_type),
        )
        for resource in response.resources
        for row in resource.acls
    )


async def create_acls(cluster: Cluster, acls: Iterable[Acl]) -> None:
    """Create ACLs; existing ones are not changed."""
    wanted = list(acls)
    connection = await cluster.controller()
    values = {
        "creations": [
            {
                "resource_type": int(acl.resource_type),
                "resource_name": acl.resource_name,
                "resource_pattern_type": int(acl.pattern_type),
                "principal": acl.principal,
                "host": acl.host,
                "operation": int(acl.operation),
                "permission_type": int(acl.permission),
            }
            for acl in wanted
        ]
    }
    response = await connection.request(apis.CREATE_ACLS, values, timeout_s=cluster.timeout_s)
    for acl, row in zip(wanted, response.results, strict=True):
        check(row.error_code, row.error_message, about=f"the ACL of {acl.principal}")


async def delete_acls(cluster: Cluster, wanted: AclFilter) -> list[Acl]:
    """Delete the ACLs that match, and return them."""
    connection = await cluster.controller()
    response = await connection.request(
        apis.DELETE_ACLS, {"filters": [wanted.as_values()]}, timeout_s=cluster.timeout_s
    )
    (result,) = response.filter_results
    check(result.error_code, result.error_message, about="ACLs")
    for row in result.matching_acls:
        check(row.error_code, row.error_message, about=f"the ACL of {row.principal}")
    return sorted(
        Acl(
            AclResource(row.resource_type),
            row.resource_name,
            PatternType(row.pattern_type),
            row.principal,
            row.host,
            AclOperation(row.operation),
            Permission(row.permission_type),
        )
        for row in result.matching_acls
    )
