"""SCRAM credential argument: `SCRAM-SHA-256=[name=alice,password=secret]` (KIP-900).

Instead of `password`, `saltedpassword` and `salt` can be given in base64. Only the keys derived from
the password are written to disk.
"""

from __future__ import annotations

import binascii
import hashlib
from base64 import b64decode
from typing import Any

from odradek.replication.controller.scram import (
    HASHES,
    MAX_ITERATIONS,
    MECHANISMS,
    MIN_ITERATIONS,
    scram_keys,
)
from odradek.seams.entropy import Entropy

SALT_BYTES = 16
DEFAULT_ITERATIONS = 4096


class WrongCredential(ValueError):
    """The argument is not a valid credential; the message never contains the password."""


def scram_record(text: str, entropy: Entropy) -> Any:
    """Create the UserScramCredentialRecord of an argument. Raises WrongCredential."""
    from odradek.protocol.schemas.security_records import UserScramCredentialRecord

    mechanism, values = _split(text.strip())
    name = values.pop("name", None)
    if name is None:
        raise WrongCredential("You must supply 'name' to add-scram")
    iterations = _iterations(values.pop("iterations", None), mechanism)
    given_salt = values.pop("salt", None)
    salt = entropy.bytes(SALT_BYTES) if given_salt is None else _base64(given_salt, "salt")
    password, salted = values.pop("password", None), values.pop("saltedpassword", None)
    if password is None and salted is None:
        raise WrongCredential("You must supply one of 'password' or 'saltedpassword' to add-scram")
    if password is None and given_salt is None:
        raise WrongCredential("You must supply 'salt' with 'saltedpassword' to add-scram")
    if password is not None and salted is not None:
        values["saltedpassword"] = salted  # one or the other
    if values:
        raise WrongCredential(f"Unknown SCRAM configurations: {', '.join(sorted(values))}")
    if password is None:
        salted_password = _base64(salted or "", "saltedPassword")
    else:
        salted_password = hashlib.pbkdf2_hmac(
            HASHES[mechanism], password.encode(), salt, iterations
        )
    stored_key, server_key = scram_keys(mechanism, salted_password)
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism,
        salt=salt,
        stored_key=stored_key,
        server_key=server_key,
        iterations=iterations,
    )


def _split(text: str) -> tuple[int, dict[str, str]]:
    name, equals, config = text.partition("=")
    if not equals:
        raise WrongCredential("Failed to find equals sign in SCRAM argument")
    mechanism = next((number for number, each in MECHANISMS.items() if each == name), None)
    if mechanism is None:
        raise WrongCredential(f"The add-scram mechanism {name} is not supported.")
    if not config.startswith("["):
        raise WrongCredential("Expected configuration string to start with [")
    if not config.endswith("]") or len(config) < 2:
        raise WrongCredential("Expected configuration string to end with ]")
    values: dict[str, str] = {}
    for part in config[1:-1].split(","):
        key, equals, value = part.partition("=")
        if not equals:
            raise WrongCredential("No equals sign found in a SCRAM component")
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = value[1:-1]
        values[key] = value
    return mechanism, values


def _iterations(text: str | None, mechanism: int) -> int:
    if text is None:
        return DEFAULT_ITERATIONS
    try:
        count = int(text)
    except ValueError:
        raise WrongCredential(f"Failed to parse iterations count: {text}") from None
    if count < MIN_ITERATIONS:
        bound = f">= {MIN_ITERATIONS}"
    elif count > MAX_ITERATIONS:
        bound = f"<= {MAX_ITERATIONS}"
    else:
        return count
    raise WrongCredential(
        f"The 'iterations' value must be {bound} for add-scram using {MECHANISMS[mechanism]}"
    )


def _base64(text: str, what: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise WrongCredential(f"Failed to decode given {what}") from None
