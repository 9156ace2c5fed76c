"""A small Kafka client on trio, over the Network seam: for followers, the command line and tests.

The lowest module is `connection` (pipelined requests to one broker). `metadata` has the metadata of a cluster and
a connection to each node. `producer`, `consumer`, `group` and `admin` use both. An error code in a response is
raised as `KafkaError`; a request without a response raises `ClientError`.
"""
