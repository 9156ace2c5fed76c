"""The prose check finds refused words, names and docstrings, and nothing in plain text."""

from __future__ import annotations

import pytest

from tests.prose.__main__ import excess, lowered
from tests.prose.check import Finding, check_markdown, check_python


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("# whoever waits is woken\n", "'whoever'"),
        ('log.info("the controller is told of it")\n', "'told'"),
        ("def rouse(heard): ...\n", "name with 'rouse'"),
        ("class Census: ...\n", "name with 'census'"),
        ('def f():\n    """What a fetch reads from the log."""\n', "docstring opens with 'What'"),
        ('def f():\n    """See the module docstring."""\n', "docstring refers to the module"),
        ('def f():\n    """The log."""\n', "docstring is too short"),
    ],
)
def test_python_source_with_refused_prose_is_found(source: str, problem: str) -> None:
    assert any(
        finding.problem.startswith(problem) for finding in check_python("broker/x.py", source)
    )


def test_plain_python_source_has_no_findings() -> None:
    source = (
        'def truncate(offset):\n    """Truncate the log to an offset."""\n    # A sync may fail.\n'
    )
    assert list(check_python("storage/x.py", source)) == []


def test_markdown_is_checked_outside_code_only() -> None:
    page = "The broker answers.\n`told`\n```\ntold\n```\n"
    assert [finding.line for finding in check_markdown("docs/x.md", page)] == [1]


def test_file_above_its_allowance_is_reported_with_all_findings() -> None:
    findings = [Finding("a.py", line, "'told'", "") for line in (1, 2)]
    assert excess(findings, {"a.py": 2}) == []
    assert excess(findings, {"a.py": 1}) == findings
    assert excess(findings, {}) == findings


def test_allowances_only_decrease() -> None:
    findings = [Finding("a.py", line, "'told'", "") for line in (1, 2)]
    assert lowered(findings, {"a.py": 5, "b.py": 3}) == {"a.py": 2}
    assert lowered(findings, {"a.py": 1}) == {"a.py": 1}
