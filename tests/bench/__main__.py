"""Runs the benchmark on a MongoDB that is chosen like that of the tests. Status 1: a ratio missed its bound."""

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tests.bench.plans import Plan, measure, measure_drivers, measure_long
from tests.database import RunningDatabase, choose


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--long", action="store_true", help="what takes long: contention, growth of memory")
    kinds.add_argument("--drivers", action="store_true", help="the service on Motor and on PyMongo's client")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    run = measure_long if arguments.long else measure_drivers if arguments.drivers else measure

    console = Console(width=None if sys.stdout.isatty() else 160)
    began = time.monotonic()
    choice = choose(os.environ)
    console.print(f"MongoDB of the benchmark: {choice}")
    database = RunningDatabase(choice, os.environ)
    try:
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            # Drawing is work too, so not more often than need be.
            refresh_per_second=1,
        ) as bar:
            task = bar.add_task("starting", total=None)

            def progress(text: str) -> None:
                if bar.console.is_terminal:
                    bar.update(task, description=text)
                else:
                    bar.console.print(f"{time.monotonic() - began:6.1f} s  {text}", soft_wrap=True)

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                results = runner.run(run(database.uri, Plan(), progress))
    finally:
        database.stop()
    results.show(console)
    console.print(f"It took {time.monotonic() - began:.0f} s.")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results.figures(), indent=2) + "\n")
    return 1 if results.missed() else 0


if __name__ == "__main__":
    sys.exit(main())
