"""Broker configs of listeners, connections and requests."""

from __future__ import annotations

from odradek.broker.config.config_key import (
    BOOLEAN,
    CLUSTER_WIDE,
    HIGH,
    INT,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    PER_BROKER,
    STRING,
    Rows,
    row,
)
from odradek.broker.config.validators import (
    at_least,
    distinct,
    not_null,
)

# The formatter would put every column on a line of its own.
# fmt: off
NETWORK: Rows = (
    row("listeners", LIST, "PLAINTEXT://:9092", HIGH, distinct(empty=False), PER_BROKER,
        effect=True,
        doc="A comma-separated list of the listeners of this node, as NAME://host:port. An empty host binds "
            "to all addresses, and port 0 to any free port. Names and ports must be unique, except that an "
            "IPv4 and an IPv6 listener may have the same port."),
    row("advertised.listeners", LIST, None, HIGH, distinct(empty=False, null=True), effect=True,
        doc="The listeners that are advertised to clients and other brokers, in the format of `listeners`. "
            "If not set, `listeners` is used; a listener on all addresses is then advertised with the host "
            "name, or with localhost if `process.roles` is not set. 0.0.0.0 cannot be advertised."),
    row("listener.security.protocol.map", STRING, "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", LOW, mode=PER_BROKER,
        effect=True,
        doc="The security protocol of each listener name, as a comma-separated list of NAME:PROTOCOL pairs. "
            "Configs of one listener have the prefix `listener.name.<name>.`."),
    row("socket.send.buffer.bytes", INT, "102400", HIGH, effect=True,
        doc="The send buffer (SO_SNDBUF) of client sockets in bytes. -1 uses the default of the operating "
            "system."),
    row("socket.receive.buffer.bytes", INT, "102400", HIGH, effect=True,
        doc="The receive buffer (SO_RCVBUF) of client sockets in bytes. -1 uses the default of the "
            "operating system."),
    row("socket.request.max.bytes", INT, "104857600", HIGH, at_least(1), effect=True,
        doc="The maximum size of a request in bytes. The connection of a larger request is closed."),
    row("socket.listen.backlog.size", INT, "50", MEDIUM, at_least(1), effect=True,
        doc="The maximum number of pending connections on a listener's socket. The operating system may "
            "limit it further. If it is not set, Odradek uses the limit of the operating system "
            "(`net.core.somaxconn` on Linux) instead of the default."),
    row("max.connections.per.ip", INT, "2147483647", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="The maximum number of connections from each IP address. 0 rejects all addresses that have no "
            "limit in `max.connections.per.ip.overrides`. Connections over the limit are closed."),
    row("max.connections.per.ip.overrides", STRING, "", MEDIUM, mode=CLUSTER_WIDE,
        doc="Limits that override `max.connections.per.ip` for single addresses or host names, as a "
            "comma-separated list of host:count pairs."),
    row("max.connections", INT, "2147483647", MEDIUM, at_least(0), CLUSTER_WIDE, effect=True,
        doc="The maximum number of connections of the broker, in addition to the limits per address. "
            "`listener.name.<name>.max.connections` limits one listener. If the inter-broker listener is a "
            "separate listener, a new connection to it over the limit closes the client connection that has "
            "been idle for the longest time."),
    row("max.connection.creation.rate", INT, "2147483647", MEDIUM, at_least(0), CLUSTER_WIDE,
        doc="The maximum number of new connections per second of the broker. "
            "`listener.name.<name>.max.connection.creation.rate` limits one listener."),
    row("connections.max.idle.ms", LONG, "600000", MEDIUM, effect=True,
        doc="The time in ms after which an idle connection is closed. A connection whose client waits for a "
            "response is not idle. It is also the maximum time that a fetch waits. A negative value "
            "disables it."),
    row("connection.failed.authentication.delay.ms", INT, "100", LOW, at_least(0),
        doc="The time in ms by which the closing of a connection is delayed after a failed authentication. "
            "It must be less than `connections.max.idle.ms`."),
    row("queued.max.requests", INT, "500", HIGH, at_least(1),
        doc="The maximum number of queued requests before the network threads are blocked."),
    row("queued.max.request.bytes", LONG, "-1", MEDIUM, effect=True,
        doc="The maximum size in bytes of all requests that are being received or handled. At the limit, a "
            "connection with an incomplete request of more than 16 KiB waits before the rest is read. -1 "
            "sets no limit."),
    row("num.network.threads", INT, "3", HIGH, at_least(1), CLUSTER_WIDE,
        doc="The number of threads per listener that receive requests and send responses. Odradek has one "
            "event loop instead."),
    row("num.io.threads", INT, "8", HIGH, at_least(1), CLUSTER_WIDE,
        doc="The number of threads that process requests, which may include disk I/O. Odradek has one event "
            "loop instead."),
    row("background.threads", INT, "10", HIGH, at_least(1), CLUSTER_WIDE,
        doc="The number of threads for background tasks."),
    row("request.timeout.ms", INT, "30000", HIGH, effect=True,
        doc="The timeout in ms of requests that do not have a timeout of their own."),
    row("socket.connection.setup.timeout.ms", LONG, "10000", MEDIUM,
        doc="The time in ms that the broker waits for a connection to another node to be established."),
    row("socket.connection.setup.timeout.max.ms", LONG, "30000", MEDIUM,
        doc="The maximum time in ms that the broker waits for a connection to another node to be "
            "established. The time grows from `socket.connection.setup.timeout.ms` with every consecutive "
            "failure."),
    row("early.start.listeners", LIST, None, HIGH, distinct(null=True),
        doc="A comma-separated list of the listeners that may be opened before the authorizer is "
            "initialized. If not set, the listeners of `controller.listener.names`."),
    row("max.incremental.fetch.session.cache.slots", INT, "1000", MEDIUM, at_least(0), effect=True,
        doc="The maximum number of incremental fetch sessions (KIP-227). If there are more, the least "
            "recently used session is evicted."),
    row("fetch.max.bytes", INT, "57671680", MEDIUM, at_least(1024), effect=True,
        doc="The maximum size of the records in a Fetch response in bytes. The first batch is returned even "
            "if it is larger, so that the consumer can make progress."),
    row("max.request.partition.size.limit", INT, "2000", MEDIUM, at_least(1), effect=True,
        doc="The maximum number of partitions in a DescribeTopicPartitions response."),
    row("unstable.api.versions.enable", BOOLEAN, "false", HIGH, internal=True,
        doc="Whether unstable versions of APIs are enabled. For tests."),
    row("unstable.feature.versions.enable", BOOLEAN, "false", HIGH, internal=True,
        doc="Whether unstable feature levels are enabled. For tests."),
    row("config.providers", LIST, "", LOW, distinct(), CLUSTER_WIDE,
        doc="A comma-separated list of the names of config providers, which resolve `${name:path:key}` in "
            "config values."),
    row("authorizer.class.name", STRING, "", LOW, not_null, effect=True,
        doc="The class of the authorizer: org.apache.kafka.metadata.authorizer.StandardAuthorizer, or empty "
            "for no authorization."),
    row("broker.id", INT, "-1", HIGH, effect=True,
        doc="The earlier name of `node.id`. -1 means that it is not set. If both are set, they must be "
            "equal."),
    row("broker.rack", STRING, None, MEDIUM, effect=True,
        doc="The rack of the broker. It is used for the rack-aware assignment of replicas, and by consumers "
            "that fetch from the closest replica."),
    row("controlled.shutdown.enable", BOOLEAN, "true", MEDIUM,
        doc="Whether the broker performs a controlled shutdown, which moves the leadership of its "
            "partitions to other brokers."),
)
# fmt: on
