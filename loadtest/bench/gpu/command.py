"""`loadtest bench-gpu`: measure on this GPU what was designed without one, and say what the figures decide."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

from rich.table import Column, Table

from loadtest.bench.figures import RESULTS, Figure, append, table
from loadtest.bench.gpu import front, stack
from loadtest.bench.gpu.engines import DIRECT, GRAPHED, NO_GRAPHS, PREFIX, STEPS, V1, V2, Engine, measured
from loadtest.bench.gpu.models import MINILM, model_folder
from loadtest.bench.gpu.verdicts import verdicts
from loadtest.bench.setting import Plan
from loadtest.options import LOST, fail
from loadtest.screen import ERRORS, OUTPUT
from loadtest.stack.addresses import DEFAULT_FOLDER, only_one
from loadtest.stack.errors import StackError
from loadtest.stack.service import gpu_present

Matrix = Sequence[tuple[str, Sequence[str]]]
"""Models, and the sides of each."""


@dataclass(frozen=True, slots=True)
class _Scope:
    """Engines before the front and the stack, and after them; counts of servers, aggregators, texts a call."""

    first: Matrix
    last: Matrix
    servers: Sequence[int]
    aggregators: Sequence[int]
    batches: Sequence[int]


_WHOLE = _Scope(
    ((MINILM, (DIRECT, GRAPHED)), ("large", (DIRECT, GRAPHED))),  # whether graphs pay is what most depends on
    (
        (MINILM, (V2, NO_GRAPHS, V1)),
        ("large", (V2, NO_GRAPHS)),
        ("decoder-0.6b", (V2, NO_GRAPHS)),
        ("base", (V2,)),
    ),
    (1, 2, 4),
    (1, 2, 4, 8),
    (64, 256),
)
_DRY_SCOPE = _Scope((("tiny", (V2, DIRECT, GRAPHED)),), (), (1, 2), (1, 2), (16,))
_PARTS = ("graphs", "front", "stack", "core")
"""In their order: the engines that decide on graphs, the front, Kafka and the servers of others, all other engines."""
_ENGINE_S = 45.0
"""Left of the time, without which no further engine is started."""
_DRY = {
    "ENGINE__KIND": "synthetic",
    "SYNTHETIC__PER_TOKEN_S": "0.0001",  # as slow as a CPU, so that a short run can be looked at
    "PROFILE__ENABLED": "false",
}
_DRY_QUERIES = 600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--dry", action="store_true", help="without a GPU, with tiny models: its figures mean nothing")
    parser.add_argument(
        "--parts", nargs="+", choices=_PARTS, default=_PARTS, metavar="PART", help=f"of {', '.join(_PARTS)} (all)"
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="what is not begun by then is left out (%(default)s)"
    )
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="where figures are appended (loadtest/results.csv)"
    )
    parser.add_argument(
        "--data-dir", type=Path, default=DEFAULT_FOLDER / "bench-gpu", metavar="DIR", help="logs, models (%(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, 1 if an engine could not be measured, 2 if a part could not; the others' figures are kept."""
    if not options.dry and not gpu_present():
        return fail(options.prog, StackError("no NVIDIA GPU here; --dry goes through everything with tiny models"))
    began_s = time.monotonic()
    until_s = began_s + 60.0 * options.minutes
    folder: Path = options.data_dir
    plan = Plan(folder, 50_000, 1, 2048)
    scope = _WHOLE
    if options.dry:
        plan, scope = Plan(folder, _DRY_QUERIES, 1, 2048, turn_share=0.01), _DRY_SCOPE
    engines: list[Engine] = []
    runs: list[front.Run] = []

    def measure(matrix: Matrix) -> list[Figure]:
        found = measured_engines(matrix, folder, until_s)
        engines.extend(found)
        return [figure for engine in found for figure in _figures(engine)]

    def measure_front() -> list[Figure]:
        with _dry_servers() if options.dry else nullcontext():
            runs.extend(front.measure(plan, scope.servers, scope.aggregators, until_s))
        return list(front.figures(runs))

    def measure_stack() -> list[Figure]:
        with _dry_servers() if options.dry else nullcontext():
            return stack.measure(plan, scope.batches)

    parts: Sequence[Callable[[], list[Figure]]] = (
        partial(measure, scope.first), measure_front, measure_stack, partial(measure, scope.last)
    )  # fmt: skip
    chosen = {name: part for name, part in zip(_PARTS, parts, strict=True) if name in options.parts}
    results: Path = options.results or (folder / "results.csv" if options.dry else RESULTS)
    try:
        with only_one(folder):
            figures, failed = kept(chosen, results, options.prog)
    except (StackError, OSError) as error:
        return fail(options.prog, error)
    OUTPUT.print(engines_table(engines))
    OUTPUT.print(front.table(runs))
    OUTPUT.print(table([figure for figure in figures if figure.bench not in (_ENGINES, front.BENCH)]))
    for number, sentence in enumerate(verdicts(engines, figures), 1):
        OUTPUT.print(f"{number}. {sentence}", highlight=False)
    OUTPUT.print(f"{(time.monotonic() - began_s) / 60:.1f} minutes; logs are in {folder}")
    return failed or (LOST if any(engine.error for engine in engines) else 0)


