"""Generated requests against Odradek and Apache Kafka, and the differences between their responses.

    python -m tests.conformance.request_comparison [--requests N] [--seed N] [--api NAME] [--examples] [--page FILE]

Both brokers receive the same requests at the same time and in the same order: all APIs and versions that both
advertise in turn, with field values that are valid, at a limit, or invalid; some have a version that is not supported,
or an error in their encoding. Rounds of 250 requests start with new brokers, so that a difference in the state of the
brokers does not have consequences for long. Values that a broker chooses (ids, times, addresses) and the wording of
error messages are not compared. Differences that docs/compatibility.md explains are listed in known_differences.py;
any other makes the command fail.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odradek.bench.peers.jars import kafka_version
from odradek.protocol import apis
from odradek.protocol.apis import APIS, Api
from odradek.protocol.errors import ErrorCode
from tests.conformance import brokers
from tests.conformance.builds import broker_build
from tests.conformance.compared_broker import (
    SETTLE_SECONDS,
    ComparedBroker,
    is_temporary,
)
from tests.conformance.known_differences import (
    Exchange,
    KnownDifference,
    forgets_a_group,
    known_difference,
)
from tests.conformance.request_generator import (
    MALFORMED,
    TOPICS,
    UNSUPPORTED_VERSION,
    RequestGenerator,
)

REQUESTS_PER_ROUND = 250
SETTINGS = {
    "auto.create.topics.enable": "false",
    "num.partitions": "2",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.max.session.timeout.ms": "600000",
    "group.consumer.session.timeout.ms": "600000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
UNSUPPORTED_VERSION_SHARE = 0.02
MALFORMED_SHARE = 0.04
CHANGES = ("create", "delete", "alter", "incremental", "elect", "update", "unregister")
"""First words of the APIs that change the metadata of the cluster."""
EXAMPLE_CHARS = 800
RELATED_MAX = 60
"""Earlier requests of the same group or transactional id that are printed with an example."""


@dataclass
class Difference:
    """Requests of one API whose responses differ in one field in the same way."""

    api: str
    path: str
    odradek: str
    kafka: str
    known: KnownDifference | None = None
    versions: Counter[int] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """Number of requests."""
        return self.versions.total()


@dataclass
class Result:
    """Numbers of requests by API, and the differences."""

    seed: int
    examples: bool = False
    """Whether to print a request for each undocumented difference, when it is found."""
    sent: Counter[str] = field(default_factory=Counter)
    versions: dict[str, set[int]] = field(default_factory=dict)
    unlisted: set[str] = field(default_factory=set)
    """APIs that neither broker lists on this listener."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Requests with an error, by kind."""
    found: dict[tuple[str, ...], Difference] = field(default_factory=dict)
    history: list[Exchange] = field(default_factory=list)
    """Requests to the present brokers."""

    def _example(self, exchange: Exchange) -> str:
        """The request, after those of the same group, transactional id or topic, whose state it may depend on."""
        names = ("g1", "cg1", "g2", "x1", *TOPICS)
        keys = [name for name in names if f"'{name}'" in f"{exchange.values} {exchange.odradek}"]
        related = [
            each
            for each in self.history
            if each is exchange or any(repr(key) in repr(each.values) for key in keys)
        ]
        return "\n".join(
            f"    {each.api.name} {each.version} {each.kind} {each.values!s:.{EXAMPLE_CHARS}}\n"
            f"        {each.odradek!s:.{EXAMPLE_CHARS}}\n        {each.kafka!s:.{EXAMPLE_CHARS}}"
            for each in related[-RELATED_MAX:]
        )

    @property
    def undocumented(self) -> list[Difference]:
        return [each for each in self.found.values() if each.known is None]

    def add(self, exchange: Exchange) -> bool:
        """Count the request and its differences. True if the state of the brokers may differ now."""
        api = exchange.api.name
        self.sent[api] += 1
        self.versions.setdefault(api, set()).add(exchange.version)
        if exchange.kind:
            self.kinds[exchange.kind] += 1
        self.history.append(exchange)
        needs_restart, is_new = forgets_a_group(exchange, self.history), False
        for path, odradek, kafka in differences(exchange.odradek, exchange.kafka):
            known = known_difference(exchange, path, odradek, kafka)
            key = (api, known.id) if known else (api, path, odradek, kafka)
            entry = self.found.setdefault(key, Difference(api, path, odradek, kafka, known))
            entry.versions[exchange.version] += 1
            needs_restart |= known is None or known.restarts
            if self.examples and known is None and entry.count == 1:
                print(f"{api} {path}: {odradek} / {kafka}")
                is_new = True
        if is_new:
            print(self._example(exchange), flush=True)
        return needs_restart


