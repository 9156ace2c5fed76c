"""Computes what diskless topics cost at a scale that no test cluster has: commits, objects, requests and metadata.

    python -m odradek.bench.diskless_scale [--files N] [--seed N]

The assignment of partitions to coordinators and of produce gateways, the owners of files, the records of
`__diskless_metadata` and the plans of ranged GETs are those of the broker; the clients, the batches and the time are
simulated. The output is docs/diskless-scale.md.

Model. Each broker rotates its WAL file after the commit interval or at the size limit. Batches have one size, and arrive at
random for all partitions with the same probability. A client produces to the gateway that Metadata reports for its
rack; racks have equally many clients. One consumer group reads everything once, at the end of the log, through
the gateways of its members' racks. A read is free if the broker has written the object itself, because the object is in its
cache.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from uuid import UUID

from odradek.broker.diskless.client_view import choose_leaders
from odradek.broker.diskless.file_workers import WORK_INTERVAL_SECONDS
from odradek.protocol.records.records import Record, build_batch
from odradek.protocol.schemas.diskless_apis import DisklessFindBatchesBatchInfo
from odradek.protocol.schemas.diskless_records import (
    DisklessCommittedBatch,
    DisklessCommittedPartition,
    DisklessCommittedTopic,
    DisklessFileCommittedRecord,
    DisklessFileOwnershipRecord,
    DisklessFileRemovedRecord,
    DisklessRecordsDeletedRecord,
)
from odradek.protocol.schemas.serde import encode_diskless_record
from odradek.replication.controller.diskless_topics import diskless_partitions
from odradek.replication.controller.image import TopicImage
from odradek.replication.diskless.file_ownership import permuted_owners
from odradek.replication.diskless.produce_gateways import (
    ProduceGateways,
    assign_gateways,
    gateways_per_rack,
    network_commits,
)
from odradek.seams.entropy import SeededEntropy
from odradek.storage.diskless.batch_reader import plan_gets
from odradek.storage.diskless.object_key import object_key
from odradek.storage.diskless.wal_file import WRITE_AHEAD_MULTI_SEGMENT

BROKERS, COORDINATORS, RACKS, TOPICS, PARTITIONS = 108, 12, 3, 100, 100_000
BYTES_PER_SECOND = 1_000_000_000
COMMIT_INTERVAL_SECONDS = 0.25
FILE_BYTES_MAX = 8 << 20
BATCH_SIZES = (16 << 10, 64 << 10, 256 << 10)
MEMBERS = 300
REPLICAS = 3
DAY_SECONDS = 86_400
RETENTION_CHECKS = 288
SCENARIOS = ((3, "3"), (6, "6"), (12, "12"), (24, "2"), (36, "1"), (108, "1"))
"""Brokers of the KIP's scenarios, and its bounds of network commits per file."""
NOW_MS = 1_767_225_600_000

PRICES_AS_OF = "2025"
PUT_LIST_DOLLARS = 0.005 / 1000
GET_DOLLARS = 0.0004 / 1000
STORAGE_DOLLARS_PER_GB_MONTH = 0.023
ZONE_DOLLARS_PER_GB = 0.02
"""Between availability zones: 0.01 for each direction."""


@dataclass(frozen=True)
class Cluster:
    """Brokers striped over the racks, coordinators striped over the brokers, and topics."""

    racks: Mapping[int, str | None]
    leaders: Mapping[int, int]
    gateways: ProduceGateways
    topics: Sequence[TopicImage]
    leader_of: Mapping[str, Sequence[Mapping[int, int]]]
    """The broker that Metadata reports for each partition, by the client's rack and the topic's position."""
    partitions_of: Mapping[int, Sequence[tuple[int, int]]]
    """Topic position and partition index of what clients produce to a broker."""


