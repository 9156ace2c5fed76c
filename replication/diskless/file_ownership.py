"""Ownership of WAL files that have batches of several coordinators (KIP-1164, D-21).

The broker that uploads a file lists the coordinators of its batches in random order. The first one is the owner. An owner
without live batches in the file hands the file over to the next one, and the last owner deletes the object. So the object
is deleted when no coordinator has live batches in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from odradek.seams.entropy import Entropy


def permuted_owners(coordinator_ids: Iterable[int], entropy: Entropy) -> tuple[int, ...]:
    """The distinct coordinators in random order, so that all own an equal share of the files."""
    owners = sorted(set(coordinator_ids))
    for last in range(len(owners) - 1, 0, -1):
        chosen = entropy.below(last + 1)
        owners[last], owners[chosen] = owners[chosen], owners[last]
    return tuple(owners)


def next_owner(owner_ids: Sequence[int], coordinator_id: int) -> int | None:
    """The coordinator that takes the file over from this one; None if this one is the last."""
    position = owner_ids.index(coordinator_id) + 1
    return owner_ids[position] if position < len(owner_ids) else None


def preceding_owners(owner_ids: Sequence[int], coordinator_id: int) -> tuple[int, ...]:
    """The coordinators that own the file before this one, in order."""
    return tuple(owner_ids[: owner_ids.index(coordinator_id)])
