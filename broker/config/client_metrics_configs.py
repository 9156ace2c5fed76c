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
        doc="Prefixes of the names of metrics that clients push; empty pushes none, `*` all."),
    row("interval.ms", INT, "300000", MEDIUM, scope=Scope.CLIENT_METRICS,
        doc="How often clients push, in ms, from 100 to 3600000."),
    row("match", LIST, "", MEDIUM, distinct(), scope=Scope.CLIENT_METRICS,
        doc="Which clients push, as name=expression pairs over client_instance_id, client_id, "
            "client_software_name, client_software_version, client_source_address and "
            "client_source_port; empty is all."),
)
# fmt: on
