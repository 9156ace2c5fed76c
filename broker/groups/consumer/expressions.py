"""Regular expressions over topic names, in RE2's syntax (KIP-848).

RE2 takes time linear in the text whatever the expression is, so that a member's expression can't
stop the broker; matching still goes over all topics, and is done a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from odradek.protocol.errors import ErrorCode, KafkaError

TOPICS_PER_STEP = 200
"""How many topics are matched between two chances for others to run."""


class InvalidExpression(KafkaError):
    code = ErrorCode.invalid_regular_expression


@lru_cache(maxsize=256)
def compile_expression(expression: str) -> Any:
    """Raises InvalidExpression."""
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode() if isinstance(reason, bytes) else str(reason)
        raise InvalidExpression(
            f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {text}."
        ) from None


def match_topics(
    expressions: Iterable[str], topics: Iterable[str]
) -> Iterator[dict[str, set[str]]]:
    """Which topics each expression matches as a whole; yields the same, growing dict now and then."""
    compiled = {each: compile_expression(each) for each in expressions}
    found: dict[str, set[str]] = {each: set() for each in compiled}
    for count, topic in enumerate(topics):
        if count % TOPICS_PER_STEP == 0:
            yield found
        for expression, pattern in compiled.items():
            if pattern.fullmatch(topic) is not None:
                found[expression].add(topic)
    yield found
