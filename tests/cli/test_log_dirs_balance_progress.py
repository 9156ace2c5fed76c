"""Tests of the progress and rate of moves between log directories."""

from __future__ import annotations

import pytest

from odradek.cli.log_dirs_balance import WINDOW_S, CopyProgress, MoveProgress, duration

MIB = 1 << 20


def test_progress_shows_rate_and_remaining_time() -> None:
    progress = MoveProgress()
    progress.add_sample(100, [CopyProgress(0, 60 * MIB), CopyProgress(0, 40 * MIB)])
    assert str(progress) == (
        "0 of 2 replicas, 0 B of 100.0 MiB (0 %), 0 B/s, remaining time unknown"
    )
    progress.add_sample(102, [CopyProgress(20 * MIB, 60 * MIB), CopyProgress(0, 40 * MIB)])
    assert str(progress) == (
        "0 of 2 replicas, 20.0 MiB of 100.0 MiB (20 %), 10.0 MiB/s, 0:08 remaining"
    )
    progress.add_sample(
        110, [CopyProgress(60 * MIB, 60 * MIB, True), CopyProgress(39 * MIB, 40 * MIB)]
    )
    assert not progress.is_done  # all copied but for the swap
    progress.add_sample(111, [CopyProgress(0, 60 * MIB, True), CopyProgress(0, 41 * MIB, True)])
    assert progress.is_done
    assert str(progress) == "2 of 2 replicas, 101.0 MiB of 101.0 MiB (100 %)"


def test_progress_rate_uses_recent_samples() -> None:
    progress = MoveProgress()
    for second in range(101):  # 1 MiB/s, then ten times that
        copied = min(second, 50) * MIB + max(0, second - 50) * 10 * MIB
        progress.add_sample(second, [CopyProgress(copied, 1000 * MIB)])
    assert progress.bytes_per_s == pytest.approx(10 * MIB)
    assert progress.seconds_left == pytest.approx(45)
    assert WINDOW_S < 50


def test_progress_rate_of_restarted_copy_is_not_negative() -> None:
    progress = MoveProgress()
    progress.add_sample(0, [CopyProgress(50, 100)])
    progress.add_sample(1, [CopyProgress(0, 100)])
    assert progress.bytes_per_s == 0
    assert progress.seconds_left is None


def test_nothing_to_move_is_done() -> None:
    progress = MoveProgress()
    progress.add_sample(0, [])
    assert progress.is_done
    assert str(progress) == "0 of 0 replicas, 0 B of 0 B (100 %)"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (0.2, "0:01"), (75, "1:15"), (3700, "1:01:40")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
