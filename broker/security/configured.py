"""The authorizer that the configs ask for.

`authorizer.class.name` is the Java class's name, as in Kafka's file; there is one that this broker
knows. `super.users` (User:a;User:b) and `allow.everyone.if.no.acl.found` are that class's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from odradek.broker.config.types import ConfigError

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig
    from odradek.broker.security.authorizer import Authorizer

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SUPER_USERS: Final = "super.users"
ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"


def configured_authorizer(config: ServerConfig) -> Authorizer | None:
    """None where nothing is to be authorized."""
    if not config.get_str("authorizer.class.name"):
        return None
    from odradek.broker.security.authorizer import Authorizer

    given = config.layers.static
    return Authorizer(
        super_users=parse_super_users(given.get(SUPER_USERS, "")),
        allow_if_no_acl=given.get(ALLOW_EVERYONE, "").strip().lower() == "true",
    )


def check_authorizer(class_name: str, super_users: str) -> None:
    """Raises ConfigError."""
    if class_name not in ("", STANDARD_AUTHORIZER):
        raise ConfigError.of(
            "authorizer.class.name", class_name, f"only {STANDARD_AUTHORIZER} is supported, or none"
        )
    parse_super_users(super_users)


def parse_super_users(text: str) -> frozenset[str]:
    """The principals in a list with semicolons between them. Raises ConfigError."""
    users = [user.strip() for user in text.split(";") if user.strip()]
    for user in users:
        if ":" not in user:
            raise ConfigError.of(SUPER_USERS, user, "a principal is Type:name, as in User:alice")
    return frozenset(users)
