"""DescribeClientQuotas: every filter component must match; a strict filter allows no other entity types."""

from __future__ import annotations

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.security_records import ClientQuotaEntity, ClientQuotaRecord
from odradek.replication.controller.client_quotas import (
    ANY,
    DEFAULT,
    EXACT,
    QuotaFilterComponent,
    find_quotas,
)
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.image_builder import apply_records

ENTITIES: list[dict[str, str | None]] = [
    {"user": "alice"},
    {"user": None},
    {"user": "alice", "client-id": "c"},
    {"user": "alice", "client-id": None},
    {"client-id": "c"},
    {"ip": "10.0.0.1"},
]


@pytest.fixture
def image() -> MetadataImage:
    records = [
        ClientQuotaRecord(
            entity=tuple(
                ClientQuotaEntity(entity_type=kind, entity_name=name)
                for kind, name in entity.items()
            ),
            key="producer_byte_rate",
            value=float(number),
        )
        for number, entity in enumerate(ENTITIES)
    ]
    return apply_records(MetadataImage(), records, offset=9).image


def found(
    image: MetadataImage, *components: QuotaFilterComponent, strict: bool = False
) -> list[int]:
    """Return the indexes of the matching entities."""
    return sorted(
        int(values["producer_byte_rate"])
        for _, values in find_quotas(image, components, strict=strict)
    )


def test_filter_matching(image: MetadataImage) -> None:
    alice = QuotaFilterComponent("user", EXACT, "alice")
    assert found(image) == [0, 1, 2, 3, 4, 5]
    assert found(image, strict=True) == []
    assert found(image, alice) == [0, 2, 3]
    assert found(image, alice, strict=True) == [0]
    assert found(image, QuotaFilterComponent("user", DEFAULT, None)) == [1]
    assert found(image, QuotaFilterComponent("user", ANY, None)) == [0, 1, 2, 3]
    assert found(image, alice, QuotaFilterComponent("client-id", ANY, None)) == [2, 3]
    assert found(image, alice, QuotaFilterComponent("client-id", DEFAULT, None)) == [3]
    assert found(image, QuotaFilterComponent("client-id", ANY, None), strict=True) == [4]
    assert found(image, QuotaFilterComponent("ip", EXACT, "10.0.0.2")) == []


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([QuotaFilterComponent("", ANY, None)], ErrorCode.invalid_request),
        ([QuotaFilterComponent("hat", ANY, None)], ErrorCode.unsupported_version),
        ([QuotaFilterComponent("user", EXACT, None)], ErrorCode.invalid_request),
        ([QuotaFilterComponent("user", ANY, "x")], ErrorCode.invalid_request),
        ([QuotaFilterComponent("user", 7, None)], ErrorCode.invalid_request),
        ([QuotaFilterComponent("user", ANY, None)] * 2, ErrorCode.invalid_request),
        (
            [QuotaFilterComponent("user", ANY, None), QuotaFilterComponent("ip", ANY, None)],
            ErrorCode.invalid_request,
        ),
    ],
)
def test_invalid_filters_are_rejected(
    components: list[QuotaFilterComponent], code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as raised:
        find_quotas(MetadataImage(), components, strict=False)
    assert raised.value.code is code
