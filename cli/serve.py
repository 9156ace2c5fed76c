"""`odradek serve`: run one broker until it is told to stop."""

from __future__ import annotations

import argparse
import gc
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.cli.errors import CommandFailed, WrongUsage

if TYPE_CHECKING:
    from odradek.broker.node import Node

DEFAULT_LISTEN = "127.0.0.1:9092"
SWITCH_SECONDS = 0.0005
"""How long a thread of the offload may keep the interpreter from the loop, which waits to serve."""
DEFAULT_LOG_DIRS = "odradek-data"

STALL_SECONDS_MAX = 60.0
"""A loop that stands still for so long waits for a write that hangs: the process ends."""

TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
CLOSE_SECONDS_MAX = 60.0

HELP = "run a broker"
DESCRIPTION = """\
Run one broker until SIGTERM, SIGINT (Ctrl-C) or SIGHUP, which close it cleanly.

Without --config it is one node for tests: node 1, the internal topics with one replica, no initial
delay for group rebalances, and larger socket buffers; everything else is as Apache
Kafka has it. With --config the file is a server.properties, read as it is; flags and --set win over
it.
"""
EPILOG = """\
examples:
  odradek serve
  odradek serve --listen 127.0.0.1:0 --port-file port --log-dirs /tmp/data --topic orders:6
  odradek serve --config server.properties --set num.partitions=3
  odradek serve --tiered /tmp/tier --topic history
  odradek configs alter topic history --set remote.storage.enable=true

exit status: 0 after a clean shutdown, 1 if it could not start or had to stop, 2 for bad usage or
a bad config
"""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "serve",
        help=HELP,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help=f"where to listen; port 0 picks a free one (default: {DEFAULT_LISTEN})",
    )
    parser.add_argument(
        "--log-dirs",
        metavar="DIR[,DIR…]",
        help=f"where the data is kept (default: ./{DEFAULT_LOG_DIRS})",
    )
    parser.add_argument(
        "--tiered",
        metavar="DIR|URL",
        help="tiered storage, in this directory or object store (s3://bucket/prefix, gs://…, az://…);"
        " topics choose it by remote.storage.enable",
    )
    parser.add_argument("--config", metavar="FILE", help="a server.properties file")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a broker config; may be given again",
    )
    parser.add_argument(
        "--topic",
        metavar="NAME[:PARTITIONS]",
        action="append",
        default=[],
        help="a topic to create if it is not there; may be given again",
    )
    parser.add_argument(
        "--port-file",
        metavar="FILE",
        help="gets HOST:PORT in it, whole, once requests are answered",
    )
    parser.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help="where Prometheus reads metrics, at /metrics; port 0 picks a free one (default: nowhere)",
    )
    parser.add_argument(
        "--stop-with-stdin",
        action="store_true",
        help="stop, too, at the end of stdin: when whoever holds its other end is gone",
    )
    parser.add_argument(
        "--log-level",
        default="warning",
        choices=["debug", "info", "warning", "error"],
        help="what is logged to stderr (default: warning)",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Serve; raises WrongUsage for a bad flag or config, CommandFailed for what keeps it from
    starting."""
    gc.disable()  # until it is up: what a start makes stays, there is nothing to collect
    switch_seconds = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        return _run(args)
    finally:
        sys.setswitchinterval(switch_seconds)
        gc.enable()


def _run(args: argparse.Namespace) -> int:
    logging.basicConfig(
        stream=sys.stderr,
        level=args.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    import trio

    from odradek.broker.config.server_config import ServerConfig
    from odradek.broker.config.types import ConfigError
    from odradek.seams import files
    from odradek.seams.memory import keep_freed_memory
    from odradek.seams.real import real_seams

    keep_freed_memory()
    seams = real_seams()
    if args.port_file is not None:  # what the last run wrote says nothing of this one
        seams.files.remove(files.Path(args.port_file), missing_ok=True)
    topics = [_topic(text) for text in args.topic]
    path = None if args.config is None else files.Path(args.config)
    try:
        config = ServerConfig.load(
            seams.files, path, _overrides(args), defaults=_tiered_defaults if args.tiered else None
        )
    except ConfigError as error:
        raise WrongUsage(str(error)) from None
    except OSError as error:
        raise WrongUsage(f"can't read {args.config}: {error.strerror}") from None
    for warning in config.warnings:
        logging.getLogger("odradek.config").warning("%s", warning)
    if topics and not config.is_broker:
        raise WrongUsage("--topic is for brokers: this node is a controller only")
    from odradek.broker.node import Node

    broker = Node(seams, config)
    trio.run(_serve, broker, topics, args.port_file, args.stop_with_stdin)
    return 0


def _overrides(args: argparse.Namespace) -> Mapping[str, str | None]:
    overrides: dict[str, str | None] = {}
    if args.config is None:
        overrides["listeners"] = f"PLAINTEXT://{DEFAULT_LISTEN}"
        overrides["log.dirs"] = _absolute(DEFAULT_LOG_DIRS)
    if args.listen is not None:
        overrides["listeners"] = f"PLAINTEXT://{_address(args.listen, '--listen')}"
        overrides["advertised.listeners"] = None  # the file's is of the listeners it names
    if args.metrics is not None:
        overrides["odradek.metrics.listener"] = _address(args.metrics, "--metrics")
    if args.log_dirs is not None:
        overrides["log.dirs"] = _absolute(args.log_dirs)
    if args.tiered is not None:
        overrides.update(_tiered(args.tiered))
    for text in args.set:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise WrongUsage(f"--set takes KEY=VALUE, not {text!r}")
        overrides[key.strip()] = value
    return overrides


def _tiered(target: str) -> Mapping[str, str]:
    from odradek.broker.config.tiered import absolute_target, storage_settings

    return storage_settings(absolute_target(target))


def _tiered_defaults(given: Mapping[str, str]) -> Mapping[str, str]:
    """What --tiered says beyond its target, where nobody else does."""
    from odradek.broker.config.tiered import metadata_settings

    listener = given.get("inter.broker.listener.name")
    return metadata_settings(
        1, listener or given.get("security.inter.broker.protocol", "PLAINTEXT")
    )


def _absolute(directories: str) -> str:
    """As DescribeLogDirs is to show them, whatever directory the asker stands in."""
    names = [each.strip() for each in directories.split(",")]
    if not all(names):
        raise WrongUsage("--log-dirs takes DIR[,DIR…], none of them empty")
    return ",".join(str(Path(name).absolute()) for name in names)


def _address(text: str, flag: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise WrongUsage(f"{flag} takes HOST:PORT, not {text!r}")
    return f"{host}:{port}"


def _topic(text: str) -> tuple[str, int]:
    name, colon, partitions = text.partition(":")
    if not TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise WrongUsage(f"{name!r} can't be a topic's name: up to 249 of a-z, A-Z, 0-9, . _ -")
    if colon and not (partitions.isdecimal() and int(partitions) > 0):
        raise WrongUsage(f"--topic takes NAME[:PARTITIONS], not {text!r}")
    return name, int(partitions) if colon else -1


async def _serve(
    broker: Node, topics: list[tuple[str, int]], port_file: str | None, stop_with_stdin: bool
) -> None:
    """Run the broker to its end. Raises WrongUsage for a config that makes no sense, CommandFailed for what
    else kept it from starting or stopped it."""
    import trio

    from odradek.broker.lifecycle.errors import WrongConfig
    from odradek.broker.node import CannotStart, Stopped, StorageLost
    from odradek.cli.terminal import ending_signals
    from odradek.protocol.errors import KafkaError
    from odradek.seams.watchdog import watch

    wrong: list[str] = []
    reasons: list[str] = []
    try:
        async with trio.open_nursery() as nursery:
            with trio.open_signal_receiver(*ending_signals()) as signals:
                nursery.start_soon(_stop_on_signal, signals, broker)
                if stop_with_stdin:
                    nursery.start_soon(_stop_with_stdin, broker)
                nursery.start_soon(watch, STALL_SECONDS_MAX)
                await nursery.start(broker.run)
                for name, partitions in topics:
                    await broker.ensure_topic(name, partitions)
                _announce(broker, port_file)
                nursery.start_soon(_settle, broker)
                await broker.stopped.wait()
                nursery.cancel_scope.cancel()
    except* Stopped:
        pass  # as it was told to
    except* WrongConfig as group:
        wrong = [str(error) for error in _leaves(group)]
    except* (CannotStart, StorageLost, KafkaError, OSError) as group:
        reasons = [str(error) for error in _leaves(group)]
    if wrong:
        raise WrongUsage("; ".join(wrong))
    if reasons:
        raise CommandFailed("; ".join(reasons))


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _settle(broker: Node) -> None:
    """Collect garbage from now on, and load what the first clients will need."""
    from odradek.broker.lifecycle.warm_up import warm_up

    gc.freeze()  # what a start has made lives to the end: not worth looking at again
    gc.enable()
    if broker.config.is_broker:
        await warm_up(
            broker.seams.clock, is_catching_up=lambda: broker.services.replicas.is_catching_up
        )
        gc.collect()
        gc.freeze()  # so does what was loaded now


async def _stop_on_signal(signals: object, broker: Node) -> None:
    """Stop at the first signal; a disk that hangs must not keep the process for ever."""
    import trio

    from odradek.seams.watchdog import give_up

    async for _ in signals:  # type: ignore[attr-defined]
        broker.stop()
        break
    await trio.sleep(CLOSE_SECONDS_MAX)
    give_up(f"closing takes more than {CLOSE_SECONDS_MAX:.0f} s")


async def _stop_with_stdin(broker: Node) -> None:
    from odradek.cli.terminal import stdin_chunks

    async for _ in stdin_chunks():
        pass  # what it says is not for us
    broker.stop()


def _announce(broker: Node, port_file: str | None) -> None:
    from odradek.seams import files

    address = (*broker.endpoints, *broker.controller_endpoints)[0].address
    if port_file is not None:
        broker.seams.files.write_new(files.Path(port_file), f"{address}\n".encode())
    directories = ",".join(str(path) for path in broker.config.log_dirs)
    metrics = broker.metrics_address
    told = "" if metrics is None else f", metrics at http://{metrics}/metrics"
    print(
        f"odradek: node {broker.node_id} listens on {address}, data in {directories}{told}",
        flush=True,
    )
