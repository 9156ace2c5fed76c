"""`python -m tests.prose [PATH ...]`: list the prose and names that the project's style refuses.

Paths are files or folders; without any, the whole repository is checked. Files that are not rewritten yet have an
allowance in `allowances.json`: the number of findings that they may have. The check fails for a file with more findings
than its allowance. `--all` lists all findings. `--count` prints one line per folder. `--update` lowers the allowances to
the current numbers; it never raises one.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.prose.check import Finding, check_repository

ROOT = Path(__file__).parents[2]
ALLOWANCES = Path(__file__).with_name("allowances.json")


def excess(findings: list[Finding], allowances: Mapping[str, int]) -> list[Finding]:
    """The findings of the files that have more of them than their allowance."""
    counts = Counter(finding.path for finding in findings)
    return [
        finding for finding in findings if counts[finding.path] > allowances.get(finding.path, 0)
    ]


def lowered(findings: list[Finding], allowances: Mapping[str, int]) -> dict[str, int]:
    """Allowances for the current findings, none higher than before."""
    counts = Counter(finding.path for finding in findings)
    return {path: min(counts[path], most) for path, most in allowances.items() if counts[path]}


def main(arguments: list[str]) -> int:
    paths = [argument.rstrip("/") for argument in arguments if not argument.startswith("--")]
    findings = list(check_repository(ROOT, paths))
    allowances = json.loads(ALLOWANCES.read_text()) if ALLOWANCES.exists() else {}
    if "--update" in arguments:
        ALLOWANCES.write_text(json.dumps(lowered(findings, allowances), indent=1) + "\n")
        return 0
    if "--count" in arguments:
        folders = Counter("/".join(finding.path.split("/")[:2]) for finding in findings)
        for folder, count in folders.most_common():
            print(f"{count:6} {folder}")
        return 0
    shown = findings if "--all" in arguments else excess(findings, allowances)
    for finding in shown:
        print(finding)
    if shown:
        print(f"{len(shown)} places to rewrite; docs/glossary.md lists the terms", file=sys.stderr)
    return 1 if shown else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
