"""Regular expressions over topic names (KIP-848).

Matching goes over all topics, and is done a few at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from odradek.broker.coordination.regular_expressions import InvalidExpression, compile_expression

TOPICS_PER_STEP = 200
"""How many topics one expression is tried with between two chances for others to run."""


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
    expressions: Iterable[str], topics: Collection[str]
) -> Iterator[dict[str, set[str]]]:
    """Which topics each expression matches as a whole; yields the same, growing dict now and then."""
    found: dict[str, set[str]] = {}
    for expression in expressions:
        fullmatch = compile_expression(expression).fullmatch
        matched = found[expression] = set()
        for count, topic in enumerate(topics):
            if count % TOPICS_PER_STEP == TOPICS_PER_STEP - 1:
                yield found
            if fullmatch(topic) is not None:
                matched.add(topic)
        yield found
