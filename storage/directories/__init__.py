"""Log directories: several disks, each with its lock, identity, checkpoints and health (JBOD)."""
