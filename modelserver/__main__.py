"""Serve one model on vLLM (the default), measure its profile, or check the settings."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import warnings
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

import uvloop

from modelserver import logs, model_files
from modelserver.engines import process_env
from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles
from modelserver.settings import ModelServerSettings, as_text, help_text, load
from modelserver.telemetry import Telemetry

if TYPE_CHECKING:
    from modelserver.profile.measure import Profile

T = TypeVar("T")

_log = logging.getLogger("modelserver")

_SWITCH_S = 0.0005


def main(arguments: Sequence[str]) -> int:
    """Run one command; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        settings = load(options.config, bind=options.bind)
        logs.configure(settings.telemetry.log_level)
        logging.getLogger("vllm").setLevel("ERROR")
        if options.check:
            return _check(settings)
        if settings.engine.kind != "synthetic":
            process_env.ensure_malloc(arguments)
        files = _prepare(settings)
        if options.command == "profile":
            return _profile(settings, files, options.out)
        if options.command == "forward":
            return _forward(settings, files, options.queries, options.tokens)
        return _serve(settings, files)
    except CannotStart as error:
        print(f"modelserver: {error}", file=sys.stderr)  # noqa: T201 - to the person who started it
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m modelserver",
        description=__doc__,
        epilog=help_text(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings as YAML; the environment wins over it")
    parser.add_argument("--bind", metavar="HOST:PORT", help="of the gRPC port; wins over all settings")
    parser.add_argument("--check", action="store_true", help="validate settings and the model's files, and exit")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("serve", help="serve the model (the default)")
    profile = commands.add_parser("profile", help="measure the saturation profile, write it and exit")
    profile.add_argument(
        "--out", type=Path, metavar="FOLDER", required=True, help="folder for profile.json and profile.csv"
    )
    forward = commands.add_parser(
        "forward", help="time the engine alone, for benchmarks: steps on stdin, seconds on stdout"
    )
    forward.add_argument("--queries", type=int, default=256, help="of each batch (%(default)s)")
    forward.add_argument("--tokens", type=int, default=10, help="of each query (%(default)s)")
    return parser


def _prepare(settings: ModelServerSettings) -> ModelFiles:
    """Check the installation, find the model and read its files; all that comes before torch is imported."""
    if settings.engine.kind != "synthetic":
        _log.info("checked the installation", extra={"stage": "install", "engine": process_env.check_installation()})
    local = not settings.model.path or Path(settings.model.path).expanduser().is_dir()
    warnings.filterwarnings("ignore", module=r"vllm\.")
    process_env.prepare_engine_env(os.environ, local_model=local)
    path = model_files.locate(settings.model.path, settings.model.revision)
    return model_files.read(path, settings.model.revision)


def _check(settings: ModelServerSettings) -> int:
    files = _prepare(settings)
    model_files.check_tokenizer(files)
    print(as_text(settings), end="")  # noqa: T201 - to the person who asked
    print(f"# model {settings.served_name}, revision {files.revision}, from {files.path}")  # noqa: T201
    return 0


def _profile(settings: ModelServerSettings, files: ModelFiles, out: Path) -> int:
    """Measure the profile as a start does, without the cache, and write it as files."""
    from modelserver.app import Server  # noqa: PLC0415 - what only this command needs
    from modelserver.profile import store  # noqa: PLC0415

    async def measured(telemetry: Telemetry) -> Profile:
        return await Server(alone, files, telemetry).measured()

    with TemporaryDirectory() as cache:
        profile = settings.profile.model_copy(update={"enabled": True, "file": None, "cache": Path(cache)})
        grpc = settings.grpc.model_copy(update={"bind": "127.0.0.1:0"})
        alone = settings.model_copy(update={"profile": profile, "grpc": grpc})
        found = _run(measured, "127.0.0.1:0")
    out.mkdir(parents=True, exist_ok=True)
    store.save(found, out / "profile.json")
    store.save_csv(found, out / "profile.csv")
    _log.info("wrote the profile", extra={"folder": str(out)})
    return 0


def _forward(settings: ModelServerSettings, files: ModelFiles, queries: int, tokens: int) -> int:
    from modelserver.engines.forward import time_forward  # noqa: PLC0415 - what only this command needs

    time_forward(settings, files, queries=queries, tokens=tokens, asked=sys.stdin, out=sys.stdout)
    return 0


def _serve(settings: ModelServerSettings, files: ModelFiles) -> int:
    from modelserver.app import Server  # noqa: PLC0415 - what only this command needs

    async def serve(telemetry: Telemetry) -> int:
        return await Server(settings, files, telemetry).run()

    return _run(serve, settings.telemetry.metrics_bind)


def _run(main: Callable[[Telemetry], Coroutine[object, object, T]], metrics_bind: str) -> T:
    # Between its kernels the engine's thread needs the interpreter lock; no other thread keeps it longer than this.
    sys.setswitchinterval(_SWITCH_S)
    telemetry = Telemetry(metrics_bind)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(main(telemetry))
    telemetry.shutdown()
    return result


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logging.shutdown()
    # Threads of torch's and vLLM's may still run, and an engine that still loads cannot be interrupted.
    sys.stdout.flush()
    os._exit(code)