def differences(odradek: Any, kafka: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Path of each field that differs, with both values."""
    if isinstance(odradek, dict) and isinstance(kafka, dict):
        for name in sorted({*odradek, *kafka}):
            yield from differences(odradek.get(name), kafka.get(name), f"{path}.{name}".lstrip("."))
    elif isinstance(odradek, list) and isinstance(kafka, list) and len(odradek) == len(kafka):
        for mine, other in zip(odradek, kafka, strict=True):
            yield from differences(mine, other, f"{path}[]")
    elif odradek != kafka:
        yield path, _short(odradek), _short(kafka)


def _short(value: Any) -> str:
    if isinstance(value, ErrorCode):
        return value.name.upper()
    if isinstance(value, list):
        return f"{len(value)} items"
    if isinstance(value, dict):
        code = value.get("error_code")
        return f"a response with {code.name.upper()}" if code else "a response"
    return str(value)[:60]


def compare(
    requests: int,
    seed: int,
    only: str | None,
    *,
    examples: bool = False,
    page_file: Path | None = None,
) -> Result:
    """Send the requests in rounds, after each of which the page is written."""
    result = Result(seed, examples)
    rng = random.Random(seed)
    turn: Iterator[tuple[Api, int]] | None = None
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(_start)
        while (left := requests - result.sent.total()) > 0:
            stack, sides = started.result()
            started = pool.submit(_start)  # the next brokers, while these respond
            with stack:
                listed = [side.versions() for side in sides]
                if turn is None:
                    choices = _choices(*listed, only)
                    rng.shuffle(choices)
                    turn = itertools.cycle(choices)
                    result.unlisted |= {
                        api.name
                        for api, _ in choices
                        if not any(api.key in keys for keys in listed)
                    }
                result.history.clear()
                count = min(left, REQUESTS_PER_ROUND)
                for exchange in itertools.islice(_round(rng, turn, sides), count):
                    if result.add(exchange):
                        break
            print(
                f"{result.sent.total()} requests, {len(result.undocumented)} undocumented differences",
                file=sys.stderr,
                flush=True,
            )
            if page_file is not None:
                page_file.write_text(page(result))
        started.result()[0].close()
    return result


def _start() -> tuple[ExitStack, list[ComparedBroker]]:
    """Start both brokers; the stack stops them."""
    sides = []
    now_ms = int(time.time() * 1000)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in brokers.TITLES:
            process = stack.enter_context(brokers.start(name, directory / name, SETTINGS))
            side = ComparedBroker(process.bootstrap, process.log_dirs[0])
            stack.callback(side.close)
            side.prepare(now_ms)
            sides.append(side)
        return stack.pop_all(), sides


def _choices(
    odradek: Mapping[int, tuple[int, int]], kafka: Mapping[int, tuple[int, int]], only: str | None
) -> list[tuple[Api, int]]:
    """APIs and versions that both brokers list, and APIs that neither lists."""
    return [
        (api, version)
        for key, api in APIS.items()
        if only in (None, api.name) and (key in odradek) == (key in kafka)
        for version in api.versions
        if key not in odradek
        or max(odradek[key][0], kafka[key][0]) <= version <= min(odradek[key][1], kafka[key][1])
    ]


def _round(
    rng: random.Random, turn: Iterator[tuple[Api, int]], sides: Sequence[ComparedBroker]
) -> Iterator[Exchange]:
    generator = RequestGenerator(rng)
    for api, version in turn:
        kind, draw = "", rng.random()
        if draw < MALFORMED_SHARE and api is not apis.PRODUCE:
            kind = rng.choice(MALFORMED if not api.flexible(version) else MALFORMED[:2])
        elif draw > 1 - UNSUPPORTED_VERSION_SHARE and api is not apis.API_VERSIONS:
            kind, version = UNSUPPORTED_VERSION, api.max_version
        yield _exchange(api, version, generator.request(api, version), kind, sides)


def _exchange(
    api: Api, version: int, values: Mapping[str, Any], kind: str, sides: Sequence[ComparedBroker]
) -> Exchange:
    for side in sides:
        side.send(api, version, values, kind)
    found = []
    for side in sides:
        response = side.receive(api, version, values)
        if is_temporary(response):
            response = side.request(api, version, values)
        found.append(side.normalized(response))
    if api.name.startswith(CHANGES):
        time.sleep(SETTLE_SECONDS)
    if api is apis.DELETE_TOPICS:
        for side in sides:
            side.restore_topics()
    return Exchange(api, version, values, found[0], found[1], kind)


HEAD = """\
<!-- Generated by `make compare-requests`. -->
# Request comparison

`make compare-requests` sends the same generated requests to Odradek and to Apache Kafka and compares the responses
([the command](interop.md#test-suites-of-other-projects)). The command fails if a difference is not in
[compatibility.md](compatibility.md#unusual-requests).
"""


def page(result: Result) -> str:
    """Markdown page of the result."""
    requests, undocumented = result.sent.total(), len(result.undocumented)
    known = sorted(
        (each for each in result.found.values() if each.known is not None),
        key=lambda each: (each.api, each.known.id if each.known else ""),
    )
    lines = [
        HEAD,
        f"{datetime.date.today().isoformat()}: {requests:,} requests (seed {result.seed}) to Odradek at "
        f"{broker_build('odradek').version} and to Apache Kafka {kafka_version()}. "
        f"{result.kinds.total()} of them had a version that is not supported, or an error in their encoding. "
        f"{undocumented or 'No'} undocumented differences, {len(known)} kinds of documented ones.",
        "",
    ]
    if undocumented:
        lines += [table(result.undocumented), ""]
    lines += ["| Documented difference | API | Requests |", "| --- | --- | --: |"]
    for each in known:
        assert each.known is not None
        lines.append(
            f"| {each.known.id}: {each.known.reason} | {_title(each.api)} | {each.count} |"
        )
    lines += ["", "| API | Versions | Requests |", "| --- | --- | --: |"]
    for api, versions in sorted(result.versions.items()):
        lines.append(f"| {_title(api)} | {min(versions)}-{max(versions)} | {result.sent[api]} |")
    names = ", ".join(map(_title, sorted(result.unlisted)))
    lines += [
        "",
        f"ApiVersions of neither broker lists these APIs, to which requests were sent too: {names}.",
    ]
    return "\n".join(lines) + "\n"


def _title(api: str) -> str:
    return next(each.title for each in APIS.values() if each.name == api)


def table(found: Sequence[Difference]) -> str:
    """Markdown table of differences."""
    lines = [
        "| API | Versions | Field of the response | Odradek | Apache Kafka | Requests |",
        "| --- | --- | --- | --- | --- | --: |",
    ]
    for entry in sorted(found, key=lambda entry: (entry.api, -entry.count)):
        versions = ", ".join(map(str, sorted(entry.versions)))
        lines.append(
            f"| {entry.api} | {versions} | `{entry.path or 'response'}` | {entry.odradek} | {entry.kafka} "
            f"| {entry.count} |"
        )
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Print the differences; 1 if any is undocumented."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.request_comparison", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--api", help="send only requests of this API, for example list_offsets")
    parser.add_argument(
        "--examples", action="store_true", help="print a request for each undocumented difference"
    )
    parser.add_argument("--page", type=Path, help="write the result to this file")
    options = parser.parse_args(words)
    result = compare(
        options.requests,
        options.seed,
        options.api,
        examples=options.examples,
        page_file=options.page,
    )
    known = [each for each in result.found.values() if each.known is not None]
    for entry in sorted(known, key=lambda entry: entry.api):
        assert entry.known is not None
        print(f"{entry.count} requests: {entry.api}: {entry.known.id}")
    print(f"{result.sent.total()} requests, {len(result.undocumented)} undocumented differences")
    if result.undocumented:
        print(table(result.undocumented))
    return 1 if result.undocumented else 0


if __name__ == "__main__":
    raise SystemExit(main())
