"""Topics as Spark tables, compared with Spark's Kafka connector: `python -m odradek.bench.tables`.

Two topics, the same bytes in Apache Kafka and in this project's broker, which tiers them: orders, which is 1 KiB of
JSON a record in lz4, and small, which is 100 bytes, uncompressed; both are spread over thirty days. Four readers ask the same
queries of them, in turns, each in a Spark application of its own: our source over the store of tiered segments and
over our broker alone, Spark's connector over Apache Kafka and over our broker. How the runs take turns, what is
repeated and what is kept of them is the bench's own (`runner.py`, `results_file.py`).
"""
