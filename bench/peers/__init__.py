"""Brokers that can be measured (peers), by their names on the command line."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.bench.model import Peer
from odradek.bench.peers.kafka import Kafka
from odradek.bench.peers.kfake import Kfake
from odradek.bench.peers.mock import LibrdkafkaMock
from odradek.bench.peers.nisshi import Nisshi
from odradek.bench.peers.odradek import Odradek

PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Odradek(),
        Kafka(),
        Kfake(on_disk=False),
        Kfake(on_disk=True),
        Nisshi(),
        LibrdkafkaMock(),
    )
}
