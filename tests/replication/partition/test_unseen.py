"""What nobody sees yet is told as the high watermark passes it."""

from __future__ import annotations

from odradek.replication.partition.unseen import PARTS_MAX, PLENTY_BYTES, Unseen


def test_what_is_passed_is_told_once() -> None:
    unseen = Unseen(0, 0)
    unseen.appended(3, 100)
    unseen.appended(5, 10)
    assert unseen.seen_to(2) == 0
    assert unseen.seen_to(4) == 100
    assert unseen.seen_to(4) == 0
    assert unseen.seen_to(9) == 10


def test_a_high_watermark_that_stands_still_costs_no_more_than_its_parts() -> None:
    unseen = Unseen(0, 0)
    for number in range(3 * PARTS_MAX):
        unseen.appended(number + 1, 1)
    assert unseen.seen_to(PARTS_MAX) == PARTS_MAX - 1
    assert unseen.seen_to(3 * PARTS_MAX) == 2 * PARTS_MAX + 1


def test_what_was_cut_off_is_never_told() -> None:
    unseen = Unseen(0, 0)
    unseen.appended(3, 100)
    unseen.appended(8, 10)
    unseen.appended(5, 1)
    assert unseen.seen_to(8) == 101


def test_of_what_was_there_before_the_size_is_not_known() -> None:
    unseen = Unseen(2, 5)
    unseen.appended(8, 10)
    assert unseen.seen_to(3) == PLENTY_BYTES
    assert unseen.seen_to(6) == PLENTY_BYTES
    assert unseen.seen_to(8) == 10
