from __future__ import annotations

from typing import Any

import pytest

from odradek.broker.requests.dispatch import unsupported_version_response
from odradek.protocol import apis, messages

SOFTWARE = {"client_software_name": "odradek-tests", "client_software_version": "1.0"}


def software(version: int) -> dict[str, str]:
    return SOFTWARE if version >= 3 else {}


@pytest.mark.parametrize("version", apis.API_VERSIONS.versions)
async def test_api_versions_lists_supported_apis(client: Any, version: int) -> None:
    response = await client.ask(apis.API_VERSIONS, version, **software(version))
    assert response.error_code.name == "none"
    shown = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    assert list(shown) == sorted(shown)
    assert shown[apis.PRODUCE.key] == (0, 13)  # KAFKA-18659
    assert shown[apis.METADATA.key] == (0, 13)
    assert shown[apis.API_VERSIONS.key] == (0, 4)
    assert all(shown[key][1] == apis.APIS[key].max_version for key in shown)


async def test_api_versions_lists_features(client: Any) -> None:
    response = await client.ask(apis.API_VERSIONS, 4, **SOFTWARE)
    supported = {
        each.name: (each.min_version, each.max_version) for each in response.supported_features
    }
    assert supported["metadata.version"] == (7, 30)
    assert supported["group.version"] == (0, 1)
    finalized = {each.name: each.max_version_level for each in response.finalized_features}
    assert finalized["metadata.version"] == 30
    assert finalized["transaction.version"] == 2
    assert "kraft.version" not in finalized  # level 0 is not finalized
    assert response.finalized_features_epoch == client.broker.metadata.image.offset


async def test_features_with_minimum_0_are_hidden_before_version_4(client: Any) -> None:
    """KAFKA-17492: older clients fail on them."""
    response = await client.ask(apis.API_VERSIONS, 3, **SOFTWARE)
    assert [each.name for each in response.supported_features] == ["metadata.version"]


@pytest.mark.parametrize(
    ("name", "version"),
    [("", "1"), ("-x", "1"), ("x.", "1"), ("x y", "1"), ("x", ""), ("x", "1_0")],
)
async def test_invalid_client_software_name_is_rejected(
    client: Any, name: str, version: str
) -> None:
    """KIP-511."""
    response = await client.ask(
        apis.API_VERSIONS, 4, client_software_name=name, client_software_version=version
    )
    assert response.error_code.name == "invalid_request"
    assert response.api_keys == ()
    assert response.finalized_features_epoch == -1


def test_unsupported_version_gets_response_in_version_0() -> None:
    response = unsupported_version_response()
    assert response == bytes.fromhex("0023 00000001 0012 0000 0004")
    response = messages.read_response(apis.API_VERSIONS.key, 0, memoryview(response))
    assert response.error_code.name == "unsupported_version"
