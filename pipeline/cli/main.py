"""Command line of `odradek pipeline`: one subcommand for each job.

This module is imported to show the help of `odradek`, so Spark is imported only when a job runs.
"""

from __future__ import annotations

import argparse

from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.pipeline.cli import audit, decode, export, replay, stats
from odradek.pipeline.errors import BadOption, PipelineError, translate_spark_error

JOBS = {"export": export, "replay": replay, "audit": audit, "stats": stats, "decode": decode}
"""The jobs' modules by name; each has SUMMARY, add_arguments and run, and imports Spark only when it runs."""
OF_SPARK = ("pyspark", "py4j")
"""Packages whose exceptions are reported in one line, because theirs contain tracebacks of other processes."""
EXTRA = "pip install 'odradek[spark,schemas]'"

EPILOG = """\
examples:
  odradek pipeline export --topic flights --bootstrap 127.0.0.1:9092 --tiered /srv/tier --out /srv/lake
  odradek pipeline export --topic flights --bootstrap 127.0.0.1:9092 --out /srv/lake --by hour \\
      --value json --schema 'carrier string, dep_delay double'
  odradek pipeline replay --topic flights --bootstrap 127.0.0.1:9092 --tiered /srv/tier \\
      --since 2013-02-08T06:00 --until 2013-02-10 --to storm --bytes-per-second 10000000
  odradek pipeline audit --bootstrap 127.0.0.1:9092 --tiered s3://history/kafka --master spark://host:7077
  odradek pipeline stats --topic flights --bootstrap 127.0.0.1:9092 --tiered /srv/tier --by hour
  odradek pipeline decode --topic flights --bootstrap 127.0.0.1:9092 --registry http://127.0.0.1:8081
"""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "pipeline",
        help="Spark jobs on topics",
        description="Spark jobs on topics. Remote log segments are read from the object store.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # not "job": replay has a --job argument
    jobs = parser.add_subparsers(metavar="JOB", dest="chosen_job")
    for name, job in JOBS.items():
        description = f"{job.SUMMARY[0].upper()}{job.SUMMARY[1:]}."
        job.add_arguments(jobs.add_parser(name, help=job.SUMMARY, description=description))
    return parser


def run(args: argparse.Namespace) -> int:
    if args.chosen_job is None:
        raise WrongUsage(f"give the job: {', '.join(JOBS)}; see odradek pipeline --help")
    try:
        return _run(args)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "odradek":
            raise
        raise CommandFailed(f"the pipeline requires {error.name}: {EXTRA}") from None
    except BadOption as error:
        raise WrongUsage(str(error)) from None
    except PipelineError as error:
        raise CommandFailed(str(error)) from None


def _run(args: argparse.Namespace) -> int:
    try:
        code: int = JOBS[args.chosen_job].run(args)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in OF_SPARK:
            raise
        raise translate_spark_error(error) from None
    return code
