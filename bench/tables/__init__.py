"""Topics as Spark tables, compared with Spark's Kafka connector: `python -m odradek.bench.tables`.

Apache Kafka and this project's broker have the same two topics; this project's broker tiers them. The topic orders
has records of 1 KiB of JSON in lz4, and small has uncompressed records of 100 bytes. The timestamps of both cover
thirty days. Four readers run the same queries in turns, each in its own Spark application: this project's data source
with the remote storage, the same data source with only the broker, and Spark's connector with Apache Kafka and with
this project's broker. `runner.py` decides the order and the repetitions, and `results_file.py` stores the results.
"""
