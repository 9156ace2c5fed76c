"""Log directories (JBOD): lock, ids, checkpoints, state, and placement of new replicas."""
