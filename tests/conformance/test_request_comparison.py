"""A short request comparison; `make compare-requests` is the long one."""

from __future__ import annotations

import pytest

from tests.conformance.request_comparison import compare, table


@pytest.mark.slow
@pytest.mark.interop
def test_generated_requests_have_no_undocumented_difference() -> None:
    result = compare(250, seed=3, only=None)
    assert not result.undocumented, table(result.undocumented)
