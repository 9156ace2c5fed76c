"""Replicas of this node: partition table, ISR changes, log directory reports (`ReplicaManager`)."""
