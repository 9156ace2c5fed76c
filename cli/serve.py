"""`odradek serve`: run a node until a signal stops it."""

from __future__ import annotations

import argparse
import gc
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.cli.errors import CommandFailed, WrongUsage

if TYPE_CHECKING:
    from odradek.broker.node import Node

DEFAULT_LISTEN = "127.0.0.1:9092"
SWITCH_SECONDS = 0.0005
"""Switch interval of the interpreter: the longest time that an offload thread delays the event loop."""
DEFAULT_LOG_DIRS = "odradek-data"

STALL_SECONDS_MAX = 60.0
"""If the event loop does not run for this time, a disk write hangs, and the process exits."""

TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
CLOSE_SECONDS_MAX = 60.0

HELP = "run a broker, a controller, or both"
DESCRIPTION = """\
Run a node until SIGTERM, SIGINT (Ctrl-C) or SIGHUP, which shut it down cleanly.

Without --config, the node is a cluster of one node for tests: its node id is 1, internal topics have one
replica, the initial rebalance has no delay, and the operating system sizes the socket buffers. All other
configs have Apache Kafka's defaults. The other options and --set override the file of --config.
"""
EPILOG = """\
examples:
  odradek serve
  odradek serve --listen 127.0.0.1:0 --port-file port --log-dirs /tmp/data --topic orders:6
  odradek serve --config server.properties --set num.partitions=3
  odradek serve --tiered /tmp/tier --topic history
  odradek configs alter topic history --set remote.storage.enable=true
  odradek serve --diskless /tmp/objects
  odradek topics create events --config diskless.enable=true

exit status: 0 after a clean shutdown, 1 if the node could not start or had to stop, 2 for invalid options
or configs
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
    _add_node_arguments(parser)
    parser.add_argument("--config", metavar="FILE", help="a server.properties file")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a broker config; can be repeated",
    )
    parser.add_argument(
        "--topic",
        metavar="NAME[:PARTITIONS]",
        action="append",
        default=[],
        help="create this topic if it does not exist; can be repeated",
    )
    _add_process_arguments(parser)
    return parser


def _add_node_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help=f"address of the listener; port 0 selects a free port (default: {DEFAULT_LISTEN})",
    )
    parser.add_argument(
        "--log-dirs",
        metavar="DIR[,DIR…]",
        help=f"log directories (default: ./{DEFAULT_LOG_DIRS})",
    )
    parser.add_argument(
        "--tiered",
        metavar="DIR|URL",
        help="enable tiered storage in this directory or object store (s3://bucket/prefix, gs://…, az://…). Each "
        "tiered topic also needs remote.storage.enable=true",
    )
    parser.add_argument(
        "--diskless",
        metavar="DIR|URL",
        help="enable diskless topics in this directory or object store. Each diskless topic is created with "
        "diskless.enable=true",
    )


def _add_process_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port-file",
        metavar="FILE",
        help="write HOST:PORT to this file when the node accepts clients",
    )
    parser.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help="serve metrics for Prometheus at /metrics; port 0 selects a free port (default: off)",
    )
    parser.add_argument(
        "--stop-with-stdin",
        action="store_true",
        help="also shut down when stdin is closed, for example because the parent process ended",
    )
    parser.add_argument(
        "--log-level",
        default="warning",
        choices=["debug", "info", "warning", "error"],
        help="lowest level of log lines on stderr (default: warning)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the node.

    Raises WrongUsage for an invalid option or configuration, CommandFailed if the node cannot start.
    """
    gc.disable()  # during the start no garbage is created that could be collected
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
    if args.port_file is not None:  # the file may be from an earlier run
        seams.files.remove(files.Path(args.port_file), missing_ok=True)
    topics = [_topic(text) for text in args.topic]
    path = None if args.config is None else files.Path(args.config)
    try:
        config = ServerConfig.load(
            seams.files, path, _overrides(args), defaults=partial(_defaults, args)
        )
    except ConfigError as error:
        raise WrongUsage(str(error)) from None
    except OSError as error:
        raise WrongUsage(f"can't read {args.config}: {error.strerror}") from None
    for warning in config.warnings:
        logging.getLogger("odradek.config").warning("%s", warning)
    if topics and not config.is_broker:
        raise WrongUsage("--topic needs a broker: this node is only a controller")
    from odradek.broker.node import Node

    node = Node(seams, config)
    trio.run(_serve, node, topics, args.port_file, args.stop_with_stdin)
    return 0


def _overrides(args: argparse.Namespace) -> Mapping[str, str | None]:
    overrides: dict[str, str | None] = {}
    if args.config is None:
        overrides["listeners"] = f"PLAINTEXT://{DEFAULT_LISTEN}"
        overrides["log.dirs"] = _absolute(DEFAULT_LOG_DIRS)
    if args.listen is not None:
        overrides["listeners"] = f"PLAINTEXT://{_address(args.listen, '--listen')}"
        overrides["advertised.listeners"] = None  # the file's map is for the listeners of the file
    if args.metrics is not None:
        overrides["odradek.metrics.listener"] = _address(args.metrics, "--metrics")
    if args.log_dirs is not None:
        overrides["log.dirs"] = _absolute(args.log_dirs)
    if args.tiered is not None:
        overrides.update(_tiered(args.tiered))
    if args.diskless is not None:
        overrides.update(_diskless(args.diskless))
    for text in args.set:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise WrongUsage(f"--set takes KEY=VALUE, not {text!r}")
        overrides[key.strip()] = value
    return overrides


def _tiered(target: str) -> Mapping[str, str]:
    from odradek.broker.config.tiered_option import absolute_target, storage_settings

    return storage_settings(absolute_target(target))


