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
        doc="Listeners of the broker, as NAME://host:port entries. An empty host binds every "
            "address, port 0 any free port. Names and ports must be unique, except for an IPv4 "
            "and an IPv6 address on the same port."),
    row("advertised.listeners", LIST, None, HIGH, distinct(empty=False, null=True), effect=True,
        doc="Listeners that are advertised to clients, in the form of `listeners`. If unset, "
            "`listeners` are advertised; a listener on every address is advertised with the host "
            "name, or localhost if `process.roles` is not set. 0.0.0.0 is rejected."),
    row("listener.security.protocol.map", STRING, "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", LOW, mode=PER_BROKER,
        effect=True,
        doc="Security protocol of each listener name, as NAME:PROTOCOL pairs. A name may be "
            "overridden in further configs under `listener.name.<name>.`."),
    row("socket.send.buffer.bytes", INT, "102400", HIGH, effect=True,
        doc="SO_SNDBUF of client sockets, in bytes; -1 leaves it to the operating system."),
    row("socket.receive.buffer.bytes", INT, "102400", HIGH, effect=True,
        doc="SO_RCVBUF of client sockets, in bytes; -1 leaves it to the operating system."),
    row("socket.request.max.bytes", INT, "104857600", HIGH, at_least(1), effect=True,
        doc="Maximum size of a request in bytes. A larger request closes its connection."),
    row("socket.listen.backlog.size", INT, "50", MEDIUM, at_least(1), effect=True,
        doc="Length of the queue of connections the operating system has taken and the broker has not "
            "accepted yet."),
    row("max.connections.per.ip", INT, "2147483647", MEDIUM, at_least(0), CLUSTER_WIDE,
        effect=True,
        doc="Maximum number of connections from one address; 0 requires overrides."),
    row("max.connections.per.ip.overrides", STRING, "", MEDIUM, mode=CLUSTER_WIDE,
        doc="Limits of single addresses or host names, as host:count pairs, in place of "
            "`max.connections.per.ip`."),
    row("max.connections", INT, "2147483647", MEDIUM, at_least(0), CLUSTER_WIDE, effect=True,
        doc="Maximum number of connections of the broker; `listener.name.<name>.max.connections` "
            "limits a listener. On a separate inter-broker listener a new connection above the "
            "limit closes the client connection that is idle for the longest time."),
    row("max.connection.creation.rate", INT, "2147483647", MEDIUM, at_least(0), CLUSTER_WIDE,
        doc="New connections a second that the broker accepts; one listener's own rate is "
            "`listener.name.<name>.max.connection.creation.rate`."),
    row("connections.max.idle.ms", LONG, "600000", MEDIUM, effect=True,
        doc="Time in ms after which an idle connection is closed, unless its client waits for a "
            "response; also the maximum wait of a fetch. A negative value disables it."),
    row("connection.failed.authentication.delay.ms", INT, "100", LOW, at_least(0),
        doc="How long a connection whose login failed is kept before it is closed, in ms, to slow "
            "down guessing. Less than `connections.max.idle.ms`."),
    row("queued.max.requests", INT, "500", HIGH, at_least(1),
        doc="Requests that may wait for a handler before the network stops reading."),
    row("queued.max.request.bytes", LONG, "-1", MEDIUM,
        doc="Bytes of requests that may wait for a handler before no more are read; -1 sets no limit."),
    row("num.network.threads", INT, "3", HIGH, at_least(1), CLUSTER_WIDE,
        doc="Threads that read requests and write responses. One event loop does both here."),
    row("num.io.threads", INT, "8", HIGH, at_least(1), CLUSTER_WIDE,
        doc="Threads that handle requests, disk access included. One event loop does this here."),
    row("background.threads", INT, "10", HIGH, at_least(1), CLUSTER_WIDE,
        doc="Threads for housekeeping such as deletion of files."),
    row("request.timeout.ms", INT, "30000", HIGH, effect=True,
        doc="How long a request that waits for others may take, in ms: the limit where the request "
            "itself names none."),
    row("socket.connection.setup.timeout.ms", LONG, "10000", MEDIUM,
        doc="How long a connection of the broker to another may take to be set up, in ms, at the "
            "first attempt."),
    row("socket.connection.setup.timeout.max.ms", LONG, "30000", MEDIUM,
        doc="Ceiling of the set-up time of a connection after failures, which grows from "
            "`socket.connection.setup.timeout.ms`, in ms."),
    row("early.start.listeners", LIST, None, HIGH, distinct(null=True),
        doc="Names of listeners opened before authorisation is ready. Unset: those of the controller."),
    row("max.incremental.fetch.session.cache.slots", INT, "1000", MEDIUM, at_least(0), effect=True,
        doc="Maximum number of incremental fetch sessions; the least recently used is evicted."),
    row("fetch.max.bytes", INT, "57671680", MEDIUM, at_least(1024), effect=True,
        doc="Maximum bytes in a Fetch response. The first batch is returned even if it is larger."),
    row("max.request.partition.size.limit", INT, "2000", MEDIUM, at_least(1), effect=True,
        doc="Maximum number of partitions in a DescribeTopicPartitions response."),
    row("unstable.api.versions.enable", BOOLEAN, "false", HIGH, internal=True,
        doc="Serve versions of APIs that are not stable yet. For tests."),
    row("unstable.feature.versions.enable", BOOLEAN, "false", HIGH, internal=True,
        doc="Allow feature levels that are not stable yet. For tests."),
    row("config.providers", LIST, "", LOW, distinct(), CLUSTER_WIDE,
        doc="Names of providers that resolve `${name:path:key}` in values."),
    row("authorizer.class.name", STRING, "", LOW, not_null, effect=True,
        doc="Class of the authorizer: org.apache.kafka.metadata.authorizer.StandardAuthorizer, or"
            " empty to allow everything."),
    row("broker.id", INT, "-1", HIGH, effect=True,
        doc="The older name of `node.id`; -1 is unset. If both are set they must agree."),
    row("broker.rack", STRING, None, MEDIUM, effect=True,
        doc="Rack of the broker, for rack-aware replica assignment and for clients."),
    row("controlled.shutdown.enable", BOOLEAN, "true", MEDIUM,
        doc="Whether the broker moves its leaders to other brokers before it shuts down."),
)
# fmt: on
