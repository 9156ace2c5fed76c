"""Kafka's text form of a UUID: 22 characters of base64url, no padding."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

ZERO_UUID = UUID(int=0)


def uuid_to_text(value: UUID) -> str:
    return urlsafe_b64encode(value.bytes)[:22].decode()


def uuid_from_text(text: str) -> UUID:
    """Decode a UUID. Raises ValueError if the text is not 22 characters of base64url."""
    try:
        raw = urlsafe_b64decode(text + "==")
    except ValueError as error:
        raise ValueError(f"not a UUID in base64: {text!r}") from error
    if len(raw) != 16 or len(text) > 24:
        raise ValueError(f"not a UUID in base64: {text!r} has {len(raw)} bytes, not 16")
    return UUID(bytes=raw)
