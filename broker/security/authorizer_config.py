"""Configs of the authorizer: `authorizer.class.name`, `super.users` and `allow.everyone.if.no.acl.found`.

The only class that is supported is Kafka's StandardAuthorizer, under its Java name. The two other configs belong to
that class, so they are read from the texts of the properties file and have no row in the table of configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from odradek.broker.config.types import ConfigError

if TYPE_CHECKING:
    from odradek.broker.security.authorizer import Authorizer

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SUPER_USERS: Final = "super.users"
ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"


def configured_authorizer(class_name: str, properties: Mapping[str, str]) -> Authorizer | None:
    """Create the authorizer; None if `class_name` (`authorizer.class.name`) is empty."""
    if not class_name:
        return None
    from odradek.broker.security.authorizer import Authorizer

    return Authorizer(
        super_users=parse_super_users(properties.get(SUPER_USERS, "")),
        allow_if_no_acl=properties.get(ALLOW_EVERYONE, "").strip().lower() == "true",
    )


def check_authorizer(class_name: str, super_users: str) -> None:
    """Check the authorizer's configs. Raises ConfigError."""
    if class_name not in ("", STANDARD_AUTHORIZER):
        raise ConfigError.of(
            "authorizer.class.name", class_name, f"only {STANDARD_AUTHORIZER} is supported, or none"
        )
    parse_super_users(super_users)


def parse_super_users(text: str) -> frozenset[str]:
    """Principals of a list separated by semicolons. Raises ConfigError."""
    users = [user.strip() for user in text.split(";") if user.strip()]
    for user in users:
        if ":" not in user:
            raise ConfigError.of(SUPER_USERS, user, "a principal is Type:name, as in User:alice")
    return frozenset(users)
