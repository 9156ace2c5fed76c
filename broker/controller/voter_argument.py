"""Parses voters of the command line: `id@host:port:directory`, separated by commas (KIP-853)."""

from __future__ import annotations

import re

from odradek.protocol.uuids import uuid_from_text
from odradek.replication.raft.voters import Voter, VoterEndpoint

_VOTER = re.compile(
    r"(?P<id>[+-]?[0-9]+)@(?:\[(?P<bracketed>[^\]]*)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]+)"
    r":(?P<directory>[^:]*)"
)


class InvalidVoter(ValueError):
    """The text is not a valid list of voters."""


def parse_voters(text: str, listener: str) -> tuple[Voter, ...]:
    """Voters sorted by id, with `listener` as listener name. Raises InvalidVoter."""
    voters: dict[int, Voter] = {}
    for entry in filter(None, text.strip().split(",")):
        voter = parse_voter(entry, listener)
        if voter.id in voters:
            raise InvalidVoter(f"Node id {voter.id} was specified more than once.")
        voters[voter.id] = voter
    if not voters:
        raise InvalidVoter("No voters given.")
    return tuple(voters[voter_id] for voter_id in sorted(voters))


def parse_voter(text: str, listener: str) -> Voter:
    """Parse one voter. Raises InvalidVoter."""
    match = _VOTER.fullmatch(text.strip())
    if match is None:
        raise InvalidVoter(f"a voter is ID@HOST:PORT:DIRECTORY (IPv6 in brackets), not {text!r}")
    number, port = int(match["id"]), int(match["port"])
    if not 0 <= number < 1 << 31:
        raise InvalidVoter(f"Invalid node id {number} in {text!r}")
    if port > 65535:
        raise InvalidVoter(f"Invalid port {port} in {text!r}")
    try:
        directory_id = uuid_from_text(match["directory"])
    except ValueError as error:
        raise InvalidVoter(f"Failed to parse directory ID in {text!r}: {error}") from None
    host = match["bracketed"] if match["host"] is None else match["host"]
    return Voter(number, directory_id, (VoterEndpoint(listener, host, port),))
