"""Decision whether a replica may be created with an empty log, for every input."""

from __future__ import annotations

from itertools import product
from uuid import UUID

import pytest

from odradek.replication.controller.image import LOST, MIGRATING, UNASSIGNED
from odradek.replication.partition.replica_creation import ReplicaCreation, decide_replica_creation

HERE, ELSEWHERE = UUID(int=1000), UUID(int=2000)
NOWHERE = (UNASSIGNED, MIGRATING, LOST)
ANY = ReplicaCreation()


def decided(assigned: UUID, *, is_new: bool, any_offline: bool, others: bool) -> ReplicaCreation:
    return decide_replica_creation(
        assigned, is_new=is_new, live=[HERE], any_offline=any_offline, others_in_sync=others
    )


@pytest.mark.parametrize(
    ("assigned", "is_new", "any_offline", "others"),
    list(product((HERE, ELSEWHERE, *NOWHERE), *[(True, False)] * 3)),
)
def test_replica_creation_matches_decision_table(
    assigned: UUID, is_new: bool, any_offline: bool, others: bool
) -> None:
    found = decided(assigned, is_new=is_new, any_offline=any_offline, others=others)
    if is_new:
        assert found == (ReplicaCreation(HERE) if assigned == HERE else ANY)
    elif any_offline:
        assert found.refusal is not None, "it may be in there"
    elif assigned == HERE:
        assert found == ReplicaCreation(HERE)
    elif assigned == ELSEWHERE and not others:
        assert found.refusal is not None, "an empty log would be the only one, and lead"
        assert str(ELSEWHERE) in found.refusal
    else:
        assert found == ANY