def new_cluster(brokers: int, source: random.Random, *, partitions: int = PARTITIONS) -> Cluster:
    racks: dict[int, str | None] = {each: f"rack-{each % RACKS}" for each in range(brokers)}
    leaders = {each: each % brokers for each in range(COORDINATORS)}
    gateways = assign_gateways(racks, leaders)
    entropy = SeededEntropy(source)
    topics = []
    for number in range(TOPICS):
        images = diskless_partitions(partitions // TOPICS, COORDINATORS, entropy)
        topics.append(TopicImage(f"topic-{number}", entropy.uuid(), dict(enumerate(images))))
    leader_of = {
        rack: [choose_leaders(topic, gateways, rack, racks) for topic in topics]
        for rack in sorted({each for each in racks.values() if each is not None})
    }
    partitions_of: dict[int, list[tuple[int, int]]] = {each: [] for each in racks}
    for of_topics in leader_of.values():
        for position, of_partitions in enumerate(of_topics):
            for index, broker in of_partitions.items():
                partitions_of[broker].append((position, index))
    return Cluster(racks, leaders, gateways, topics, leader_of, partitions_of)


@dataclass(frozen=True)
class PlacedBatch:
    topic: int
    index: int
    coordinator: int
    byte_offset: int


def new_file(
    cluster: Cluster,
    partitions: Sequence[tuple[int, int]],
    batches: int,
    batch_bytes: int,
    source: random.Random,
) -> list[PlacedBatch]:
    """The batches of one WAL file, sorted by topic id and partition."""
    drawn = [source.choice(partitions) for _ in range(batches)]
    drawn.sort(key=lambda each: (cluster.topics[each[0]].id.bytes, each[1]))
    return [
        PlacedBatch(
            topic,
            index,
            cluster.topics[topic].partitions[index].diskless_coordinator,
            position * batch_bytes,
        )
        for position, (topic, index) in enumerate(drawn)
    ]


def commits_of(cluster: Cluster, broker: int, owners: Iterable[int]) -> int:
    """Requests over the network that commit a file."""
    return len({cluster.leaders[each] for each in owners} - {broker})


# The KIP's scenarios


@dataclass(frozen=True)
class ScenarioRow:
    brokers: int
    per_rack: int
    per_broker: tuple[int, int]
    kip_bound: str
    bound: int
    mean_commits: float
    largest_commits: int
    mean_anywhere: float
    largest_anywhere: int


def run_scenario(brokers: int, kip_bound: str, files: int, source: random.Random) -> ScenarioRow:
    cluster = new_cluster(brokers, source, partitions=12_000)
    loads = [len(cluster.gateways.coordinators_of(each)) for each in cluster.racks]
    everything = [each for found in cluster.partitions_of.values() for each in found]
    with_gateways: list[int] = []
    anywhere: list[int] = []
    for number in range(files):
        broker = number % brokers
        for partitions, commits in (
            (cluster.partitions_of[broker], with_gateways),
            (everything, anywhere),
        ):
            placed = new_file(cluster, partitions, 64, 16 << 10, source)
            commits.append(commits_of(cluster, broker, {each.coordinator for each in placed}))
    return ScenarioRow(
        brokers,
        gateways_per_rack(brokers, COORDINATORS, RACKS),
        (min(loads), max(loads)),
        kip_bound,
        max(network_commits(cluster.gateways, cluster.leaders, each) for each in cluster.racks),
        sum(with_gateways) / files,
        max(with_gateways),
        sum(anywhere) / files,
        max(anywhere),
    )


# A day at full rate


@dataclass
class DayCosts:
    """Numbers of one day, by size of the batches."""

    batch_bytes: int
    objects: float = 0.0
    object_bytes: float = 0.0
    commits: float = 0.0
    owners: float = 0.0
    gets_coalesced: float = 0.0
    gets_of_members: float = 0.0
    gets_whole: float = 0.0
    metadata_bytes: dict[str, float] = field(default_factory=dict)

    @property
    def batches_per_coordinator_second(self) -> float:
        return BYTES_PER_SECOND / self.batch_bytes / COORDINATORS

    @property
    def put_dollars(self) -> float:
        return self.objects * PUT_LIST_DOLLARS

    @property
    def storage_dollars(self) -> float:
        """For each day of retention."""
        return BYTES_PER_SECOND * DAY_SECONDS / 1e9 * STORAGE_DOLLARS_PER_GB_MONTH / 30


def run_day(
    cluster: Cluster, batch_bytes: int, files: int, entropy: SeededEntropy, source: random.Random
) -> DayCosts:
    """Extrapolate from a sample of files to a day."""
    broker_bytes = BYTES_PER_SECOND / len(cluster.racks)
    file_bytes = min(broker_bytes * COMMIT_INTERVAL_SECONDS, FILE_BYTES_MAX)
    batches = max(1, round(file_bytes / batch_bytes))
    costs = DayCosts(batch_bytes)
    costs.object_bytes = batches * batch_bytes
    costs.objects = BYTES_PER_SECOND * DAY_SECONDS / costs.object_bytes
    per_file = costs.objects / files
    member_of = [source.randrange(MEMBERS) for _ in range(MEMBERS * 64)]
    for number in range(files):
        broker = number % len(cluster.racks)
        placed = new_file(cluster, cluster.partitions_of[broker], batches, batch_bytes, source)
        owners = permuted_owners({each.coordinator for each in placed}, entropy)
        costs.commits += commits_of(cluster, broker, owners) * per_file
        costs.owners += len(owners) / files
        key = object_key(NOW_MS + number, broker, entropy.uuid())
        for name, size in metadata_of(cluster, key, broker, owners, placed, batch_bytes):
            costs.metadata_bytes[name] = costs.metadata_bytes.get(name, 0.0) + size * per_file
        of_members, coalesced, whole = gets_of(cluster, key, broker, placed, batch_bytes, member_of)
        costs.gets_of_members += of_members * per_file
        costs.gets_coalesced += coalesced * per_file
        costs.gets_whole += whole * per_file
    deletions = PARTITIONS * RETENTION_CHECKS
    deletion = DisklessRecordsDeletedRecord(
        topic_id=UUID(int=1), partition_index=1, new_log_start_offset=1 << 30
    )
    costs.metadata_bytes["retention"] = deletions * stored_bytes([deletion] * 500) / 500
    return costs


def stored_bytes(records: Sequence[object]) -> int:
    """Bytes of an operation in `__diskless_metadata`."""
    values = [encode_diskless_record(each) for each in records]
    return len(build_batch([Record(-1, NOW_MS, None, each) for each in values]))


def metadata_of(
    cluster: Cluster,
    key: str,
    broker: int,
    owners: Sequence[int],
    placed: Sequence[PlacedBatch],
    batch_bytes: int,
) -> list[tuple[str, int]]:
    """Bytes that all coordinators write for a file during its life."""
    sizes = []
    for owner in owners:
        topics: dict[int, dict[int, list[DisklessCommittedBatch]]] = {}
        for each in placed:
            if each.coordinator == owner:
                committed = topics.setdefault(each.topic, {}).setdefault(each.index, [])
                committed.append(committed_batch(each, batch_bytes))
        record = DisklessFileCommittedRecord(
            object_key=key,
            object_format=WRITE_AHEAD_MULTI_SEGMENT,
            file_size=len(placed) * batch_bytes,
            uploader_broker_id=broker,
            owner_ids=tuple(owners),
            topics=tuple(
                DisklessCommittedTopic(
                    topic_id=cluster.topics[topic].id,
                    partitions=tuple(
                        DisklessCommittedPartition(partition_index=index, batches=tuple(committed))
                        for index, committed in partitions.items()
                    ),
                )
                for topic, partitions in topics.items()
            ),
        )
        sizes.append(("commits of files", stored_bytes([record])))
    ownership = DisklessFileOwnershipRecord(
        object_key=key,
        object_format=WRITE_AHEAD_MULTI_SEGMENT,
        file_size=len(placed) * batch_bytes,
        owner_ids=tuple(owners),
    )
    removal = stored_bytes([DisklessFileRemovedRecord(object_key=key)])
    sizes.append(("hand-over and removal of files", len(owners) * removal))
    sizes.append(("hand-over and removal of files", (len(owners) - 1) * stored_bytes([ownership])))
    return sizes


def committed_batch(placed: PlacedBatch, batch_bytes: int) -> DisklessCommittedBatch:
    return DisklessCommittedBatch(
        magic=2,
        byte_offset=placed.byte_offset,
        byte_size=batch_bytes,
        assigned_base_offset=1 << 30,
        assigned_last_offset=(1 << 30) + 99,
        log_append_timestamp=NOW_MS,
        batch_max_timestamp=NOW_MS,
        timestamp_type=0,
        producer_id=1000,
        producer_epoch=0,
        base_sequence=1 << 20,
        last_sequence=(1 << 20) + 99,
    )


def gets_of(
    cluster: Cluster,
    key: str,
    broker: int,
    placed: Sequence[PlacedBatch],
    batch_bytes: int,
    member_of: Sequence[int],
) -> tuple[int, int, int]:
    """GETs to read a file once: for each group member, for each broker if its members fetched together, and if each broker
    read the whole object."""
    racks = sorted(cluster.leader_of)
    by_broker: dict[int, list[DisklessFindBatchesBatchInfo]] = {}
    by_member: dict[int, list[DisklessFindBatchesBatchInfo]] = {}
    for each in placed:
        member = member_of[hash((each.topic, each.index)) % len(member_of)]
        reader = cluster.leader_of[racks[member % len(racks)]][each.topic][each.index]
        if reader != broker:
            found = find_result(key, each.byte_offset, batch_bytes)
            by_broker.setdefault(reader, []).append(found)
            by_member.setdefault(member, []).append(found)
    return (
        sum(len(plan_gets(each)) for each in by_member.values()),
        sum(len(plan_gets(each)) for each in by_broker.values()),
        len(by_broker),
    )


@lru_cache(4096)
def find_result(key: str, byte_offset: int, batch_bytes: int) -> DisklessFindBatchesBatchInfo:
    return DisklessFindBatchesBatchInfo(
        batch_id=0,
        object_key=key,
        magic=2,
        byte_offset=byte_offset,
        byte_size=batch_bytes,
        base_offset=0,
        last_offset=99,
        log_append_timestamp=NOW_MS,
        batch_max_timestamp=NOW_MS,
        timestamp_type=0,
    )


# The page


def scenario_table(rows: Iterable[ScenarioRow]) -> list[str]:
    lines = [
        "| brokers | gateways per coordinator and rack | coordinators per broker | the KIP's bound | bound of the "
        "assignment | commits per file: mean | largest | without gateways: mean | largest |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in rows:
        least, most = each.per_broker
        loads = f"{least}" if least == most else f"{least} or {most}"
        lines.append(
            f"| {each.brokers} | {each.per_rack} | {loads} | {each.kip_bound} | {each.bound} | "
            f"{each.mean_commits:.2f} | {each.largest_commits} | {each.mean_anywhere:.2f} | "
            f"{each.largest_anywhere} |"
        )
    return lines


def day_table(days: Sequence[DayCosts]) -> list[str]:
    data_gb = BYTES_PER_SECOND * DAY_SECONDS / 1e9
    rows: list[tuple[str, list[str]]] = [
        ("objects (PUT)", [f"{each.objects / 1e6:.1f} million" for each in days]),
        ("bytes per object", [f"{each.object_bytes / 1e6:.2f} MB" for each in days]),
        (
            "batches per coordinator and second",
            [f"{each.batches_per_coordinator_second:,.0f}" for each in days],
        ),
        ("coordinators per file", [f"{each.owners:.2f}" for each in days]),
        ("commits over the network", [f"{each.commits / 1e6:.1f} million" for each in days]),
        (
            f"GET, {MEMBERS} members that fetch alone",
            [f"{each.gets_of_members / 1e6:,.0f} million" for each in days],
        ),
        (
            "GET, if all members at a broker fetched together",
            [f"{each.gets_coalesced / 1e6:,.0f} million" for each in days],
        ),
        (
            "GET, if brokers read whole objects",
            [f"{each.gets_whole / 1e6:,.0f} million" for each in days],
        ),
        ("LIST (scan for orphans)", ["1" for _ in days]),
        (
            "DELETE (one request of each coordinator for all that is due)",
            [f"{COORDINATORS * DAY_SECONDS / WORK_INTERVAL_SECONDS / 1e6:.2f} million"] * len(days),
        ),
    ]
    for name in days[0].metadata_bytes:
        values = [f"{each.metadata_bytes[name] / 1e9:.1f} GB" for each in days]
        rows.append((f"metadata: {name}", values))
    rows += [
        (
            "metadata in all, of the data",
            [f"{sum(each.metadata_bytes.values()) / data_gb / 1e7:.2f}%" for each in days],
        ),
        ("cost of PUT", [f"${each.put_dollars:,.0f}" for each in days]),
        (
            "cost of GET: alone, together, whole",
            [
                ", ".join(
                    f"${gets * GET_DOLLARS:,.0f}"
                    for gets in (each.gets_of_members, each.gets_coalesced, each.gets_whole)
                )
                for each in days
            ],
        ),
        ("cost of LIST and DELETE", ["$0" for _ in days]),
        (
            "cost of storage per day of retention",
            [f"${each.storage_dollars:,.0f}" for each in days],
        ),
    ]
    lines = [
        "| a day | "
        + " | ".join(f"batches of {each.batch_bytes >> 10} KiB" for each in days)
        + " |",
        "|---" * (len(days) + 1) + "|",
    ]
    return [*lines, *(f"| {name} | {' | '.join(values)} |" for name, values in rows)]


def classic_dollars() -> float:
    """Cost of the transfer between zones of a classic topic with three replicas, per day."""
    zones = RACKS
    produced = fetched = (zones - 1) / zones
    replicated = REPLICAS - 1
    between_zones = BYTES_PER_SECOND * (produced + replicated + fetched)
    return between_zones * DAY_SECONDS / 1e9 * ZONE_DOLLARS_PER_GB


def page(files: int, seed: int) -> str:
    source = random.Random(seed)
    scenarios = [run_scenario(brokers, bound, files, source) for brokers, bound in SCENARIOS]
    cluster = new_cluster(BROKERS, source)
    entropy = SeededEntropy(source)
    days = [run_day(cluster, each, files, entropy, source) for each in BATCH_SIZES]
    return TEMPLATE.format(
        seed=seed,
        files=files,
        scenarios="\n".join(scenario_table(scenarios)),
        day="\n".join(day_table(days)),
        prices=PRICES_AS_OF,
        classic=f"{classic_dollars():,.0f}",
        brokers=BROKERS,
        coordinators=COORDINATORS,
        racks=RACKS,
        partitions=f"{PARTITIONS:,}",
        topics=TOPICS,
    )


TEMPLATE = """\
# Diskless topics at scale

`python -m odradek.bench.diskless_scale` wrote this page (seed {seed}, {files} files per row or column). It simulates
the clients. The assignment of partitions and gateways, the owners of files, the records of `__diskless_metadata` and the
plans of ranged GETs are those of the broker. [diskless.md](diskless.md) describes them.

## Commits per file

The six scenarios of KIP-1164: {racks} racks, {coordinators} coordinators. A file has batches of 64 partitions. Commits are
requests over the network: coordinators on one broker share a request, and those on the broker itself need none. The
bound of the assignment is the largest number that a broker needs if clients use the gateways. The last two columns are
for clients that produce to any broker.

{scenarios}

Before saturation (36 brokers here) coordinators on one broker share their gateways, so the bound is one less than the
number of racks. The KIP has the number of brokers or two as bounds there.

## A day at 1 GB/s

{brokers} brokers, {coordinators} coordinators, {racks} racks, {topics} topics with {partitions} partitions in all; the default
commit interval (250 ms) and buffer (8 MiB). One consumer group with 300 members reads everything once, at the end of the log.
A GET is needed if another broker than the reader's wrote the object. The first row of GETs is what the broker does now: it
reads what a fetch asks for, and neighbours with it. The next two rows are for comparison.

{day}

Sizes of metadata are those that one replica of `__diskless_metadata` writes, without compression; it has three replicas. The
log is deleted up to the newest snapshot, so what remains depends on the number of live batches. Retention is checked
every five minutes, and the table assumes that every partition has expired batches each time.

The prices are the list prices of S3 Standard in us-east-1, as published in {prices}: $0.005 per 1,000 PUT and LIST requests,
$0.0004 per 1,000 GET requests, DELETE is free, and $0.023 per GB and month of storage (first 50 TB; more is
cheaper). Traffic between EC2 and S3 in one region is free.

For comparison: a classic topic with three replicas in three zones transfers 3.3 GB/s between zones (two thirds of the
produced and of the fetched records, and two replicas), which costs ${classic} a day at $0.01 per GB and direction.
Follower fetching (KIP-392) saves a fifth of that.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="odradek.bench.diskless_scale", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--files", type=int, default=1080, help="files that each case simulates")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    sys.stdout.write(page(args.files, args.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
