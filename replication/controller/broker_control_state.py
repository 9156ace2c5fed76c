"""Broker states and their transitions by heartbeats (KIP-631, KIP-841; Kafka's
`BrokerControlState`).

    current              requested      next
    fenced               shut down      shutdown now
    fenced               serve          unfenced once it has caught up with its registration
    fenced               be fenced      fenced
    unfenced             serve          unfenced
    unfenced             be fenced      fenced
    unfenced             shut down      controlled shutdown; shutdown now if it leads no partition
    unfenced             both           shutdown now
    controlled shutdown  anything       shutdown now once it leads no partition and all brokers know

A broker that cannot wait requests both. An expired session fences a broker in any state.
"""

from __future__ import annotations

import enum
from collections.abc import Callable


class BrokerControlState(enum.Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"  # only in responses: the broker is fenced and may exit

    @property
    def is_fenced(self) -> bool:
        return self in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW)


def next_state(
    now: BrokerControlState,
    *,
    want_fence: bool,
    want_shut_down: bool,
    may_serve: bool,
    leads: Callable[[], bool],
    is_known: Callable[[], bool],
) -> BrokerControlState:
    """Broker state after a heartbeat.

    `may_serve`: it has caught up and is not shutting down. `leads`: it leads a partition.
    `is_known`: all unfenced brokers have replayed its shutdown. The two callbacks run only when
    needed.
    """
    match now, want_fence, want_shut_down:
        case BrokerControlState.FENCED, _, True:
            return BrokerControlState.SHUTDOWN_NOW
        case BrokerControlState.FENCED, False, False if may_serve:
            return BrokerControlState.UNFENCED
        case BrokerControlState.UNFENCED, True, True:
            return BrokerControlState.SHUTDOWN_NOW
        case BrokerControlState.UNFENCED, True, False:
            return BrokerControlState.FENCED
        case BrokerControlState.UNFENCED, False, True:
            return (
                BrokerControlState.CONTROLLED_SHUTDOWN
                if leads()
                else BrokerControlState.SHUTDOWN_NOW
            )
        case BrokerControlState.CONTROLLED_SHUTDOWN, _, _ if not leads() and is_known():
            return BrokerControlState.SHUTDOWN_NOW
        case _:
            return now
