"""Values by the ids of their schemas, as columns of a table: `decoded(frame, Decoding(…))`.

    decoded(events, Decoding("http://registry:8081", subjects=("events-value",))).select("decoded.*")

The driver asks the registry once; tasks get what it said. What they do with it is in `odradek.pipeline.schemas`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.pipeline.errors import BadOption
from odradek.pipeline.schemas.registry import load_schemas
from odradek.pipeline.schemas.values import ValueDecoder
from odradek.seams.values import value_class

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

DECODED, ERROR = "decoded", "error"
"""The columns that are added."""
_MADE = "_made"
"""One that has both, for a while."""


@value_class
class Decoding:
    """`registry` is a URL or a directory. Columns are those of all versions of the subjects, and of the
    schemas with these ids; with `reader`, an id, those of that schema. `messages` are the names of Protobuf
    messages to read, instead of each schema's first."""

    registry: str
    subjects: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    reader: int | None = None
    messages: tuple[str, ...] = ()

    def decoder(self) -> ValueDecoder:
        """Raises BadSchema, and RegistryUnavailable."""
        ids = self.ids if self.reader is None else (*self.ids, self.reader)
        has_subjects = "://" in self.registry and self.subjects  # a directory has none
        wanted = ids if has_subjects or self.ids else ()
        schemas = load_schemas(self.registry, self.subjects, wanted)
        return ValueDecoder(schemas, reader=self.reader, messages=self.messages)


def decoded(
    frame: DataFrame, decoding: Decoding, *, column: str = "value", fail: bool = False
) -> DataFrame:
    """The frame with `decoded`, a struct, and `error`, which says why that is null where there is a value.
    With `fail` the first such value ends the query, by its topic, partition and offset. Raises BadOption where the
    frame has columns of these names, and what `Decoding.decoder` raises."""
    import pyarrow as pa
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf
    from pyspark.sql.pandas.types import from_arrow_schema

    if twice := [name for name in frame.columns if name.lower() in (DECODED, ERROR, _MADE)]:
        raise BadOption(
            f"the frame has columns already that are called {', '.join(twice)}: rename them before"
            " (withColumnRenamed)"
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
