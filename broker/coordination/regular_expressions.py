"""Compilation of clients' regular expressions in RE2 syntax, as in Kafka.

RE2 matches in time linear in the text, so no expression can block the broker. It is an optional dependency:
without it, every expression is refused.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from odradek.protocol.errors import ErrorCode, KafkaError


class InvalidExpression(KafkaError):
    """An expression that RE2 rejects; the message is RE2's reason. Or any expression, if RE2 is not installed."""

    code = ErrorCode.invalid_regular_expression


@lru_cache(maxsize=256)
def compile_expression(expression: str) -> Any:
    """Compile an expression. Raises InvalidExpression."""
    try:
        import re2
    except ImportError:
        raise InvalidExpression(
            "the broker has no RE2: pip install google-re2, or odradek[regex]"
        ) from None

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        raise InvalidExpression(
            reason.decode() if isinstance(reason, bytes) else str(reason)
        ) from None
