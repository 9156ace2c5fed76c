"""Log compaction: the last value of every key stays (cleanup.policy=compact)."""