def kept(parts: Mapping[str, Callable[[], list[Figure]]], results: Path, prog: str) -> tuple[list[Figure], int]:
    """The figures of all parts, each appended as soon as it is measured; a part that fails leaves those of the others.

    And the exit code: 0, or that of a failure.
    """
    figures: list[Figure] = []
    code = 0
    for name, part in parts.items():
        try:
            found = part()
        except (StackError, OSError, TimeoutError) as error:
            ERRORS.print(f"==> {name} was not measured:")
            code = fail(prog, error)
            continue
        append(found, results)
        figures += found
    return figures, code


def measured_engines(matrix: Matrix, folder: Path, until_s: float) -> list[Engine]:
    """Those that are begun before `until_s`; what could not be measured says why."""
    found: list[Engine] = []
    for model, sides in matrix:
        for side in sides:
            if time.monotonic() + _ENGINE_S > until_s:
                found.append(Engine(model, side, "left out: the time is over (--minutes)"))
                continue
            ERRORS.print(f"==> {model}, {side}")
            found.append(measured(model, side, model_folder(model, folder), folder))
    return found


@contextmanager
def _dry_servers() -> Generator[None]:
    """Model servers that are started meanwhile compute nothing."""
    with patch.dict(os.environ, {PREFIX + name: value for name, value in _DRY.items()}):
        yield


_ENGINES = "gpu-engines"


def _figures(engine: Engine) -> Iterator[Figure]:
    notes = f"{engine.model}, {engine.side}, {engine.dtype}, {engine.device}"
    for tokens, (step_s, device_s) in engine.steps.items():
        yield Figure(_ENGINES, f"step_{tokens}", 1e3 * step_s, "ms", 1, notes)
        yield Figure(_ENGINES, f"step_{tokens}_over_device", step_s / device_s if device_s else 0.0, "ratio", 1, notes)
        yield Figure(_ENGINES, f"step_{tokens}_of_roofline", engine.of_roofline(tokens), "ratio", 1, notes)
    if not engine.error:
        yield Figure(_ENGINES, "saturation_point", engine.saturation_point, "tokens", 1, notes)
        yield Figure(_ENGINES, "load", engine.load_s, "s", 1, notes)


def engines_table(engines: Sequence[Engine]) -> Table:
    """A row for each engine: milliseconds of a step, over the device's part of it, and the share of the roofline."""
    good = [engine for engine in engines if not engine.error]
    cards = {f"{each.device}, {each.dtype}: {_limits(each)}" for each in good}
    tokens = [Column(f"{tokens} tokens", justify="right") for tokens in STEPS]
    shown = Table("model", "engine", "start s", *tokens, Column("saturation point", justify="right"))
    shown.title = "\n".join([*sorted(cards), "ms a step (× of what the device computes, % of the roofline)"])
    for engine in engines:
        if engine.error:
            shown.add_row(engine.model, engine.side, engine.error)
            continue
        cells = (_cell(engine, tokens) for tokens in STEPS)
        shown.add_row(engine.model, engine.side, f"{engine.load_s:.0f}", *cells, f"{engine.saturation_point:,}")
    return shown


def _limits(engine: Engine) -> str:
    return f"{engine.flops / 1e12:.3g} TFLOP/s, {engine.bytes_per_s / 1e9:.0f} GB/s"


def _cell(engine: Engine, tokens: int) -> str:
    if tokens not in engine.steps:
        return ""
    step_s, device_s = engine.steps[tokens]
    over = f"{step_s / device_s:.2f} ×, " if device_s else ""
    return f"{1e3 * step_s:.2f} ({over}{engine.of_roofline(tokens):.0%})"
