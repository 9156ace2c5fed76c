"""AddRaftVoter and RemoveRaftVoter: who votes in the metadata quorum (KIP-853).

Asked of a broker, they go on to the active controller like all that only it can do. They are answered
when the change is committed, or has failed; that holds up nobody but the connection they came on.
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
