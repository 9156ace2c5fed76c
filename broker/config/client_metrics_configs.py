"""Configs of client metrics subscriptions (KIP-714)."""

from __future__ import annotations

from odradek.broker.config.config_key import (
    INT,
    LIST,
    MEDIUM,
    Rows,
    Scope,
    row,
)
from odradek.broker.config.validators import (
    distinct,
)

# The formatter would put every column on a line of its own.
# fmt: off
CLIENT_METRICS_ROWS: Rows = (
    row("metrics", LIST, "", MEDIUM, distinct(), scope=Scope.CLIENT_METRICS,
        doc="A comma-separated list of the prefixes of the names of the metrics that clients push. `*` "
            "matches all metrics; an empty list none."),
    row("interval.ms", INT, "300000", MEDIUM, scope=Scope.CLIENT_METRICS,
        doc="The interval in ms at which clients push metrics, 100 to 3600000."),
    row("match", LIST, "", MEDIUM, distinct(), scope=Scope.CLIENT_METRICS,
        doc="The clients that the subscription applies to, as a comma-separated list of attribute=regular "
            "expression pairs. The attributes are client_instance_id, client_id, client_software_name, "
            "client_software_version, client_source_address and client_source_port. An empty list matches "
            "all clients."),
)
# fmt: on
