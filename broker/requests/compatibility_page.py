"""docs/compatibility.md, written from the table: `python -m odradek.broker.requests.compatibility_page > …`.

A test compares the page with this; who gives an API a handler writes the page again.
"""

from __future__ import annotations

import sys

from odradek.broker.requests.dispatch import SERVED, SERVED_BY_CONTROLLERS
from odradek.protocol.apis import APIS, compatibility_rows

HEAD = """\
<!-- Written by `python -m odradek.broker.requests.compatibility_page`; a test keeps it so. -->
# Compatibility

The Kafka to be like is 4.3. This page is written from the table of APIs (`protocol/apis.py`) and from
what is served of them (`broker/requests/dispatch.py`); ApiVersions answers the same, on each listener what is spoken
there.

| API | key | Kafka 4.3 | Odradek |
|---|---|---|---|
"""
TAIL = """
Produce is shown to clients from version 0, as Kafka does, because older librdkafka takes a
higher minimum for a broker that it can't talk to (KAFKA-18659); versions 0 to 2 are not served.

## What is not served

ApiVersions does not show these, and clients say that the broker does not support them.

- SaslHandshake and SaslAuthenticate: listeners are PLAINTEXT.
- The APIs of share groups (KIP-932) and of streams groups (KIP-1071): there are no such groups.
- Delegation tokens are for those who are authenticated, which nobody is: their APIs answer, as Kafka's do on
  a PLAINTEXT listener, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
- GetTelemetrySubscriptions and PushTelemetry: Kafka shows them only where a metrics reporter takes what
  clients push; there is none here. Client metrics subscriptions are kept.

## Where this broker differs on purpose

- Client quotas: a fetch that exceeds `consumer_byte_rate` is answered with its records, and its client is
  silenced for as long as Kafka would have it come back with nothing. `request_percentage` is of the
  event loop's time, of which there is 100.
- A client quota's entity of the kind ip is an address; Kafka also takes a host name that resolves.
- ListOffsets: the timestamp -3 (of the largest timestamp) is answered with -1 where DeleteRecords has left nothing;
  Kafka answers an offset that is deleted.
- ListOffsets: the timestamp -4 (earliest local offset) is answered from version 7 on, as KIP-405 has
  it; Kafka answers it from version 8 on.
- A request with a string that is not UTF-8 closes the connection, but for the client's id; Kafka reads
  any with replacement characters.
- A consumer group assigns, and looks for topics that match, without waiting for a time that is still to come:
  its last assignment is dated by the clock of whoever coordinated then. Kafka waits. Members of the classic
  protocol that are alone in one share what others have left; Kafka 4.3 leaves it to nobody.
- CreateAcls with ANY where an ACL has to say what: INVALID_REQUEST for that ACL; Kafka answers
  UNKNOWN_SERVER_ERROR for the whole request.
- Records are not decoded when they are produced: a batch is checked by its header, its CRC and its
  size. Kafka decodes every batch and refuses records that make no sense; here, whoever reads them
  finds out.
- A batch that is sent again and is committed is acknowledged, also while fewer than `min.insync.replicas` are in
  sync. Kafka answers NOT_ENOUGH_REPLICAS; its producer may then write it again in a new epoch.
- What an idempotent producer had on its way behind a batch that was refused for too few replicas, for another leader
  or for its disk, is refused for the same, though that is over by then. Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER,
  upon which librdkafka begins a new epoch and writes again what it has no answer for.
- Where DeleteRecords, or a leader's log start, leaves nothing of the active segment, its bytes leave the
  disk too, with the next round of retention. Kafka keeps them until the segment is full, or old.
- Compaction goes no further than the log's recovery point, checks the CRC of every batch it reads, and
  keeps a rewritten batch's base timestamp, where Kafka takes its first record's. What is left of a log
  is the same, record by record.
- `log.flush.interval.ms` below 0 is refused while a broker runs, too, as it is at start. Kafka then takes it, and
  answers UNKNOWN_SERVER_ERROR to whoever describes a topic.
- Configs that have no effect yet are accepted, stored and reported; [configuration.md](configuration.md)
  marks them.
- An unexpected error in a handler closes the connection, where Kafka answers UNKNOWN_SERVER_ERROR.
"""


def page() -> str:
    """The whole page."""
    served = [APIS[key] for key in (*SERVED, *SERVED_BY_CONTROLLERS)]
    rows = "".join(
        f"| {name} | {key} | {theirs} | {ours or 'no'} |\n"
        for name, key, theirs, ours in compatibility_rows(served)
    )
    return HEAD + rows + TAIL


if __name__ == "__main__":
    sys.stdout.write(page())
