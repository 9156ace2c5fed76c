"""A failing plan, made smaller: faults that are not needed to fail are left out, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from odradek.testing.simulation.plan import Plan


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """A plan that fails still, and would not with one fault less; `plan` fails."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in plan.smaller():
            if fails(candidate):
                plan, smaller = candidate, True
                break
    return plan
