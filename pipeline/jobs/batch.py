"""A batch of an export, by which tables of every format know what they have already."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.pipeline.brokers import TopicPartition
from odradek.seams.values import value_class


@value_class
class Batch:
    """The `number`th of the `export` that is so called in its checkpoint; `offsets` are those that it is
    about, from the first on, before the second."""

    export: str
    number: int
    offsets: Mapping[TopicPartition, tuple[int, int]]
