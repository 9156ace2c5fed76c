"""What values are, and which of them are not: columns for the good ones, a reason for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from odradek.pipeline.errors import BadOption
from odradek.pipeline.jobs.decode import DECODED, ERROR, Decoding, decoded
from odradek.pipeline.jobs.tables import OF_BATCH
from odradek.seams.entropy import RealEntropy
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

NO_JSON = "the value is no JSON object of that schema, or there is something behind it"
KINDS = ("binary", "string", "json", "registry")


@value_class
class Values:
    """What values are, one of KINDS; of `json`, with Spark's DDL of the columns, of `registry` with where the
    schemas are."""

    kind: str = "binary"
    schema: str | None = None
    decoding: Decoding | None = None

    def check(self) -> None:
        """But for the schema, which Spark alone can read. Raises BadOption, and what the registry says that is asked."""
        if self.kind not in KINDS:
            raise BadOption(f"values are {', '.join(KINDS)}, not {self.kind}")
        if (self.kind == "json") != (self.schema is not None):
            raise BadOption(
                "a schema goes with values of json, and they with one (--value json --schema 'a int')"
            )
        if (self.kind == "registry") != (self.decoding is not None):
            raise BadOption(
                "a registry goes with values of registry, and they with one (--value registry"
                " --registry URL)"
            )
        if self.decoding is not None:
            self.decoding.decoder()

    def check_schema(self) -> None:
        """There has to be a session. Raises BadOption."""
        if self.schema is not None:
            _columns(self.schema)

    def of(self, frame: DataFrame) -> DataFrame:
        """The frame with `error`, which is null where the value is what it should be; and with `decoded`, a
        struct of columns, where a value is several."""
        from pyspark.sql import functions as f

        if self.decoding is not None:
            return decoded(frame, self.decoding)
        if self.schema is not None:
            return _with_json(frame, self.schema)
        if self.kind == "string":
            frame = frame.withColumn("value", f.col("value").cast("string"))
        return frame.withColumn(ERROR, f.lit(None).cast("string"))


def _columns(schema: str) -> StructType:
    """Raises BadOption."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType, StructType

    try:
        found: DataType | None = DataType.fromDDL(schema)
    except PySparkException:
        found = None
    if not isinstance(found, StructType):
        raise BadOption(f"a schema is columns and their types, such as 'a int', not {schema!r}")
    return found


def columns_of_good(frame: DataFrame) -> DataFrame:
    """Of records that were decoded: their columns in place of the value. They may be called as what makes way for
    them is. Raises BadOption where they are called as another column of the table."""
    if DECODED not in frame.columns:
        return frame.drop(ERROR)
    kind = cast("StructType", frame.schema[DECODED].dataType)
    kept = [name for name in frame.columns if name not in ("value", ERROR, DECODED)]
    taken = {name.lower() for name in (*kept, "date", "hour", *OF_BATCH)}
    if twice := [name for name in kind.fieldNames() if name.lower() in taken]:
        raise BadOption(
            f"values have columns that the table has already: {', '.join(twice)}"
            " (leave them out of the schema, or export the values as string or binary)"
        )
    return frame.select(*kept, f"{DECODED}.*")


def _with_json(frame: DataFrame, schema: str) -> DataFrame:
    """With the columns of values that are one JSON object, and nothing else. Spark's parser reads the first
    JSON of a text, whatever follows, and of an array the first element. So a value is made the first element of
    an array whose second one has a name that no value knows: who finds the two has read all of it. Nor does any
    value know the array's name: who did could end that array, and begin another one that is called so. What Spark
    takes for JSON by default, and RFC 8259 does not, is none."""
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
