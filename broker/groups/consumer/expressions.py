"""Regular expressions over topic names (KIP-848).

Matching goes over all topics, and is done a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from odradek.broker.coordination.expressions import InvalidExpression, compile_expression

TOPICS_PER_STEP = 200
"""How many topics are matched between two chances for others to run."""


def check_expression(expression: str) -> None:
    """Raises InvalidExpression, with what the member is told."""
    try:
        compile_expression(expression)
    except InvalidExpression as invalid:
        raise InvalidExpression(
            f"SubscribedTopicRegex `{expression}` is not a valid regular expression:"
            f" {invalid.message}."
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
