"""The table of APIs equals kio's schemas, which are generated from Kafka's message definitions."""

from __future__ import annotations

import pytest
from kio.schema.index import api_key_map, schema_name_map

from odradek.protocol import apis, messages
from odradek.protocol.apis import APIS, NEVER, Api

UNRELEASED = {"init_producer_id": 6}


def test_every_api_of_kio_has_a_row() -> None:
    assert {api.key: api.name for api in APIS.values()} == dict(api_key_map)
    assert list(APIS) == sorted(APIS)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_versions_equal_those_of_kafka(api: Api) -> None:
    known = sorted(schema_name_map[api.name])
    assert (api.min_version, api.max_version) == (
        known[0],
        known[-1] - (1 if api.name in UNRELEASED else 0),
    )


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_flexible_versions_and_headers_equal_those_of_kafka(api: Api) -> None:
    for version in api.versions:
        request = messages.load(api.key, version, "request")
        response = messages.load(api.key, version, "response")
        assert request.__flexible__ == response.__flexible__ == api.flexible(version)
        assert request.__header_schema__.__version__ == (2 if api.flexible(version) else 1)
        responded_in = 1 if api.flexible(version) and api is not apis.API_VERSIONS else 0
        assert response.__header_schema__.__version__ == responded_in


def test_produce_is_advertised_from_version_0() -> None:
    assert apis.PRODUCE.advertised_min == 0
    assert apis.PRODUCE.min_version == 3
    others = [api for api in APIS.values() if api is not apis.PRODUCE]
    assert all(api.advertised_min == api.min_version for api in others)


def test_api_has_its_names_and_versions() -> None:
    assert apis.OFFSET_FOR_LEADER_EPOCH.title == "OffsetForLeaderEpoch"
    assert apis.FETCH.serves(4)
    assert not apis.FETCH.serves(3)
    assert apis.OFFSET_DELETE.flexible_version == NEVER


def test_compatibility_page_has_a_row_per_api() -> None:
    rows = apis.compatibility_rows([apis.METADATA])
    assert len(rows) == len(APIS)
    assert ("Metadata", 3, "0-13", "0-13") in rows
    assert ("OffsetDelete", 47, "0", "") in rows
