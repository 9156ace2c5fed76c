"""Who may do what, by the ACLs of the metadata log: Kafka's StandardAuthorizer (KIP-11, KIP-290, KIP-801).

A plain object without I/O. The ACLs that say something about a resource are found by its name: those
that spell it, those of `*`, and those of each prefix that some ACL has. Then

1. super users may do everything;
2. one ACL that denies is enough to be refused, whatever allows;
3. one that allows is enough otherwise. Allowing READ, WRITE, DELETE or ALTER allows DESCRIBE,
   allowing ALTER_CONFIGS allows DESCRIBE_CONFIGS;
4. where no ACL says anything about the resource, whoever it is for,
   `allow.everyone.if.no.acl.found` decides; where one does, the answer is no.

Decisions are remembered until the ACLs change, so that a client that goes on as before costs a
dictionary's lookup a topic. A change costs what the ACLs of the names it is about cost, not what all
do. A broker without an authorizer has none of this.
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
"""Longer names, which clients are free to think of, are not kept in memory."""

IMPLIED_BY: Final[Mapping[int, frozenset[int]]] = {
    AclOperation.DESCRIBE: frozenset(
        (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER)
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset((AclOperation.ALTER_CONFIGS,)),
}
"""Operation to those that, where they are allowed, allow it too."""

_NOBODYS: Final = ""
"""A name that no resource has: what is said of it is said of those that no ACL is about."""

_Question = tuple[str, str, int, int, str | None]
"""Principal, host, operation, type of resource, and its name; None where any will do."""


class _OfType:
    """The ACLs of one type of resource, by what they name."""

    __slots__ = ("literal", "prefix_lengths", "prefixed")

    def __init__(self) -> None:
        self.literal: defaultdict[str, list[Acl]] = defaultdict(list)
        self.prefixed: defaultdict[str, list[Acl]] = defaultdict(list)
        self.prefix_lengths: tuple[int, ...] = ()

    def about(self, name: str) -> Iterator[Acl]:
        """All that say something about a resource of that name."""
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
    """See the module. Principals are texts such as `User:alice`, hosts IP addresses."""

    def __init__(self, *, super_users: Iterable[str] = (), allow_if_no_acl: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._types: defaultdict[int, _OfType] = defaultdict(_OfType)
        self._remembered: dict[_Question, bool] = {}

    def is_super_user(self, principal: str) -> bool:
        """Whether it may do everything, whatever ACLs say."""
        return principal in self._super_users

    def load(self, acls: Iterable[Acl]) -> None:
        """From now on these, and no others."""
        self._types.clear()
        self.change(acls, ())

    def change(self, added: Iterable[Acl], removed: Iterable[Acl]) -> None:
        """These came, and those that were there went."""
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
        """Whether the principal may do that, coming from that host."""
        question = (principal, host, operation, resource_type, name)
        respond = self._remembered.get(question)
        if respond is None:
            respond = self._decide(principal, host, operation, resource_type, name)
            if len(name) <= NAME_CHARS_MAX:
                self._remember(question, respond)
        return respond

    def _remember(self, question: _Question, respond: bool) -> bool:
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[question] = respond
        return respond

    def _decide(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> bool:
        if self.is_super_user(principal):
            return True
        of_type = self._types.get(resource_type)
        said_something = allowed = False
        for acl in () if of_type is None else of_type.about(name):
            said_something = True
            if _concerns(acl, principal, host, operation):
                if acl.permission == Permission.DENY:
                    return False
                allowed = True
        return allowed if said_something else self._allow_if_no_acl

    def allows_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Whether there may be a resource of the type with which the principal may do that.

        Kafka's `authorizeByResourceType`: an ACL that allows counts unless one that denies covers
        all that it names.
        """
        question = (principal, host, operation, resource_type, None)
        respond = self._remembered.get(question)
        if respond is None:
            respond = self._remember(
                question, self._decide_any(principal, host, operation, resource_type)
            )
        return respond

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
    """Whether all that an ACL allows is denied."""
    name = allowed.resource_name
    if allowed.pattern_type == PatternType.LITERAL:
        if name == WILDCARD:
            return False
        if name in literal:
            return True
    return any(name.startswith(prefix) for prefix in prefixes)


__all__ = ["AclOperation", "AclResource", "Authorizer"]
