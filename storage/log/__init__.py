"""Log of one partition in Apache Kafka's file formats; `partition_log.py` contains the main class."""
