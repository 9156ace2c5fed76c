"""One partition's log, in Apache Kafka's own files (`partition_log.py` is the door)."""
