"""Checks and resolves regular expressions over topic names (KIP-848, Kafka's TopicRegexResolver).

Resolving matches every topic with every expression. It yields to other tasks between steps.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator

from odradek.broker.coordination.regular_expressions import InvalidExpression, compile_expression
from odradek.broker.groups.consumer.record_helpers import ResolvedRegularExpression
from odradek.broker.groups.consumer.topic_metadata import TopicMetadata
from odradek.broker.groups.messages import ResolveRegularExpressions
from odradek.broker.timers import EventLoopYield
from odradek.seams.clock import Clock

log = logging.getLogger("odradek.groups")


async def resolve_expressions(
    resolve: ResolveRegularExpressions, topics: TopicMetadata, clock: Clock
) -> dict[str, ResolvedRegularExpression]:
    """Resolve the expressions to topics that the client may see; empty if an expression is invalid."""
    event_loop, started_ms = EventLoopYield(clock), clock.wall_ms()
    matches: dict[str, set[str]] = {}
    try:
        for matched_so_far in match_topics(resolve.expressions, list(topics.names())):
            matches = matched_so_far
            await event_loop.yield_if_due()
    except InvalidExpression as error:  # from a record; heartbeats are checked
        log.error("group %s has an invalid regular expression: %s", resolve.group_id, error)
        return {}
    resolved: dict[str, ResolvedRegularExpression] = {}
    for expression, matched in matches.items():
        if resolve.may_see is not None:
            for topic in list(matched):
                if not resolve.may_see(topic):
                    matched.discard(topic)
                await event_loop.yield_if_due()
        resolved[expression] = ResolvedRegularExpression(
            frozenset(matched), topics.version, started_ms
        )
    return resolved


TOPICS_PER_STEP = 200
"""Number of topics matched with an expression before other tasks may run."""


def check_expression(expression: str) -> None:
    """Raises InvalidExpression with Kafka's message if RE2 rejects the expression."""
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
    """Match topics with each expression as a whole. Yields the same growing dictionary after each step."""
    matches: dict[str, set[str]] = {}
    for expression in expressions:
        fullmatch = compile_expression(expression).fullmatch
        matched = matches[expression] = set()
        for count, topic in enumerate(topics):
            if count % TOPICS_PER_STEP == TOPICS_PER_STEP - 1:
                yield matches
            if fullmatch(topic) is not None:
                matched.add(topic)
        yield matches
