"""`odradek pipeline`: the arguments of the jobs. Spark is imported when one is run: this module is imported
whenever the help of `odradek` is shown."""

from __future__ import annotations

import argparse
import importlib

from odradek.broker.cli.errors import CommandFailed, WrongUsage
from odradek.pipeline.cli import audit, decode, replay, stats
from odradek.pipeline.errors import BadOption, PipelineError

EXTRA = "pip install 'odradek[spark,schemas]'"

EPILOG = """\
examples:
  odradek pipeline export --topic flights --bootstrap 127.0.0.1:9092 --tiered /srv/tier --out /srv/lake
  odradek pipeline export --topic flights --bootstrap 127.0.0.1:9092 --out /srv/lake --by hour \\
      --value json --schema 'carrier string, dep_delay double'
  odradek pipeline replay --topic flights --bootstrap 127.0.0.1:9092 --tiered /srv/tier \
      --since 2013-02-08T06:00 --until 2013-02-10 --to storm --bytes-per-second 10000000
  odradek pipeline audit --bootstrap 127.0.0.1:9092 --tiered s3://history/kafka --master spark://host:7077
  odradek pipeline stats --topic flights --bootstrap 127.0.0.1:9092 --tiered /srv/tier --by hour
  odradek pipeline decode --topic flights --bootstrap 127.0.0.1:9092 --registry http://127.0.0.1:8081
"""
JOBS = ("export", "replay", "audit", "stats", "decode")


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "pipeline",
        help="topics as tables: jobs on Spark",
        description="Jobs on topics as tables, on Spark; tiered history is read from its store.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    jobs = parser.add_subparsers(metavar="JOB", dest="job")
    line = "a topic to partitioned Parquet, each record exactly once over any number of restarts"
    _export_arguments(
        jobs.add_parser("export", help=line, description=f"{line[0].upper()}{line[1:]}.")
    )
    for name, job in (("replay", replay), ("audit", audit), ("stats", stats), ("decode", decode)):
        line = job.LINE
        job.add_arguments(
            jobs.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
        )
    return parser


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", "-t", required=True, help="what is exported")
    parser.add_argument("--out", required=True, metavar="DIR|URL", help="where to")
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT", help="the brokers")
    parser.add_argument("--tiered", metavar="DIR|URL", help="the store of tiered segments")
    parser.add_argument(
        "--by", default="date", help="directories below a topic's: none, date or hour (date)"
    )
    parser.add_argument("--value", default="binary", help="values are binary, string or json")
    parser.add_argument("--schema", metavar="DDL", help="the columns of json values")
    parser.add_argument(
        "--isolation", default="read_uncommitted", help="read_uncommitted or read_committed"
    )
    parser.add_argument(
        "--offsets-a-batch", type=int, metavar="N", help="so many records are written at once"
    )
    parser.add_argument("--master", default="local[*]", help="of Spark (local[*])")
    parser.add_argument("--json", action="store_true", help="batches as JSON, one a line")


def run(args: argparse.Namespace) -> int:
    if args.job is None:
        raise WrongUsage(f"pipeline what? {', '.join(JOBS)}; see odradek pipeline --help")
    try:
        code: int = importlib.import_module(f"odradek.pipeline.cli.{args.job}").run(args)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "odradek":
            raise
        raise CommandFailed(f"the pipeline needs {error.name}: {EXTRA}") from None
    except BadOption as error:
        raise WrongUsage(str(error)) from None
    except PipelineError as error:
        raise CommandFailed(str(error)) from None
    return code
