"""Regenerate docs/flights.md: `python -m odradek.bench.flights [--flights N] [PAGE]`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from odradek.bench.flights.events import BROKER, flights, produce
from odradek.bench.flights.notebook import run
from odradek.pipeline import register
from odradek.pipeline.spark_session import open_session
from odradek.testing import Broker

PAGE = Path("docs/flights.md")


def make(page: Path, spark: Any, most: int | None = None) -> None:
    """Run the page with at most `most` flights (None: all), and write it and its plots."""
    with (
        tempfile.TemporaryDirectory(prefix="odradek-flights-") as store,
        Broker(configs=BROKER, tiered=store) as broker,
    ):
        produce(broker, flights(most))
        register(spark)
        spark.conf.set("spark.sql.shuffle.partitions", "4")
        names = {
            "spark": spark,
            "broker": broker,
            "store": store,
            "images": page.parent / "images",
        }
        page.write_text(run(page.read_text(), names))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m odradek.bench.flights", description=__doc__)
    parser.add_argument("page", nargs="?", type=Path, default=PAGE, help=f"({PAGE})")
    parser.add_argument("--flights", type=int, metavar="N", help="use at most N flights")
    args = parser.parse_args()
    with open_session("odradek-flights", "local[2]") as spark:
        make(args.page, spark, args.flights)


if __name__ == "__main__":
    main()
