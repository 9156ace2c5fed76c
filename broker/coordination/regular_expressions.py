"""Clients' regular expressions, in RE2's syntax as in Kafka.

RE2 takes time linear in the text whatever the expression is, so that no expression can stop the broker.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from odradek.protocol.errors import ErrorCode, KafkaError


class InvalidExpression(KafkaError):
    """The message is what RE2 says is wrong."""

    code = ErrorCode.invalid_regular_expression


@lru_cache(maxsize=256)
def compile_expression(expression: str) -> Any:
    """RE2's pattern. Raises InvalidExpression."""
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        raise InvalidExpression(
            reason.decode() if isinstance(reason, bytes) else str(reason)
        ) from None
