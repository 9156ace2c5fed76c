"""Value formats of an export: decodes values to columns, or gives the reason why a value cannot be decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from odradek.pipeline.errors import BadOption
from odradek.pipeline.jobs.decode import DECODED, ERROR, Decoding, decoded
from odradek.pipeline.jobs.export_tables import OF_BATCH
from odradek.seams.entropy import RealEntropy
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

NO_JSON = "the value is not a JSON object of the schema, or has data after the object"
KINDS = ("binary", "string", "json", "registry")


@value_class
class ExportValues:
    """Format of values, one of KINDS; for `json` with the Spark DDL of the columns, for `registry` with the
    registry.
    """

    kind: str = "binary"
    schema: str | None = None
    decoding: Decoding | None = None

    def check(self) -> None:
        """Check the settings, except the DDL, which requires a session; this uses the registry. Raises BadOption,
        and the registry's errors.
        """
        if self.kind not in KINDS:
            raise BadOption(f"the value format is {', '.join(KINDS)}, not {self.kind}")
        if (self.kind == "json") != (self.schema is not None):
            raise BadOption(
                "--schema is required with --value json and not allowed otherwise (--value"
                " json --schema 'a int')"
            )
        if (self.kind == "registry") != (self.decoding is not None):
            raise BadOption(
                "--registry is required with --value registry and not allowed otherwise"
                " (--value registry --registry URL)"
            )
        if self.decoding is not None:
            self.decoding.decoder()

    def check_schema(self) -> None:
        """Check the DDL; requires a Spark session. Raises BadOption."""
        if self.schema is not None:
            _columns(self.schema)

    def of(self, frame: DataFrame) -> DataFrame:
        """Add `error`, which is null for valid values, and `decoded`, a struct, if values have columns."""
        from pyspark.sql import functions as f

        if self.decoding is not None:
            return decoded(frame, self.decoding)
        if self.schema is not None:
            return _with_json(frame, self.schema)
        if self.kind == "string":
            frame = frame.withColumn("value", f.col("value").cast("string"))
        return frame.withColumn(ERROR, f.lit(None).cast("string"))


def _columns(schema: str) -> StructType:
    """Parse Spark's DDL. Raises BadOption."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType, StructType

    try:
        found: DataType | None = DataType.fromDDL(schema)
    except PySparkException:
        found = None
    if not isinstance(found, StructType):
        raise BadOption(f"a schema is a list of columns and types, such as 'a int', not {schema!r}")
    return found


def columns_of_good(frame: DataFrame) -> DataFrame:
    """Replace the value of decoded records by its columns, which may have the names of the removed ones. Raises
    BadOption if a column of the table has the same name.
    """
    if DECODED not in frame.columns:
        return frame.drop(ERROR)
    kind = cast("StructType", frame.schema[DECODED].dataType)
    kept = [name for name in frame.columns if name not in ("value", ERROR, DECODED)]
    taken = {name.lower() for name in (*kept, "date", "hour", *OF_BATCH)}
    if twice := [name for name in kind.fieldNames() if name.lower() in taken]:
        raise BadOption(
            f"values have columns that the table already has: {', '.join(twice)} (omit them"
            " from the schema, or export the values as string or binary)"
        )
    return frame.select(*kept, f"{DECODED}.*")


def _with_json(frame: DataFrame, schema: str) -> DataFrame:
    """Decode values that are exactly one JSON object.

    Spark's parser reads the first JSON text of a value, whatever follows, and the first element of an array. So
    each value is made the first element of an array, followed by an element with a random name: if both are parsed,
    the whole value was. The array's name is also random, so that no value can end the array and begin another one.
    JSON that Spark accepts by default and RFC 8259 does not is an error.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, StringType, StructType

    entropy = RealEntropy()
    name, end = entropy.uuid().hex, entropy.uuid().hex
    columns = _columns(schema)
    element = StructType([*columns.fields]).add(end, StringType())
    kind = StructType().add(name, ArrayType(element)).add("_broken", StringType())
    options: dict[str, Any] = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": "_broken",
        "allowSingleQuotes": "false",
        "allowNonNumericNumbers": "false",
    }
    text = f.concat(
        f.lit(f'{{"{name}":['), f.col("value").cast("string"), f.lit(f',{{"{end}":""}}]}}')
    )
    frame = frame.withColumn("parsed", f.from_json(text, kind, options))
    both, broken = f.col(f"parsed.{name}"), f.col("parsed._broken")
    first, second = f.get(both, 0), f.get(both, 1)
    is_one = first.isNotNull() & second[end].isNotNull() & (f.size(both) == 2) & broken.isNull()
    is_dead = f.col("value").isNotNull() & ~f.coalesce(is_one, f.lit(False))
    found = f.struct(*[first[each].alias(each) for each in columns.fieldNames()])
    error = f.when(is_dead, f.lit(NO_JSON))
    return frame.withColumn(ERROR, error).withColumn(DECODED, found).drop("parsed")
