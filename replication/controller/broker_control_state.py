"""What a heartbeat makes of a broker: the states of its life under a controller (KIP-631, KIP-841).

    now                  wants          next
    fenced               shut down      shutdown now
    fenced               serve          unfenced once it has caught up with its registration
    fenced               be fenced      fenced
    unfenced             serve          unfenced
    unfenced             be fenced      fenced
    unfenced             shut down      controlled shutdown; shutdown now if it leads nothing
    unfenced             both           shutdown now
    controlled shutdown  anything       shutdown now once it leads nothing and all others know

`both` is a broker that cannot wait: it asks to be fenced and to shut down. A session that ends fences
in any state, and an unregistration or another incarnation ends the life altogether.
"""

from __future__ import annotations

import enum
from collections.abc import Callable


class BrokerControlState(enum.Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"  # an answer: the broker is fenced, and may go

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
    """The state after a heartbeat.

    `may_serve`: it has caught up, and has not been about to stop. `leads`: it leads a partition.
    `is_known`: all that serve have heard that it stops; the two are asked only where they count.
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
