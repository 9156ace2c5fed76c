"""A small Kafka client on trio, over the Network seam: for followers, the command line and tests.

From below: `connection` (one broker, pipelined requests), `metadata` (a cluster: who leads what, and
a connection to each node), and on these `producer`, `consumer`, `group` and `admin`. What a broker
refuses is a `KafkaError` with its code; what never reached a broker is a `ClientError`.
"""
