"""`odradek storage format`: format a node from its config and the command line."""

from __future__ import annotations

import argparse

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.controller.voter_argument import InvalidVoter, parse_voters
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.output import print_now
from odradek.cli.scram_argument import WrongCredential, scram_record
from odradek.cli.storage_info import every_directory, load_config
from odradek.replication.controller.features import METADATA_VERSION
from odradek.replication.controller.release_versions import (
    SCRAM_SUPPORT,
    initial_levels,
    parse_level,
)
from odradek.replication.raft.formatting import CannotFormat, NodeFormat, format_node
from odradek.replication.raft.voters import Voter, VoterEndpoint
from odradek.seams.entropy import Entropy
from odradek.seams.real import real_seams

VOTERS = "controller.quorum.voters"


def format_storage(args: argparse.Namespace) -> int:
    """Format the log directories of a node.

    Raises WrongUsage for options that do not fit the config, CommandFailed and UnknownReleaseVersion.
    """
    seams = real_seams()
    config = load_config(seams.files, args.config)
    wanted = node_format(args, config, seams.entropy)
    try:
        format_node(
            seams.files, seams.entropy, wanted, now_ms=seams.clock.wall_ms(), report=print_now
        )
    except CannotFormat as error:
        raise CommandFailed(str(error)) from None
    return 0


def node_format(args: argparse.Namespace, config: ServerConfig, entropy: Entropy) -> NodeFormat:
    """Combine config and options. Raises WrongUsage, CommandFailed and UnknownReleaseVersion."""
    if config.standalone:
        raise WrongUsage(
            f"{args.config} has no process.roles: this node formats its log directories at its first start"
        )
    voters = _voters(args, config, entropy)
    levels = initial_levels(
        args.release_version,
        dict(parse_level(text) for text in args.features),
        is_dynamic=not config.quorum_voters,
    )
    if args.add_scram and levels[METADATA_VERSION] < SCRAM_SUPPORT:
        raise CommandFailed("SCRAM is only supported in metadata.version 3.5-IV2 or later.")
    try:
        credentials = [scram_record(text, entropy) for text in args.add_scram]
    except WrongCredential as error:
        raise WrongUsage(str(error)) from None
    return NodeFormat(
        node_id=config.node_id,
        cluster_id=args.cluster_id,
        directories=tuple(every_directory(config)),
        metadata=config.metadata_log_dir,
        levels=levels,
        records=credentials,
        voters=voters,
        ignore_formatted=args.ignore_formatted,
    )


def _voters(args: argparse.Namespace, config: ServerConfig, entropy: Entropy) -> tuple[Voter, ...]:
    """Initial voters of a dynamic quorum; empty if the quorum is static or they are not given."""
    listener = config.get_list("controller.listener.names")[0].upper()
    if config.quorum_voters:
        if args.initial_controllers is not None or args.standalone:
            raise WrongUsage(
                f"You cannot specify {VOTERS} and format the node with --initial-controllers or "
                "--standalone. For a dynamic quorum, remove it from the config and give "
                "controller.quorum.bootstrap.servers instead."
            )
        return ()
    if args.initial_controllers is not None:
        try:
            return parse_voters(args.initial_controllers, listener)
        except InvalidVoter as error:
            raise WrongUsage(f"--initial-controllers: {error}") from None
    is_controller = "controller" in config.process_roles
    if args.standalone:
        if not is_controller:
            raise WrongUsage("You can only use --standalone on a controller.")
        return (_standalone_voter(config, entropy),)
    if is_controller and not args.no_initial_controllers:
        raise WrongUsage(
            f"Because {VOTERS} is not set on this controller, you must specify one of the following: "
            "--standalone, --initial-controllers, or --no-initial-controllers."
        )
    return ()


def _standalone_voter(config: ServerConfig, entropy: Entropy) -> Voter:
    endpoint = config.advertised_controller_listeners[0]
    return Voter(
        config.node_id,
        entropy.uuid(),
        (VoterEndpoint(endpoint.name, endpoint.host or "localhost", endpoint.port),),
    )
