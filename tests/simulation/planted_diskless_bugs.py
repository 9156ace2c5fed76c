"""Planted bugs of diskless topics (KIP-1164), which the simulator must find."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from odradek.broker.diskless import coordinator, maintenance
from odradek.broker.diskless.coordinator import PendingOperation
from odradek.broker.diskless.file_workers import FileWorkEnvironment
from odradek.broker.diskless.memory_state_store import StoredMemoryState
from odradek.replication.diskless import coordinator_state_machine
from odradek.replication.diskless.coordinator_state_machine import (
    CoordinatorStateMachine,
    StateReads,
    StateValues,
)
from odradek.storage.diskless.state import (
    DisklessState,
    FileState,
    FileStatus,
    LogEntry,
    ProducerEntry,
)


def respond_before_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """The response to an operation is sent when its records are appended (D-17)."""

    async def wait(operation: PendingOperation) -> None:
        pass

    patch.setattr(PendingOperation, "wait", wait)


def ignore_pending_operations(patch: pytest.MonkeyPatch) -> None:
    """Decisions use the applied state, without the operations that are not applied yet (D-18)."""
    honest = CoordinatorStateMachine.accept

    def accept(machine: CoordinatorStateMachine, *args: Any) -> None:
        honest(machine, *args)
        for heads in (machine._partitions, machine._producers, machine._files):
            heads.clear()

    patch.setattr(CoordinatorStateMachine, "accept", accept)


def delete_files_without_hand_over(patch: pytest.MonkeyPatch) -> None:
    """An owner without live batches deletes the object, although other owners follow (D-21)."""
    honest = FileState.status

    def status(file: FileState, coordinator_id: int) -> FileStatus:
        found = honest(file, coordinator_id)
        return FileStatus.DELETING if found is FileStatus.HANDING_OVER else found

    patch.setattr(FileState, "status", status)


def ignore_grace_period_of_files(patch: pytest.MonkeyPatch) -> None:
    """Objects without live batches are deleted at once (D-22)."""

    def environment(**values: Any) -> FileWorkEnvironment:
        return FileWorkEnvironment(**{**values, "grace_ms": lambda: 0})

    patch.setattr(maintenance, "FileWorkEnvironment", environment)


def store_applied_offset_before_records(patch: pytest.MonkeyPatch) -> None:
    """The applied offset is stored in a transaction of its own, before the records (D-16).

    A crash between the two leaves a state that lacks these records.
    """
    honest = StoredMemoryState.apply

    def apply(state: StoredMemoryState, entries: Sequence[LogEntry], through_offset: int) -> None:
        _, *rest = pickle.loads(state.snapshot())
        state._store(pickle.dumps((through_offset, *rest)))
        honest(state, entries, through_offset)

    patch.setattr(StoredMemoryState, "apply", apply)


def forget_producers_at_an_election(patch: pytest.MonkeyPatch) -> None:
    """A new coordinator does not know the earlier batches of idempotent producers, and accepts any as the first one
    (D-07)."""
    honest, honest_check = coordinator.read_state, coordinator_state_machine.check_sequence

    def read_state(state: DisklessState, reads: StateReads) -> StateValues:
        values = honest(state, reads)
        return replace(values, producers=dict.fromkeys(values.producers))

    def check_sequence(entry: ProducerEntry | None, *args: Any) -> None:
        if entry is not None:
            honest_check(entry, *args)

    patch.setattr(coordinator, "read_state", read_state)
    patch.setattr(coordinator_state_machine, "check_sequence", check_sequence)


PLANTED = [
    respond_before_the_high_watermark,
    ignore_pending_operations,
    delete_files_without_hand_over,
    ignore_grace_period_of_files,
    store_applied_offset_before_records,
    forget_producers_at_an_election,
]
