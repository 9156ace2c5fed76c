"""Access control lists: what an ACL says, creating and deleting them (KIP-11, KIP-290).

An ACL lets or forbids a principal on a host to do an operation on resources, which are named by a
pattern: one name (`LITERAL`, where `*` is every name), or all that begin with it (`PREFIXED`). What
the ACLs of an image add up to for one request is the authorizer's business; here they are kept.
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
    """One ACL, without the id under which it is kept."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str  # as `User:alice`
    host: str
    operation: int
    permission: int


def acl_of(record: AccessControlEntryRecord) -> Acl:
    """What a record says."""
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
    """Which ACLs are meant; None and ANY mean all."""

    resource_type: int = AclResource.ANY
    resource_name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = AclOperation.ANY
    permission: int = Permission.ANY

    @property
    def is_unknown(self) -> bool:
        """Whether it asks for something that this node has no word for, and so finds nothing."""
        return 0 in (self.resource_type, self.pattern_type, self.operation, self.permission)

    @property
    def exact_name(self) -> str | None:
        """The name that all it means have; None where there may be several."""
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
        """MATCH finds every pattern that a resource of the name falls under."""
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        name = self.resource_name
        if name is None or self.pattern_type != PatternType.MATCH:
            return name is None or name == acl.resource_name
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, WILDCARD)


def find_acls(image: MetadataImage, wanted: AclFilter) -> Iterator[Acl | None]:
    """The ACLs that are meant, in the order in which they came to be; None for each other one, so that
    whoever looks through tens of thousands for a few can let others have their turn."""
    for record in image.acls.values():
        acl = acl_of(record)
        yield acl if wanted.matches(acl) else None


class _Index:
    """The ACLs that some filters may mean, by name: many filters that say one cost as much as one."""

    def __init__(self, image: MetadataImage, filters: Iterable[AclFilter]) -> None:
        names = {each.exact_name for each in filters}
        self._by_name: defaultdict[str, list[tuple[UUID, Acl]]] = defaultdict(list)
        for acl_id, record in image.acls.items():
            if None in names or record.resource_name in names:
                self._by_name[record.resource_name].append((acl_id, acl_of(record)))
        self._lengths = sorted({len(name) for name in self._by_name})

    def find(self, wanted: AclFilter) -> list[tuple[UUID, Acl]]:
        """The ACLs that are meant, with their ids."""
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
    """One answer for each ACL, None where it is there now; one that was there stays as it is."""
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
    """What one filter found and had deleted."""

    acls: Sequence[Acl] = ()
    error: KafkaError | None = None


class TooManyAcls(KafkaError):
    """A request would delete more than one batch may hold; none is."""

    code = ErrorCode.invalid_request

    def __init__(self) -> None:
        super().__init__(
            f"Cannot remove more than {MAX_RECORDS} acls in a single delete operation."
        )


def delete_acls(
    image: MetadataImage, filters: Sequence[AclFilter]
) -> ControllerResult[list[DeletedAcls]]:
    """One answer for each filter; an ACL that several of them find is named by each.

    Raises TooManyAcls.
    """
    from odradek.protocol.schemas.security_records import RemoveAccessControlEntryRecord

    index = _Index(image, filters)
    doomed: dict[UUID, None] = {}
    responses: list[DeletedAcls] = []
    for wanted in filters:
        if wanted.is_unknown:
            responses.append(DeletedAcls(error=_invalid("The filter says what is not known here")))
            continue
        found = index.find(wanted)
        doomed.update(dict.fromkeys(acl_id for acl_id, _ in found))
        if len(doomed) > MAX_RECORDS:
            raise TooManyAcls
        responses.append(DeletedAcls([acl for _, acl in found]))
    return ControllerResult(
        [RemoveAccessControlEntryRecord(id=acl_id) for acl_id in doomed], responses
    )


def check_new(acl: Acl) -> None:
    """Raises ItemRefused (invalid_request) for what no ACL can say."""
    if acl.resource_type <= AclResource.ANY:
        raise _invalid("An ACL is about resources of one type")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid("An ACL names resources literally or by a prefix")
    if acl.operation <= AclOperation.ANY:
        raise _invalid("An ACL is about one operation, or ALL")
    if acl.permission <= Permission.ANY:
        raise _invalid("An ACL allows or denies")
    if not acl.resource_name:
        raise _invalid("A resource's name is not empty")
    if acl.resource_type == AclResource.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise _invalid(f"The only CLUSTER resource is {CLUSTER_NAME}")
    if ":" not in acl.principal:
        raise _invalid(f"{acl.principal!r} is no principal, as in User:alice")


def _invalid(reason: str) -> ItemRefused:
    return ItemRefused(ErrorCode.invalid_request, reason)
