"""One of two log directories of a broker process fails in each way that a real one can fail.

In each test, producers to the other directory with acks=all and without retries get no error, and every
acknowledged record is read back once. Partitions in the failed directory return a storage error or have no
leader. The directory is offline in DescribeLogDirs, and the broker's log names it. (Scenarios 22 and 24;
KIP-113's second system test, J-24, for one broker.)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from odradek.protocol.errors import ErrorCode
from tests.support.anomalies import require
from tests.support.broker_process import BrokerFailed
from tests.support.odradek_process import start_odradek
from tests.support.waiting import deadline
from tests.system.jbod import (
    CONFIG,
    PARTITIONS,
    Jbod,
    Load,
    fetch_error,
    log_dirs,
    partitions_in,
    produce_without_retries,
    read_all,
    running,
)
from tests.system.mounts import failing_disk, fill, need, run, small_disk

REFUSALS = {
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._MSG_TIMED_OUT,  # no leader during the whole time
}

Break = Callable[[Jbod], None]


@contextmanager
def replaced_by_a_file(path: Path) -> Iterator[tuple[Path, Break]]:
    def break_it(jbod: Jbod) -> None:
        jbod.bad.rename(path / "away")
        jbod.bad.write_text("a file")

    yield path / "bad", break_it


@contextmanager
def removed(path: Path) -> Iterator[tuple[Path, Break]]:
    yield path / "bad", lambda jbod: run("rm", "-rf", jbod.bad) and None


@contextmanager
def unmounted(path: Path) -> Iterator[tuple[Path, Break]]:
    with small_disk(path / "bad", "64m"):
        yield path / "bad", lambda jbod: run("umount", "-l", jbod.bad) and None


@contextmanager
def read_only(path: Path) -> Iterator[tuple[Path, Break]]:
    with failing_disk(path / "bad", path / "backing") as disk:
        yield path / "bad", lambda jbod: disk.turn_read_only()


@contextmanager
def failing(path: Path) -> Iterator[tuple[Path, Break]]:
    with failing_disk(path / "bad", path / "backing") as disk:
        yield path / "bad", lambda jbod: disk.fail_writes()


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "way",
    [
        replaced_by_a_file,
        unmounted,
        pytest.param(removed, marks=SLOW),
        pytest.param(read_only, marks=SLOW),
    ],
)
def test_failed_directory_without_writes_goes_offline(
    open_path: Path, way: Callable[[Path], AbstractContextManager[tuple[Path, Break]]]
) -> None:
    """The broker detects the failure without a write."""
    with way(open_path) as (bad, break_it), running(open_path, bad) as jbod:
        with Load(jbod.bootstrap, jbod.good_partitions) as load:
            break_it(jbod)
            jbod.wait_until_offline()
            check_it_is_offline(jbod)
        check_the_others(jbod, load)


def check_it_is_offline(jbod: Jbod) -> None:
    for partition in jbod.bad_partitions:
        assert fetch_error(jbod.bootstrap, partition) is ErrorCode.kafka_storage_error
    (error,) = produce_without_retries(jbod.bootstrap, jbod.bad_partitions[0])
    assert error.code() in REFUSALS
    assert f"{jbod.bad} is offline" in jbod.process.log_file.read_text()


def check_the_others(jbod: Jbod, load: Load) -> None:
    assert load.errors == []
    assert jbod.process.process.poll() is None
    found = [row for row in read_all(jbod.bootstrap, jbod.good_partitions) if b"load" in row[1]]
    require(sorted(found) == sorted(load.acknowledged), f"{found}, not {load.acknowledged}")
    assert load.acknowledged


@SLOW
def test_directory_without_permissions_goes_offline(open_path: Path) -> None:
    """After chmod 000 and a restart with permissions, all records are readable again."""
    bad, prefix = open_path / "bad", obeying_permissions()
    with running(open_path, bad, prefix=prefix) as jbod:
        before = sorted(read_all(jbod.bootstrap, range(PARTITIONS)))
        with Load(jbod.bootstrap, jbod.good_partitions) as load:
            bad.chmod(0)
            jbod.wait_until_offline()
            check_it_is_offline(jbod)
        check_the_others(jbod, load)
        jbod.process.stop()  # the good one closes cleanly
        assert (jbod.good / ".kafka_cleanshutdown").exists()

        with start(jbod, prefix=prefix) as again:  # the failed directory is still offline
            assert log_dirs(again.bootstrap)[str(bad)].error_code is ErrorCode.kafka_storage_error
            assert produce_without_retries(again.bootstrap, jbod.good_partitions[0]) == []
            assert fetch_error(again.bootstrap, jbod.bad_partitions[0]) is not ErrorCode.none
            again.process.stop()
        bad.chmod(0o755)
        with start(jbod, prefix=prefix) as healed:
            assert partitions_in(healed.bootstrap, bad) == jbod.bad_partitions
            after = read_all(healed.bootstrap, jbod.bad_partitions)
            assert sorted(after) == [row for row in before if row[0] in jbod.bad_partitions]
            assert produce_without_retries(healed.bootstrap, jbod.bad_partitions[0]) == []


def obeying_permissions() -> list[str]:
    """Command prefix that makes file modes apply to the broker: root without the capability to bypass
    them.
    """
    if os.geteuid() != 0:
        return []
    need("setpriv")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


@contextmanager
def start(jbod: Jbod, **more: Any) -> Iterator[Jbod]:
    """Restart the broker on the same directories."""
    process = start_odradek(
        jbod.process.directory, config=CONFIG, log_dirs=[jbod.good, jbod.bad], **more
    )
    try:
        yield Jbod(process, jbod.good, jbod.bad, jbod.good_partitions, jbod.bad_partitions)
    finally:
        process.kill()


@SLOW
def test_failed_writeback_takes_directory_offline(open_path: Path) -> None:
    """The page cache accepts the data; a sync fails and is not retried."""
    with failing(open_path) as (bad, break_it), running(open_path, bad) as jbod:
        with Load(jbod.bootstrap, jbod.good_partitions) as load:
            break_it(jbod)
            with deadline(40, "the directory to be offline") as check:
                while jbod.log_dirs()[str(bad)].error_code is ErrorCode.none:
                    produce_without_retries(jbod.bootstrap, jbod.bad_partitions[0], 20, 100_000)
                    check()
            check_it_is_offline(jbod)
        check_the_others(jbod, load)


def test_failed_reads_take_directory_offline(open_path: Path) -> None:
    """Reads of data and index pages outside the page cache fail with an error, not with a signal."""
    with failing_disk(open_path / "bad", open_path / "backing") as disk:
        with running(open_path, open_path / "bad", records=600) as jbod:
            jbod.process.stop()
            with start(jbod) as again, Load(again.bootstrap, jbod.good_partitions) as load:
                disk.fail_reads()
                for partition in jbod.bad_partitions:
                    assert fetch_error(again.bootstrap, partition) is ErrorCode.kafka_storage_error
                again.wait_until_offline()
                assert fetch_error(again.bootstrap, jbod.good_partitions[0]) is ErrorCode.none
            assert load.errors == []
            assert load.acknowledged


def test_full_disk_refuses_writes_until_space_is_free(open_path: Path) -> None:
    """If nothing was lost, the directory stays online: existing records are readable, and deleting frees
    space.
    """
    with small_disk(open_path / "bad", "24m"), running(open_path, open_path / "bad") as jbod:
        with Load(jbod.bootstrap, jbod.good_partitions) as load:
            ballast = fill(jbod.bad)
            partition = jbod.bad_partitions[0]
            errors = produce_without_retries(jbod.bootstrap, partition, 30, 10_000)
            assert errors
            assert {error.code() for error in errors} == {KafkaError.KAFKA_STORAGE_ERROR}
            assert jbod.log_dirs()[str(jbod.bad)].error_code is ErrorCode.none
            assert len(read_all(jbod.bootstrap, [partition])) == 20 + 30 - len(errors)
            ballast.unlink()
            assert produce_without_retries(jbod.bootstrap, partition, 30, 10_000) == []
        check_the_others(jbod, load)


FOR_RECOVERY = 64 << 10
"""Free bytes of the full disk: a start writes new index pages for a log that could not be closed."""


@pytest.mark.parametrize("end", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=SLOW)])
def test_start_on_full_disk_serves_existing_records(open_path: Path, end: signal.Signals) -> None:
    with small_disk(open_path / "bad", "24m"), running(open_path, open_path / "bad") as jbod:
        ballast = fill(jbod.bad)
        produce_without_retries(jbod.bootstrap, jbod.bad_partitions[0], 5, 10_000)
        before = sorted(read_all(jbod.bootstrap, range(PARTITIONS)))
        jbod.process.process.send_signal(end)
        jbod.process.process.wait(30)
        ballast = fill(jbod.bad) if not ballast.exists() else ballast
        os.truncate(ballast, ballast.stat().st_size - FOR_RECOVERY)
        with start(jbod) as again:
            assert sorted(read_all(again.bootstrap, range(PARTITIONS))) == before
            ballast.unlink()
            for partition in jbod.bad_partitions:
                assert produce_without_retries(again.bootstrap, partition) == []


def test_loss_of_metadata_directory_stops_broker_with_reason(open_path: Path) -> None:
    with running(open_path, open_path / "bad") as jbod:
        jbod.good.rename(open_path / "away")
        assert jbod.process.process.wait(30) == 1
        log = jbod.process.log()
        assert f"{jbod.good}: " in log
        assert "No such file or directory" in log
        assert not (open_path / "bad" / ".kafka_cleanshutdown").exists()


@SLOW
def test_loss_of_last_directory_stops_broker(open_path: Path) -> None:
    with running(open_path, open_path / "bad") as jbod:
        for directory in (jbod.bad, jbod.good):
            directory.rename(open_path / f"{directory.name} away")
        assert jbod.process.process.wait(30) == 1
        assert "Shutdown broker because " in jbod.process.log()
        with pytest.raises(BrokerFailed):
            start_odradek(
                jbod.process.directory,
                config=CONFIG,
                log_dirs=[open_path / "bad away" / "meta.properties", jbod.good],
            )


def test_unmounted_disk_leaves_partitions_offline(open_path: Path) -> None:
    """Its partitions are offline, and come back with it: no record is lost to an empty log."""
    with running(open_path, open_path / "bad") as jbod:
        before = sorted(read_all(jbod.bootstrap, range(PARTITIONS)))
        jbod.process.stop()
        jbod.bad.rename(open_path / "away")
        jbod.bad.mkdir()  # the mount point
        for _ in range(2):
            with start(jbod) as without:
                for partition in jbod.bad_partitions:
                    code = fetch_error(without.bootstrap, partition)
                    assert code is ErrorCode.kafka_storage_error
                assert produce_without_retries(without.bootstrap, jbod.good_partitions[0]) == []
                before.append((jbod.good_partitions[0], b"0 ".ljust(100, b".")))
                assert not (jbod.bad / f"t-{jbod.bad_partitions[0]}").exists()
                assert not (jbod.bad / "meta.properties").exists()
                without.process.stop()
        run("rm", "-rf", jbod.bad)
        (open_path / "away").rename(jbod.bad)
        with start(jbod) as again:
            assert sorted(read_all(again.bootstrap, range(PARTITIONS))) == sorted(before)
