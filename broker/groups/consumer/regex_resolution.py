"""Resolves the regular expressions of a group against the topics, yielding to other tasks."""

from __future__ import annotations

import logging

from odradek.broker.coordination.regular_expressions import InvalidExpression
from odradek.broker.groups.consumer.expressions import match_topics
from odradek.broker.groups.consumer.record_helpers import ResolvedRegularExpression
from odradek.broker.groups.consumer.topic_metadata import TopicMetadata
from odradek.broker.groups.messages import ResolveRegularExpressions
from odradek.broker.timers import Turn
from odradek.seams.clock import Clock

log = logging.getLogger("odradek.groups")


async def resolve_expressions(
    resolve: ResolveRegularExpressions, topics: TopicMetadata, clock: Clock
) -> dict[str, ResolvedRegularExpression]:
    """What each expression matches, of what the client may see; nothing if one is none."""
    turn, started_ms = Turn(clock), clock.wall_ms()
    found: dict[str, set[str]] = {}
    try:
        for found_so_far in match_topics(resolve.expressions, list(topics.names())):
            found = found_so_far
            await turn.pass_on()
    except InvalidExpression as error:  # of an older record: members' expressions are checked
        log.error("group %s has an expression that is none: %s", resolve.group_id, error)
        return {}
    resolved: dict[str, ResolvedRegularExpression] = {}
    for expression, matched in found.items():
        if resolve.may_see is not None:
            for topic in list(matched):
                if not resolve.may_see(topic):
                    matched.discard(topic)
                await turn.pass_on()
        resolved[expression] = ResolvedRegularExpression(
            frozenset(matched), topics.version, started_ms
        )
    return resolved
