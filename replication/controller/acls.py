"""Creates, deletes and finds ACLs (Kafka's `AclControlManager`; KIP-11, KIP-290).

An ACL allows or denies a principal on a host an operation on the resources of a pattern: `LITERAL` is
one name (`*` is every name), `PREFIXED` is all names with this prefix. The authorizer evaluates ACLs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from odradek.protocol.acls import AclOperation as AclOperation
from odradek.protocol.acls import AclResource as AclResource
from odradek.protocol.acls import PatternType as PatternType
from odradek.protocol.acls import Permission as Permission
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.controller_result import (
    MAX_RECORDS,
    ControllerResult,
    ItemRefused,
    check_size,
)
from odradek.replication.controller.image import MetadataImage
from odradek.seams.entropy import Entropy
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.protocol.schemas.security_records import AccessControlEntryRecord

WILDCARD: Final = "*"
WILDCARD_PRINCIPAL: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a CLUSTER resource."""


@value_class
class Acl:
    """An ACL binding without its id."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str  # as `User:alice`
    host: str
    operation: int
    permission: int


def acl_of(record: AccessControlEntryRecord) -> Acl:
    """The ACL of a record."""
    return Acl(
        record.resource_type,
        record.resource_name,
        record.pattern_type,
        record.principal,
        record.host,
        record.operation,
        record.permission_type,
    )


@value_class
class AclFilter:
    """An ACL filter; None and ANY match every value."""

    resource_type: int = AclResource.ANY
    resource_name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = AclOperation.ANY
    permission: int = Permission.ANY

    @property
    def unknown_part(self) -> str | None:
        """Part with a field that is UNKNOWN, named as in Kafka, or None. Such a filter matches no ACL."""
        if 0 in (self.resource_type, self.pattern_type):
            return "patternFilter"
        if 0 in (self.operation, self.permission):
            return "entryFilter"
        return None

    @property
    def exact_name(self) -> str | None:
        """Resource name of all matching ACLs; None if they may have several."""
        return None if self.pattern_type == PatternType.MATCH else self.resource_name

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (AclResource.ANY, acl.resource_type)
            and self._names(acl)
            and (self.principal is None or self.principal == acl.principal)
            and (self.host is None or self.host == acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _names(self, acl: Acl) -> bool:
        """Whether pattern type and name match; MATCH finds every pattern that includes the name."""
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        name = self.resource_name
        if name is None or self.pattern_type != PatternType.MATCH:
            return name is None or name == acl.resource_name
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, WILDCARD)


def find_acls(image: MetadataImage, wanted: AclFilter) -> Iterator[Acl | None]:
    """Matching ACLs in the order of their creation, and None for each other ACL.

    The None values let the caller yield to other tasks while it scans tens of thousands of ACLs.
    """
    for record in image.acls.values():
        acl = acl_of(record)
        yield acl if wanted.matches(acl) else None


class _Index:
    """ACLs that any of the filters may match, by resource name, so that many filters need one scan."""

    def __init__(self, image: MetadataImage, filters: Iterable[AclFilter]) -> None:
        names = {each.exact_name for each in filters}
        self._by_name: defaultdict[str, list[tuple[UUID, Acl]]] = defaultdict(list)
        for acl_id, record in image.acls.items():
            if None in names or record.resource_name in names:
                self._by_name[record.resource_name].append((acl_id, acl_of(record)))
        self._lengths = sorted({len(name) for name in self._by_name})

    def find(self, wanted: AclFilter) -> list[tuple[UUID, Acl]]:
        """Matching ACLs with their ids."""
        return [
            (acl_id, acl)
            for name in self._names(wanted)
            for acl_id, acl in self._by_name.get(name, ())
            if wanted.matches(acl)
        ]

    def _names(self, wanted: AclFilter) -> Iterable[str]:
        name = wanted.resource_name
        if name is None:
            return self._by_name
        if wanted.exact_name is not None:
            return (name,)
        prefixes = {name[:length] for length in self._lengths if length <= len(name)}
        return prefixes | {WILDCARD}


def create_acls(
    image: MetadataImage, wanted: Sequence[Acl], *, entropy: Entropy
) -> ControllerResult[list[KafkaError | None]]:
    """Create ACLs; the result has None or an error per ACL. An existing ACL is a success."""
    from odradek.protocol.schemas.security_records import AccessControlEntryRecord

    names = {acl.resource_name for acl in wanted}
    present = {acl_of(record) for record in image.acls.values() if record.resource_name in names}
    records: list[Any] = []
    responses: list[KafkaError | None] = []
    for acl in wanted:
        try:
            check_new(acl)
        except KafkaError as error:
            responses.append(error)
            continue
        responses.append(None)
        if acl in present:
            continue
        present.add(acl)
        records.append(
            AccessControlEntryRecord(
                id=entropy.uuid(),
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
        )
    check_size(records)
    return ControllerResult(records, responses)


@value_class
class DeletedAcls:
    """ACLs that one filter matched and that are deleted, or the error."""

    acls: Sequence[Acl] = ()
    error: KafkaError | None = None


class TooManyAcls(KafkaError):
    """A request matches more ACLs than one batch may delete; none is deleted."""

    code = ErrorCode.invalid_request

    def __init__(self) -> None:
        super().__init__(
            f"Cannot remove more than {MAX_RECORDS} acls in a single delete operation."
        )


def delete_acls(
    image: MetadataImage, filters: Sequence[AclFilter]
) -> ControllerResult[list[DeletedAcls]]:
    """Delete all ACLs that match a filter; one result per filter, with all ACLs that it matches.

    Raises TooManyAcls.
    """
    from odradek.protocol.schemas.security_records import RemoveAccessControlEntryRecord

    index = _Index(image, filters)
    to_delete: dict[UUID, None] = {}
    responses: list[DeletedAcls] = []
    for wanted in filters:
        unknown = wanted.unknown_part
        if unknown is not None:
            responses.append(DeletedAcls(error=_invalid(f"Unknown {unknown}.")))
            continue
        found = index.find(wanted)
        to_delete.update(dict.fromkeys(acl_id for acl_id, _ in found))
        if len(to_delete) > MAX_RECORDS:
            raise TooManyAcls
        responses.append(DeletedAcls([acl for _, acl in found]))
    return ControllerResult(
        [RemoveAccessControlEntryRecord(id=acl_id) for acl_id in to_delete], responses
    )


def check_new(acl: Acl) -> None:
    """Validate a new ACL, as Kafka's `AclApis` and then `AclControlManager.validateNewAcl`.

    Raises ItemRefused (INVALID_REQUEST).
    """
    if acl.resource_type == AclResource.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.resource_name:
        raise _invalid("Invalid empty resource name")
    if acl.resource_type <= AclResource.ANY:
        raise _invalid(f"Invalid resourceType {AclResource(acl.resource_type).name}")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {PatternType(acl.pattern_type).name}")
    if acl.operation <= AclOperation.ANY:
        raise _invalid(f"Invalid operation {AclOperation(acl.operation).name}")
    if acl.permission <= Permission.ANY:
        raise _invalid(f"Invalid permissionType {Permission(acl.permission).name}")
    if ":" not in acl.principal:
        raise _invalid(
            f"Could not parse principal from `{acl.principal}` (no colon is present separating "
            "the principal type from the principal name)"
        )


def _invalid(reason: str) -> ItemRefused:
    return ItemRefused(ErrorCode.invalid_request, reason)
