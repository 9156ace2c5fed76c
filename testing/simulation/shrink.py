"""Shrinks a failing plan by removing elements that are not needed for the failure."""

from __future__ import annotations

from collections.abc import Callable

from odradek.testing.simulation.plan import Plan


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Return a failing plan that fails with no element less; `plan` fails."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in plan.smaller():
            if fails(candidate):
                plan, smaller = candidate, True
                break
    return plan
