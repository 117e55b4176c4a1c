"""What a fenced write costs: next to none, next to a fence by hand, and in large databases.

    python -m benchmarks [--help]

All that is compared runs on one server, in turn and in several rounds; docs/performance.md says how
to read it. The figures go to build/bench.json and, as a table with their goals, to the terminal.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import fields
from pathlib import Path

from benchmarks import handover, measure, setting
from benchmarks.figures import Figure
from benchmarks.measure import Figures
from benchmarks.setting import Sizes

#: What is written to the file, and how good each figure should be.
GOALS: dict[str, tuple[str, float] | None] = {
    "apply_vs_hand_c1": ("≥", 0.85),
    "apply_vs_hand_c8": ("≥", 0.65),
    "call_vs_hand_c1": ("≥", 1.2),
    "call_vs_hand_c8": ("≥", 0.9),
    "call_vs_plain_c8": None,
    "client_vs_sql": None,
    "bulk_guarded_vs_unguarded": ("≤", 1.25),
    "scale_resources": ("≤", 1.2),
    "scale_receipts": ("≤", 1.2),
    "verify_ms": ("≤", 2),
    "handover_vs_etcd_p99": None,
    "handover_vs_zookeeper_p99": None,
}
PARTS = {
    "throughput": measure.throughput,
    "wal": measure.wal,
    "functions": measure.functions,
    "client": measure.client,
    "verification": measure.verification,
    "bulk": measure.bulk,
    "scale": measure.scale,
    "handover": handover.handover,
}


def main() -> None:
    """Measure, write the figures to a file, and print them."""
    options = arguments()
    sizes = Sizes(**{field.name: getattr(options, field.name) for field in fields(Sizes)})
    started = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - started:6.1f} s  {text}\n")

    folder = options.folder or setting.folder_with_room(sizes)
    say(f"starting PostgreSQL in {folder}")
    figures: Figures = {}
    with setting.server(folder, durable=options.durable) as server:
        template = setting.template(server)
        with template.connect() as conn:
            version = setting.one(conn, "show server_version")
        for name in options.parts or PARTS:
            figures |= PARTS[name](template, sizes, say)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    written = {name: figures[name].as_json() for name in GOALS if name in figures}
    options.output.write_text(json.dumps(written, indent=1) + "\n")
    show(figures)
    print(
        f"\nPostgreSQL {version}, {os.cpu_count()} processors, COMMIT"
        f" {'waits' if options.durable else 'does not wait'} for the disk;"
        f" {sizes.rounds} rounds, {time.monotonic() - started:.0f} s in all."
        f" The first table is in {options.output}."
    )


def arguments() -> argparse.Namespace:
    """The command line: what to measure, how much of it, and whether COMMIT waits for the disk."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="What a fenced write costs. Needs 8 GB of disk; 12 minutes on two processors.",
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} [all]")
    parser.add_argument("--durable", action="store_true", help="COMMIT waits for the disk")
    parser.add_argument("--folder", type=Path, help="where the server's data goes [temporary]")
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench.json"), help="[%(default)s]"
    )
    for field in fields(Sizes):
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=int, default=field.default, help=f"[{field.default:,}]")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return options


def show(figures: Figures) -> None:
    """Two tables in Markdown: the figures of the file with their goals, and what is behind them."""
    judged = [
        f"| {name} | {numbers(figures[name])} | {judgement(figures[name], goal)} |"
        for name, goal in GOALS.items()
        if name in figures
    ]
    if judged:
        print("\n| figure | median | min | max | goal | |\n|---|---:|---:|---:|---|---|")
        print("\n".join(judged))
    print("\n| behind them | median | min | max |\n|---|---:|---:|---:|")
    for name, figure in figures.items():
        if name not in GOALS:
            print(f"| {name} | {numbers(figure)} |")


def numbers(figure: Figure) -> str:
    """Three cells of a table."""
    digits = 2 if figure.median < 100 else 0
    return " | ".join(f"{n:,.{digits}f}" for n in (figure.median, figure.min, figure.max))


def judgement(figure: Figure, goal: tuple[str, float] | None) -> str:
    """Two cells: the goal, and whether the median reaches it."""
    if goal is None:
        return "|"
    sign, bound = goal
    reached = figure.median >= bound if sign == "≥" else figure.median <= bound
    return f"{sign} {bound} | {'reached' if reached else 'missed'}"


if __name__ == "__main__":
    main()