def _diskless(target: str) -> Mapping[str, str]:
    from odradek.broker.config.diskless_option import diskless_storage_settings
    from odradek.broker.config.tiered_option import absolute_target

    return diskless_storage_settings(absolute_target(target, "diskless topics"))


def _defaults(args: argparse.Namespace, given: Mapping[str, str]) -> Mapping[str, str]:
    """Configurations that --tiered and --diskless set unless the file or --set does."""
    defaults: dict[str, str] = {}
    if args.tiered is not None:
        defaults.update(_tiered_defaults(given))
    if args.diskless is not None:
        from odradek.broker.config.diskless_option import diskless_metadata_settings

        defaults.update(diskless_metadata_settings(1))
    return defaults


def _tiered_defaults(given: Mapping[str, str]) -> Mapping[str, str]:
    from odradek.broker.config.tiered_option import metadata_settings

    listener = given.get("inter.broker.listener.name")
    return metadata_settings(
        1, listener or given.get("security.inter.broker.protocol", "PLAINTEXT")
    )


def _absolute(directories: str) -> str:
    """Make log directories absolute, because DescribeLogDirs returns them."""
    names = [each.strip() for each in directories.split(",")]
    if not all(names):
        raise WrongUsage("--log-dirs takes DIR[,DIR…] without empty entries")
    return ",".join(str(Path(name).absolute()) for name in names)


def _address(text: str, flag: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise WrongUsage(f"{flag} takes HOST:PORT, not {text!r}")
    return f"{host}:{port}"


def _topic(text: str) -> tuple[str, int]:
    name, colon, partitions = text.partition(":")
    if not TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise WrongUsage(
            f"{name!r} is not a valid topic name: 1 to 249 of the characters a-z, A-Z, 0-9, . _ -"
        )
    if colon and not (partitions.isdecimal() and int(partitions) > 0):
        raise WrongUsage(f"--topic takes NAME[:PARTITIONS], not {text!r}")
    return name, int(partitions) if colon else -1


async def _serve(
    node: Node, topics: list[tuple[str, int]], port_file: str | None, stop_with_stdin: bool
) -> None:
    """Run the node until it stops.

    Raises WrongUsage for an invalid configuration, CommandFailed for any other reason that the node could
    not start or had to stop.
    """
    from odradek.broker.lifecycle.errors import WrongConfig
    from odradek.broker.node import CannotStart, NodeFailed, Stopped
    from odradek.protocol.errors import KafkaError

    wrong: list[str] = []
    reasons: list[str] = []
    try:
        await _run_until_stopped(node, topics, port_file, stop_with_stdin)
    except* Stopped:
        pass  # a requested stop
    except* WrongConfig as group:
        wrong = [str(error) for error in _leaves(group)]
    except* (CannotStart, NodeFailed, KafkaError, OSError) as group:
        reasons = [str(error) for error in _leaves(group)]
    if wrong:
        raise WrongUsage("; ".join(wrong))
    if reasons:
        raise CommandFailed("; ".join(reasons))


async def _run_until_stopped(
    node: Node, topics: list[tuple[str, int]], port_file: str | None, stop_with_stdin: bool
) -> None:
    import trio

    from odradek.cli.terminal import ending_signals
    from odradek.seams.watchdog import watch

    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(*ending_signals()) as signals:
            nursery.start_soon(_stop_on_signal, signals, node)
            if stop_with_stdin:
                nursery.start_soon(_stop_at_end_of_stdin, node)
            nursery.start_soon(watch, STALL_SECONDS_MAX)
            await nursery.start(node.run)
            for name, partitions in topics:
                await node.ensure_topic(name, partitions)
            _announce(node, port_file)
            nursery.start_soon(_enable_gc_and_warm_up, node)
            await node.stopped.wait()
            nursery.cancel_scope.cancel()


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _enable_gc_and_warm_up(node: Node) -> None:
    """Enable garbage collection, and import the modules that the first clients need."""
    from odradek.broker.lifecycle.warm_up import warm_up

    gc.freeze()  # objects of the start live until the end, so exclude them from collection
    gc.enable()
    if node.config.is_broker:
        await warm_up(
            node.seams.clock, is_catching_up=lambda: node.services.replicas.is_catching_up
        )
        gc.collect()
        gc.freeze()  # the imported modules too


async def _stop_on_signal(signals: object, node: Node) -> None:
    """Stop at the first signal. If the shutdown hangs, for example on a disk, end the process."""
    import trio

    from odradek.seams.watchdog import give_up

    async for _ in signals:  # type: ignore[attr-defined]
        node.stop()
        break
    await trio.sleep(CLOSE_SECONDS_MAX)
    give_up(f"the shutdown took more than {CLOSE_SECONDS_MAX:.0f} s")


async def _stop_at_end_of_stdin(node: Node) -> None:
    from odradek.cli.terminal import stdin_chunks

    async for _ in stdin_chunks():
        pass  # the content is ignored
    node.stop()


def _announce(node: Node, port_file: str | None) -> None:
    from odradek.seams import files

    address = (*node.endpoints, *node.controller_endpoints)[0].address
    if port_file is not None:
        node.seams.files.write_new(files.Path(port_file), f"{address}\n".encode())
    directories = ",".join(str(path) for path in node.config.log_dirs)
    metrics = node.metrics_address
    metrics_text = "" if metrics is None else f", metrics at http://{metrics}/metrics"
    print(
        f"odradek: node {node.node_id} listens on {address}, data in {directories}{metrics_text}",
        flush=True,
    )
