"""AddRaftVoter and RemoveRaftVoter (KIP-853).

Brokers forward them to the active controller. The response is sent when the change is committed or has failed;
until then only its connection waits.
"""

from __future__ import annotations

from odradek.broker.apis.raft import responded_by_the_quorum
from odradek.protocol import apis
from odradek.replication.controller.acls import AclOperation
from odradek.replication.raft import voter_rpcs as wire_voters

HANDLERS = {
    apis.ADD_RAFT_VOTER: responded_by_the_quorum(wire_voters.ADD_VOTER, AclOperation.ALTER),
    apis.REMOVE_RAFT_VOTER: responded_by_the_quorum(wire_voters.REMOVE_VOTER, AclOperation.ALTER),
}
