"""The differences that the request comparison expects are documented, and are found only where they apply."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from tests.conformance.compared_broker import ComparedBroker
from tests.conformance.known_differences import KNOWN, Exchange, KnownDifference, known_difference
from tests.conformance.request_comparison import Result, differences
from tests.conformance.request_generator import KnownRecords

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def without_line_breaks(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.id)
def test_known_difference_is_documented(known: KnownDifference) -> None:
    assert without_line_breaks(known.reason) in without_line_breaks(PAGE.read_text())


def test_ids_of_known_differences_are_unique() -> None:
    assert len({known.id for known in KNOWN}) == len(KNOWN)


def metadata_exchange(odradek: ErrorCode, kafka: ErrorCode) -> Exchange:
    mine, other = ({"topics": [{"error_code": code}]} for code in (odradek, kafka))
    return Exchange(apis.METADATA, 12, {}, mine, other)


def test_known_difference_applies_to_its_values_only() -> None:
    exchange = metadata_exchange(ErrorCode.invalid_request, ErrorCode.unknown_server_error)
    ((path, odradek, kafka),) = differences(exchange.odradek, exchange.kafka)
    found = known_difference(exchange, path, odradek, kafka)
    assert found is not None
    assert found.id == "metadata-null-name"
    assert known_difference(exchange, path, "NONE", kafka) is None


def test_times_of_transaction_markers_are_not_compared() -> None:
    sides = [ComparedBroker("localhost:0", Path("logs")) for _ in range(2)]
    record = KnownRecords(lambda *_: b"", "x1", 1_700_000_000_000)
    for side in sides:
        side.resolved({"records": record})

    def normalized(*times_ms: int) -> list[object]:
        return [
            side.normalized({"timestamp": time_ms})
            for side, time_ms in zip(sides, times_ms, strict=True)
        ]

    markers = normalized(1_700_000_000_200, 1_700_000_000_243)
    assert markers[0] == markers[1]
    for other in (1_700_000_000_243, -1):
        values = normalized(1_700_000_000_000, other)
        assert values[0] != values[1]


def test_only_unknown_differences_are_undocumented() -> None:
    result = Result(seed=1)
    result.add(metadata_exchange(ErrorCode.none, ErrorCode.none))
    result.add(metadata_exchange(ErrorCode.invalid_request, ErrorCode.unknown_server_error))
    assert (len(result.found), result.undocumented) == (1, [])
    result.add(metadata_exchange(ErrorCode.none, ErrorCode.invalid_request))
    (difference,) = result.undocumented
    assert (difference.odradek, difference.kafka) == ("NONE", "INVALID_REQUEST")
