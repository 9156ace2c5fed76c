"""Registration, heartbeats and controlled shutdown of a broker (KIP-631).

    STARTING                     registering, or registered and reading the metadata log up to its registration
    RECOVERY                     caught up and fenced; the broker opens its partitions
    RUNNING                      unfenced
    PENDING_CONTROLLED_SHUTDOWN  the controller moves leaders away; the broker serves until it may shut down
    SHUTTING_DOWN                the controller has allowed the shutdown, or did not respond in time

| state | heartbeat response | next state | next heartbeat after |
|---|---|---|---|
| STARTING | not caught up | STARTING | 10 ms |
| STARTING | caught up | RECOVERY | 10 ms |
| RECOVERY | fenced | RECOVERY | the interval; 10 ms, once the broker is ready |
| RECOVERY | unfenced | RUNNING | the interval |
| RUNNING | any | RUNNING | the interval |
| PENDING_CONTROLLED_SHUTDOWN | should not shut down | PENDING_CONTROLLED_SHUTDOWN | 50 ms |
| PENDING_CONTROLLED_SHUTDOWN | should shut down | SHUTTING_DOWN | never |

The interval is `broker.heartbeat.interval.ms`; failed requests are retried after it. `BrokerStateMachine` has the
states, which are those of Kafka's `BrokerState`; `BrokerLifecycle` is the task that sends the requests. A node that is
the whole cluster registers and is unfenced in one step without requests; when another node joins, it follows the table.

If a client unregisters a running broker (UnregisterBroker), the broker registers again with a new broker epoch as soon
as its metadata image lacks its registration. It does so in every state but the last two: a broker that is shutting
down has no more partitions to hand over. Kafka's broker stays fenced until it is restarted.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from odradek.broker.controller.quorum_controller import ControllerMetadataManager, is_whole_cluster
from odradek.broker.lifecycle.broker_registration import registration_fields
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.features import DIRECTORY_ASSIGNMENT, metadata_version
from odradek.replication.controller.image import MetadataDelta
from odradek.seams.containment import Containment
from odradek.seams.locks import PromptLock

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig
    from odradek.broker.controller.controller_channel import ActiveController
    from odradek.replication.controller.broker_registration import BrokerRegistration
    from odradek.seams.clock import Clock

log = logging.getLogger("odradek.lifecycle")

STARTUP_HEARTBEAT_INTERVAL_MS = 10
SHUTDOWN_HEARTBEAT_INTERVAL_MS = 50
SHUTDOWN_SECONDS_MAX = 300.0
"""Maximum time of a controlled shutdown; followers may have to catch up."""


class BrokerState(enum.Enum):
    STARTING = "starting"
    RECOVERY = "recovery"
    RUNNING = "running"
    PENDING_CONTROLLED_SHUTDOWN = "pending controlled shutdown"
    SHUTTING_DOWN = "shutting down"


class BrokerStateMachine:
    """States of a broker under the controller. Times are monotonic, in ms."""

    def __init__(self, now_ms: int, *, interval_ms: int) -> None:
        self.state = BrokerState.STARTING
        self.broker_epoch = -1
        self.is_registered = False
        self.is_ready = False
        """Whether the broker is ready, so its heartbeats request to be unfenced."""
        self.due_ms = now_ms
        """Time of the next request to the controller."""
        self.responded_ms = now_ms
        """Time of the last response."""
        self._interval_ms = interval_ms

    @property
    def wants_fence(self) -> bool:
        return not self.is_ready

    @property
    def wants_shutdown(self) -> bool:
        """Whether the broker requests its shutdown; further heartbeats do not request leadership."""
        return self.state in (BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerState.SHUTTING_DOWN)

    def registered(self, epoch: int, now_ms: int) -> None:
        self.broker_epoch = epoch
        self.is_registered = True
        self.due_ms = self.responded_ms = now_ms

    def registers_again(self, now_ms: int) -> None:
        """Register again, because the registration is out of date or was removed."""
        self.is_registered = False
        self.due_ms = now_ms

    def ready(self, now_ms: int) -> None:
        self.is_ready = True
        self.due_ms = now_ms

    def served_at_once(self, epoch: int) -> None:
        """The broker was registered and unfenced in one step."""
        self.broker_epoch = epoch
        self.is_registered = self.is_ready = True
        self.state = BrokerState.RUNNING

    def stop(self, now_ms: int) -> None:
        """Start a controlled shutdown; a broker that is not running yet shuts down at once."""
        if self.state is BrokerState.RUNNING:
            self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
            self.due_ms = now_ms
        elif self.state is not BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            self.state = BrokerState.SHUTTING_DOWN

    def responded(
        self, *, is_caught_up: bool, is_fenced: bool, should_shut_down: bool, now_ms: int
    ) -> None:
        """Apply a heartbeat response to the state."""
        self.responded_ms = now_ms
        wait_ms = self._interval_ms
        if self.state is BrokerState.STARTING:
            wait_ms = STARTUP_HEARTBEAT_INTERVAL_MS
            if is_caught_up:
                self.state = BrokerState.RECOVERY
        elif self.state is BrokerState.RECOVERY:
            if not is_fenced:
                self.state = BrokerState.RUNNING
            elif self.is_ready:
                wait_ms = STARTUP_HEARTBEAT_INTERVAL_MS
        elif self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            wait_ms = SHUTDOWN_HEARTBEAT_INTERVAL_MS
            if should_shut_down:
                self.state = BrokerState.SHUTTING_DOWN
        self.due_ms = now_ms + wait_ms

    def failed(self, now_ms: int) -> None:
        self.due_ms = now_ms + self._interval_ms


class BrokerLifecycle:
    """Registration and heartbeats of this broker. `run` sends the requests; `caught_up` and `unfenced` report
    progress."""

    def __init__(
        self,
        metadata: ControllerMetadataManager,
        controller: ActiveController,
        clock: Clock,
        config: ServerConfig,
        *,
        offline: Callable[[], Iterable[UUID]],
        cordoned: Callable[[], Iterable[UUID]],
    ) -> None:
        """`offline` and `cordoned` return the current log directories of each kind."""
        self.caught_up = trio.Event()
        """Set when the metadata image has the registration of this broker."""
        self.unfenced = trio.Event()
        self.failed = trio.Event()
        """Set if registration took longer than initial.broker.registration.timeout.ms; `failure` has the
        reason."""
        self.failure: str | None = None
        self._metadata = metadata
        self._controller = controller
        self._clock = clock
        self._config = config
        self._offline = offline
        self._cordoned = cordoned
        self._registration: BrokerRegistration | None = None
        interval_ms = config.get_int("broker.heartbeat.interval.ms")
        self._timeout_s = config.get_int("broker.session.timeout.ms") / 1000
        self._life = BrokerStateMachine(self._now_ms(), interval_ms=interval_ms)
        self._lock = PromptLock()
        self._wake = trio.Event()
        self._gone = trio.Event()
        self._complaint: str | None = None
        self._requests: Containment[str] = Containment(
            "a request to the controller",
            lambda subject, error: self._life.failed(self._now_ms()),
            consequence="it is sent again after a pause",
        )
        metadata.subscribe(self._metadata_changed)

    @property
    def broker_epoch(self) -> int:
        """Broker epoch; -1 before the first registration."""
        return self._life.broker_epoch

    @property
    def state(self) -> BrokerState:
        return self._life.state

    @property
    def is_whole_cluster(self) -> bool:
        """Whether this node is the whole cluster."""
        voters = (voter.id for voter in self._metadata.quorum.voters)
        return is_whole_cluster(self._metadata.image, voters, self._metadata.node_id)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    # Registration

    async def register(self, registration: BrokerRegistration) -> None:
        """Start to register; `run` sends the request. A node that is the whole cluster and its active
        controller is registered and unfenced when this returns. Raises errors of the controller in that case."""
        self._registration = registration
        if self.is_whole_cluster and self._metadata.is_active:
            await self._serve_alone(registration)
        self._wake.set()

    async def _serve_alone(self, registration: BrokerRegistration) -> None:
        from odradek.replication.controller.broker_fencing import start_broker

        epoch = await self._metadata.perform(
            lambda image: start_broker(
                image,
                registration,
                next_offset=image.offset + 1,
                cordoned=sorted(self._cordoned()),
                unclean_election=self._config.get_bool("unclean.leader.election.enable"),
            )
        )
        self._life.served_at_once(epoch)
        self.caught_up.set()
        self.unfenced.set()

    async def serve(self) -> None:
        """Request to be unfenced; returns when this broker is unfenced."""
        self._life.ready(self._now_ms())
        self._wake.set()
        await self.unfenced.wait()

    # Shutdown

    async def shut_down(self) -> None:
        """Controlled shutdown: returns when other replicas lead the partitions of this broker. A node that is
        the whole cluster returns at once; without a controller the wait ends when the session has expired."""
        if self.is_whole_cluster:
            self._life.state = BrokerState.SHUTTING_DOWN
            return
        self._life.stop(self._now_ms())
        self._wake.set()
        try:
            with trio.move_on_after(SHUTDOWN_SECONDS_MAX):
                while self._life.state is not BrokerState.SHUTTING_DOWN:
                    left_s = (
                        self._life.responded_ms / 1000 + self._timeout_s - self._clock.monotonic()
                    )
                    if left_s <= 0:
                        log.warning(
                            "no controller is available: proceeding without a controlled shutdown"
                        )
                        break
                    with trio.move_on_after(left_s):
                        await self._gone.wait()
        finally:
            self._life.state = BrokerState.SHUTTING_DOWN

    # Requests

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Register and send heartbeats until the broker may shut down or this is cancelled."""
        task_status.started()
        begun_ms = self._now_ms()
        limit_ms = self._config.get_int("initial.broker.registration.timeout.ms")
        while self._life.state is not BrokerState.SHUTTING_DOWN:
            self._wake = trio.Event()
            if self._registration is None or self._needs_no_request:
                await self._wake.wait()
                begun_ms = self._now_ms()
            elif (left_ms := self._life.due_ms - self._now_ms()) > 0:
                with trio.move_on_after(left_ms / 1000):
                    await self._wake.wait()
            elif self._life.broker_epoch < 0 and self._now_ms() - begun_ms >= limit_ms:
                self._give_up()
                break
            else:
                await self._requests.run("a registration or heartbeat", self._send_due_request)
        self._gone.set()

    @property
    def _needs_no_request(self) -> bool:
        return self.is_whole_cluster and self.unfenced.is_set() and self._life.is_registered

    async def _send_due_request(self) -> None:
        is_registered = False
        try:
            async with self._lock:
                is_registered = self._life.is_registered
                if is_registered:
                    await self._heartbeat()
                else:
                    await self._register()
        except KafkaError as error:
            self._life.failed(self._now_ms())
            if self._is_unregistered:
                self._handle_unregistration()
                return
            if self._complaint != str(error):
                self._complaint = str(error)
                task = "send a heartbeat to" if is_registered else "register with"
                log.warning("Unable to %s the controller, retrying: %s", task, error)
        else:
            self._complaint = None

    async def report(self) -> None:
        """Send a heartbeat now, because its log directories have changed. Raises KafkaError."""
        async with self._lock:
            if not self._life.is_registered:
                raise KafkaError(
                    ErrorCode.broker_id_not_registered, "the broker is not registered yet"
                )
            await self._heartbeat()

    async def _register(self) -> None:
        assert self._registration is not None
        if self.unfenced.is_set() and self.is_whole_cluster and self._metadata.is_active:
            await self._serve_alone(self._registration)
            return
        response = await self._controller.request(
            apis.BROKER_REGISTRATION,
            _registration_values(self._registration, self._metadata.cluster_id),
            timeout_s=self._timeout_s,
        )
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, "in response to BrokerRegistration")
        self._life.registered(response.broker_epoch, self._now_ms())
        log.info("registered with epoch %d", response.broker_epoch)

    async def _heartbeat(self) -> None:
        life = self._life
        knows_itself = life.state is not BrokerState.STARTING
        response = await self._controller.request(
            apis.BROKER_HEARTBEAT,
            {
                "broker_id": self._metadata.node_id,
                "broker_epoch": life.broker_epoch,
                "current_metadata_offset": self._metadata.image.offset,
                "want_fence": life.wants_fence,
                "want_shut_down": life.wants_shutdown,
                "offline_log_dirs": sorted(self._offline()),
                "cordoned_log_dirs": sorted(self._cordoned()) if knows_itself else None,
            },
            timeout_s=self._timeout_s,
        )
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, "in response to BrokerHeartbeat")
        before = life.state
        life.responded(
            is_caught_up=response.is_caught_up,
            is_fenced=response.is_fenced,
            should_shut_down=response.should_shut_down,
            now_ms=self._now_ms(),
        )
        if life.state is not before:
            log.info("the broker has transitioned from %s to %s", before.name, life.state.name)
        if life.state in (BrokerState.RECOVERY, BrokerState.RUNNING):
            self.caught_up.set()
        if life.state is BrokerState.RUNNING:
            self.unfenced.set()

    def _give_up(self) -> None:
        self.failure = (
            "this broker was not registered within initial.broker.registration.timeout.ms: "
            + (self._complaint or "no controller is available")
        )
        self.failed.set()

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        """Register with the controller when another node joins, or when the cluster starts to record log
        directories (KIP-858)."""
        if delta.changed_brokers or delta.image.controllers is not delta.before.controllers:
            self._wake.set()
        if self._is_unregistered:
            self._handle_unregistration()
        if delta.changed_features and self._life.is_registered:
            me = delta.image.brokers.get(self._metadata.node_id)
            tracked = metadata_version(delta.image.features) >= DIRECTORY_ASSIGNMENT
            if tracked and me is not None and not me.directories:
                self._life.registers_again(self._now_ms())
                self._wake.set()

    @property
    def _is_unregistered(self) -> bool:
        """Whether a client removed this registration. An image below the broker epoch, which is the offset of the
        registration, may show the removal of an earlier one."""
        image = self._metadata.image
        return (
            self._life.is_registered
            and self._metadata.node_id not in image.brokers
            and image.offset >= self._life.broker_epoch
        )

    def _handle_unregistration(self) -> None:
        """Register again, unless the broker is shutting down."""
        me = self._metadata.node_id
        if self._life.wants_shutdown:
            log.info("broker %d was unregistered during its controlled shutdown", me)
            self._life.state = BrokerState.SHUTTING_DOWN
            self._life.is_registered = False
            self._gone.set()
        else:
            log.warning(
                "broker %d was unregistered (UnregisterBroker) while it is running; registering it again. To remove "
                "the broker from the cluster, stop it first",
                me,
            )
            self._life.registers_again(self._now_ms())
        self._wake.set()


def _registration_values(registration: BrokerRegistration, cluster_id: str) -> Mapping[str, Any]:
    return {
        "broker_id": registration.id,
        "cluster_id": cluster_id,
        "incarnation_id": registration.incarnation_id,
        **registration_fields(registration.endpoints, registration.features),
        "rack": registration.rack,
        "is_migrating_zk_broker": False,
        "log_dirs": sorted(registration.directories),
        "previous_broker_epoch": registration.previous_epoch,
    }
