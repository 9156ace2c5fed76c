"""Decodes values by the ids of their schemas to columns: `decoded(frame, Decoding(…))`.

    decoded(events, Decoding("http://registry:8081", subjects=("events-value",))).select("decoded.*")

The driver requests the schemas once and sends them to the tasks. The decoders are in `odradek.pipeline.schemas`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.pipeline.errors import BadOption
from odradek.pipeline.schemas.registry import load_schemas
from odradek.pipeline.schemas.value_decoder import ValueDecoder
from odradek.seams.values import value_class

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

DECODED, ERROR = "decoded", "error"
"""Names of the added columns."""
_MADE = "_made"
"""Temporary column with both."""


@value_class
class Decoding:
    """Which schemas are used. `registry` is a URL or a directory. The columns are those of all versions of the
    subjects and of the schemas `ids`, or only those of the schema with id `reader`. `messages` are names of
    Protobuf messages to decode in place of each schema's first.
    """

    registry: str
    subjects: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    reader: int | None = None
    messages: tuple[str, ...] = ()

    def decoder(self) -> ValueDecoder:
        """Load the schemas. Raises BadSchema, RegistryUnavailable."""
        ids = self.ids if self.reader is None else (*self.ids, self.reader)
        has_subjects = "://" in self.registry and self.subjects  # a directory has none
        wanted = ids if has_subjects or self.ids else ()
        schemas = load_schemas(self.registry, self.subjects, wanted)
        return ValueDecoder(schemas, reader=self.reader, messages=self.messages)


def decoded(
    frame: DataFrame, decoding: Decoding, *, column: str = "value", fail: bool = False
) -> DataFrame:
    """Add `decoded`, a struct, and `error`, the reason if a value cannot be decoded.

    With `fail`, the first such value ends the query with its topic, partition and offset. Raises BadOption if the
    frame has columns of these names, and the errors of `Decoding.decoder`.
    """
    import pyarrow as pa
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf
    from pyspark.sql.pandas.types import from_arrow_schema

    if twice := [name for name in frame.columns if name.lower() in (DECODED, ERROR, _MADE)]:
        raise BadOption(
            f"the frame already has columns with the names {', '.join(twice)}: rename them"
            " first (withColumnRenamed)"
        )
    decoder = decoding.decoder()
    made = pa.schema([(DECODED, decoder.kind), (ERROR, pa.string())])

    def decode(values: pa.Array) -> pa.Array:
        return pa.StructArray.from_arrays(decoder.decode(values), names=[DECODED, ERROR])

    made_type = from_arrow_schema(made, prefer_timestamp_ntz=True)
    as_columns = arrow_udf(decode, made_type, ArrowUDFType.SCALAR)
    frame = frame.withColumn(_MADE, as_columns(f.col(column)))
    error, found = f.col(f"{_MADE}.{ERROR}"), f.col(f"{_MADE}.{DECODED}")
    if fail:
        where = f.format_string("%s-%d, offset %d: %s", "topic", "partition", "offset", error)
        found = f.when(error.isNull(), found).otherwise(f.raise_error(where))
    return frame.withColumns({DECODED: found, ERROR: error}).drop(_MADE)
