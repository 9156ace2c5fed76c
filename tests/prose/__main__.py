"""`python -m tests.prose [PATH ...]`: list the prose and names that the project's style refuses.

Paths are files or folders; without any, the whole repository is checked. Ends with 1 if anything is found.
`--count` prints one line per folder instead of one per finding.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from tests.prose.check import check_repository

ROOT = Path(__file__).parents[2]


def main(arguments: list[str]) -> int:
    counting = "--count" in arguments
    paths = [argument.rstrip("/") for argument in arguments if not argument.startswith("--")]
    findings = list(check_repository(ROOT, paths))
    if counting:
        folders = Counter("/".join(finding.path.split("/")[:2]) for finding in findings)
        for folder, count in folders.most_common():
            print(f"{count:6} {folder}")
    else:
        for finding in findings:
            print(finding)
    if findings:
        print(
            f"{len(findings)} places to rewrite; docs/glossary.md lists the project's terms",
            file=sys.stderr,
        )
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
