"""AlterClientQuotas: entities, keys and values, and Kafka's error messages."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.client_quotas import (
    AlteredQuotas,
    QuotaAlteration,
    QuotaFilterComponent,
    alter_quotas,
    find_quotas,
)
from odradek.replication.controller.image import MetadataImage
from tests.support.cluster_images import formatted, perform

ALICE = (("user", "alice"),)
RATES: dict[str, float | None] = {"producer_byte_rate": 1024.0, "consumer_byte_rate": 2048.0}


def altered(
    image: MetadataImage, *wanted: tuple[Any, dict[str, float | None]], validate_only: bool = False
) -> tuple[MetadataImage, list[AlteredQuotas]]:
    alterations = [QuotaAlteration(entity, tuple(ops.items())) for entity, ops in wanted]
    return perform(image, alter_quotas(image, alterations, validate_only=validate_only))


def test_quotas_are_set_changed_and_removed() -> None:
    image, (response,) = altered(formatted(), (ALICE, RATES))
    assert response == AlteredQuotas(ALICE)
    assert image.quotas == {ALICE: RATES}
    image, _ = altered(image, (ALICE, {"producer_byte_rate": None, "consumer_byte_rate": 1.0}))
    assert image.quotas == {ALICE: {"consumer_byte_rate": 1.0}}
    image, _ = altered(image, (ALICE, {"consumer_byte_rate": None}))
    assert image.quotas == {}


def test_unchanged_quota_returns_no_record() -> None:
    image, _ = altered(formatted(), (ALICE, RATES))
    again, (response,) = altered(image, (ALICE, {**RATES, "request_percentage": None}))
    assert response.error is None
    assert again.offset == image.offset
    only_checked, (response,) = altered(
        image, (ALICE, {"consumer_byte_rate": 1.0}), validate_only=True
    )
    assert (only_checked.offset, response.error) == (image.offset, None)


@pytest.mark.parametrize(
    "entity",
    [
        (("user", None),),
        (("client-id", "c"),),
        (("user", "alice"), ("client-id", None)),
        (("client-id", "c"), ("user", "alice")),
    ],
)
def test_order_of_entity_parts_is_irrelevant(entity: Any) -> None:
    image, (response,) = altered(formatted(), (entity, {"request_percentage": 12.5}))
    assert response.error is None
    components = [QuotaFilterComponent(kind, 0 if name else 1, name) for kind, name in entity]
    ((found, values),) = find_quotas(image, components, strict=True)
    assert (dict(found), values) == (dict(entity), {"request_percentage": 12.5})


@pytest.mark.parametrize(
    ("entity", "ops", "reason"),
    [
        ((), RATES, "Invalid empty client quota entity"),
        ((("group", "g"),), RATES, "Unhandled client quota entity type: group"),
        ((("user", ""),), RATES, "Empty user not supported"),
        ((("ip", "1.2.3.4"), ("user", "a")), RATES, "Invalid quota entity combination"),
        ((("ip", "1.2.3"),), RATES, "1.2.3 is not a valid IP"),
        ((("ip", None),), RATES, "Invalid configuration key producer_byte_rate"),
        (ALICE, {"speed": 1.0}, "Invalid configuration key speed"),
        (ALICE, {"producer_byte_rate": 0.0}, "must be greater than 0"),
        (ALICE, {"producer_byte_rate": float("nan")}, "must be greater than 0"),
        (ALICE, {"producer_byte_rate": 1.5}, "cannot be a fractional value"),
        (ALICE, {"producer_byte_rate": 1e19}, "too large for a LONG"),
        ((("ip", "1.2.3.4"),), {"connection_creation_rate": 1.5}, "cannot be a fractional value"),
    ],
)
def test_invalid_requests_are_rejected(
    entity: Any, ops: dict[str, float | None], reason: str
) -> None:
    image, (refused, fine) = altered(formatted(), (entity, ops), ((("user", "bob"),), RATES))
    assert refused.error is not None
    assert refused.error.code is ErrorCode.invalid_request
    assert reason in refused.error.message
    assert fine.error is None
    assert list(image.quotas) == [(("user", "bob"),)]


def test_duplicate_entity_or_key_is_rejected() -> None:
    twice = QuotaAlteration(ALICE, (("producer_byte_rate", 1.0), ("producer_byte_rate", 2.0)))
    image = formatted()
    (response,) = alter_quotas(image, [twice]).result
    assert response.error is not None
    assert response.error.message.startswith("Duplicate quota key producer_byte_rate")
    image, (response,) = altered(image, (ALICE, RATES), (ALICE, {"producer_byte_rate": 5.0}))
    assert response.error is not None
    expected = "Ignoring duplicate entity ClientQuotaEntity(entries={user=alice})"
    assert response.error.message == expected
    assert image.quotas == {ALICE: RATES}, "as in Kafka, the first one is done"
