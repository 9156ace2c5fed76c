"""Authorizer for the ACLs in the metadata log: Kafka's StandardAuthorizer (KIP-11, KIP-290, KIP-801).

It does no I/O. ACLs are indexed by resource name: literal ACLs of the name, ACLs of `*`, and prefixed ACLs. The
rules:

1. super users are allowed everything;
2. a matching DENY ACL denies, whatever else matches;
3. otherwise a matching ALLOW ACL allows. READ, WRITE, DELETE and ALTER imply DESCRIBE,
   ALTER_CONFIGS implies DESCRIBE_CONFIGS;
4. a resource without any ACL, of whichever principal, is allowed if
   `allow.everyone.if.no.acl.found` is true; otherwise the request is denied.

Decisions are cached until the ACLs change, so a repeated request costs a dictionary lookup per topic. A change
of ACLs costs time for the changed names only. Without an authorizer none of this runs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from odradek.broker.security.hosts import host_of
from odradek.replication.controller.acls import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    AclOperation,
    AclResource,
    PatternType,
    Permission,
)

REMEMBERED_MAX: Final = 10_000
NAME_CHARS_MAX: Final = 1000
"""Decisions about longer names are not cached, because clients can send any name."""

IMPLIED_BY: Final[Mapping[int, frozenset[int]]] = {
    AclOperation.DESCRIBE: frozenset(
        (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER)
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset((AclOperation.ALTER_CONFIGS,)),
}
"""Operations that imply an operation when they are allowed."""

_NOBODYS: Final = ""
"""Placeholder name of a resource that no ACL names; names without ACLs share its decisions."""

_DecisionKey = tuple[str, str, int, int, str | None]
"""Key of a cached decision: principal, host, operation, resource type, and name; None for any name."""


class _OfType:
    """ACLs of one resource type, indexed by name."""

    __slots__ = ("literal", "prefix_lengths", "prefixed")

    def __init__(self) -> None:
        self.literal: defaultdict[str, list[Acl]] = defaultdict(list)
        self.prefixed: defaultdict[str, list[Acl]] = defaultdict(list)
        self.prefix_lengths: tuple[int, ...] = ()

    def about(self, name: str) -> Iterator[Acl]:
        """ACLs that match the resource name."""
        yield from self.literal.get(name, ())
        if name != WILDCARD:
            yield from self.literal.get(WILDCARD, ())
        for length in self.prefix_lengths:
            if length > len(name):
                return
            yield from self.prefixed.get(name[:length], ())

    def of_pattern(self, pattern_type: int) -> defaultdict[str, list[Acl]]:
        return self.prefixed if pattern_type == PatternType.PREFIXED else self.literal


class Authorizer:
    """Kafka's StandardAuthorizer. Principals are texts such as `User:alice`; hosts are IP addresses."""

    def __init__(self, *, super_users: Iterable[str] = (), allow_if_no_acl: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._types: defaultdict[int, _OfType] = defaultdict(_OfType)
        self._remembered: dict[_DecisionKey, bool] = {}

    def is_super_user(self, principal: str) -> bool:
        """Whether the principal is a super user."""
        return principal in self._super_users

    def load(self, acls: Iterable[Acl]) -> None:
        """Replace all ACLs by these."""
        self._types.clear()
        self.change(acls, ())

    def change(self, added: Iterable[Acl], removed: Iterable[Acl]) -> None:
        """Add and remove ACLs."""
        for acl in added:
            named = self._types[acl.resource_type].of_pattern(acl.pattern_type)
            named[acl.resource_name].append(acl)
        gone = Counter(removed)
        for resource_type, pattern_type, name in {
            (acl.resource_type, acl.pattern_type, acl.resource_name) for acl in gone
        }:
            named = self._types[resource_type].of_pattern(pattern_type)
            left = []
            for acl in named.pop(name, ()):
                if gone[acl]:
                    gone[acl] -= 1
                else:
                    left.append(acl)
            if left:
                named[name] = left
        for of_type in self._types.values():
            of_type.prefix_lengths = tuple(sorted({len(prefix) for prefix in of_type.prefixed}))
        self._remembered.clear()

    def allows(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> bool:
        """Whether the principal is allowed the operation on the resource from the host."""
        key = (principal, host, operation, resource_type, name)
        decision = self._remembered.get(key)
        if decision is None:
            decision = self._decide(principal, host, operation, resource_type, name)
            if len(name) <= NAME_CHARS_MAX:
                self._remember(key, decision)
        return decision

    def _remember(self, key: _DecisionKey, decision: bool) -> bool:
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[key] = decision
        return decision

    def _decide(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> bool:
        if self.is_super_user(principal):
            return True
        of_type = self._types.get(resource_type)
        has_acls = allowed = False
        for acl in () if of_type is None else of_type.about(name):
            has_acls = True
            if _concerns(acl, principal, host, operation):
                if acl.permission == Permission.DENY:
                    return False
                allowed = True
        return allowed if has_acls else self._allow_if_no_acl

    def allows_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Whether the principal is allowed the operation on any resource of the type.

        Kafka's `authorizeByResourceType`: an ALLOW ACL counts unless DENY ACLs cover all its resources.
        """
        key = (principal, host, operation, resource_type, None)
        decision = self._remembered.get(key)
        if decision is None:
            decision = self._remember(
                key, self._decide_any(principal, host, operation, resource_type)
            )
        return decision

    def _decide_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        if self.allows(principal, host, operation, resource_type, _NOBODYS):
            return True
        of_type = self._types.get(resource_type, _OfType())
        allowed: list[Acl] = []
        denied_literal: set[str] = set()
        denied_prefixes: set[str] = set()
        for acls in (*of_type.literal.values(), *of_type.prefixed.values()):
            for acl in acls:
                if not _is_for(acl, principal, host) or acl.operation not in (
                    operation,
                    AclOperation.ALL,
                ):
                    continue
                if acl.permission == Permission.ALLOW:
                    allowed.append(acl)
                elif acl.pattern_type == PatternType.PREFIXED:
                    denied_prefixes.add(acl.resource_name)
                elif acl.resource_name == WILDCARD:
                    return False
                else:
                    denied_literal.add(acl.resource_name)
        return any(not _covered(acl, denied_literal, denied_prefixes) for acl in allowed)


def _concerns(acl: Acl, principal: str, host: str, operation: int) -> bool:
    if not _is_for(acl, principal, host):
        return False
    if acl.operation in (operation, AclOperation.ALL):
        return True
    return acl.permission == Permission.ALLOW and acl.operation in IMPLIED_BY.get(operation, ())


def _is_for(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, WILDCARD_PRINCIPAL) and (
        acl.host in (host, WILDCARD) or (":" in acl.host and host_of(acl.host) == host_of(host))
    )


def _covered(allowed: Acl, literal: set[str], prefixes: set[str]) -> bool:
    """Whether DENY ACLs cover all resources of an ALLOW ACL."""
    name = allowed.resource_name
    if allowed.pattern_type == PatternType.LITERAL:
        if name == WILDCARD:
            return False
        if name in literal:
            return True
    return any(name.startswith(prefix) for prefix in prefixes)


__all__ = ["AclOperation", "AclResource", "Authorizer"]
