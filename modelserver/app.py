"""Compose the parts of one model server, run them, and stop them in order."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

from k8s.pod import heap, open_files
from k8s.pod.grpc.library import LibraryServices
from k8s.pod.grpc.server import GrpcServer
from k8s.pod.telemetry import Telemetry
from modelserver.engines.engine import Launch, Task
from modelserver.errors import CannotStart, EngineBroken, FewerTasks
from modelserver.loop import EngineLoop, EngineState
from modelserver.metrics import Metrics
from modelserver.model_files import ModelFiles
from modelserver.modes import Parts, tasks_of
from modelserver.registry import ENGINE_WINGS, MODES, PROFILERS, SPANS
from modelserver.scheduler.embedding_steps import EmbeddingSteps
from modelserver.scheduler.queued_batch import StepReport
from modelserver.scheduler.step_queue import StepQueue
from modelserver.service.description import Description, describe
from modelserver.service.servicer import ModelServerServicer, Serving, no_span
from modelserver.settings import ModelServerSettings
from modelserver.startup import EngineStart, Profiler, queue_bounds
from modelserver.watch import PhaseWatchdog
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc as pb_grpc

_log = logging.getLogger(__name__)

_SERVICE = pb.DESCRIPTOR.services_by_name["ModelServer"].full_name
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""As large as the vectors of 16,384 queries of 1,024 dimensions in one step."""
_GOODBYE_S = 0.5  # for answers that are computed to be sent
_WATCH_EVERY_S = 0.5  # for the end of the process that started this one


class Server:
    """One model server, from the first log line to the exit code."""

    def __init__(self, settings: ModelServerSettings, files: ModelFiles, telemetry: Telemetry) -> None:
        self._settings = settings
        self._files = files
        self._queue = StepQueue(time.monotonic)
        self._serving = Serving(self._queue)
        tasks = tasks_of(settings, files, MODES, ENGINE_WINGS.scoring_of)
        batches = min(tasks - {Task.GENERATE}, default=Task.EMBED)
        self._metrics = Metrics(telemetry.buffer, lambda: self._queue.queued_tokens, batches)
        self._servicer = ModelServerServicer(
            self._serving,
            files.tokenizer,
            self._metrics.refused,
            next(filter(None, (opened(telemetry) for opened in SPANS)), no_span),
        )
        most_connections = open_files.granted(settings.grpc.most_connections)
        watches = 2 * most_connections  # each aggregator has one and a check, and all may come through one proxy
        self._server = GrpcServer(
            "grpc.bind",
            settings.grpc.bind,
            most_connections,
            library=LibraryServices(watches, watches),
            options=(
                ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
            ),
        )
        self._server.add_servicer(pb_grpc.add_ModelServerServicer_to_server, self._servicer)
        self._server.reflect(_SERVICE)
        self._instance_id = uuid4().hex
        self._states: asyncio.Queue[tuple[EngineState, Exception | None]] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._stop = asyncio.Event()
        self._stop_when_ready = False
        self._failure: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._watch = PhaseWatchdog()
        self._start = EngineStart(
            settings,
            files,
            ENGINE_WINGS,
            lambda: self._metrics.fallbacks.add(1),
            self._launched,
            self._watch,
            next(iter(PROFILERS), Profiler)(settings, files),
        )
        self._degraded = ""
        self._parts = Parts(
            settings=settings,
            files=files,
            buffer=telemetry.buffer,
            queue=self._queue,
            serving=self._serving,
            start=self._start,
            on_step=self._stepped,
            on_failed_step=self._metrics.failed_step,
            on_state=self._on_state,
        )
        for mode in MODES:
            mode.declare(telemetry.buffer)
        self._engine_loop = self._engine_loop_of(tasks)
        self._metrics_address = telemetry.metrics_address
        telemetry.health.live["engine"], telemetry.health.ready["engine"] = self._watch.overdue, self._unready

    def _engine_loop_of(self, tasks: frozenset[Task]) -> EngineLoop[Any]:
        mode = next((mode for mode in MODES if mode.tasks == tasks), None)
        if mode is not None:
            return mode.loop(self._parts)
        steps = EmbeddingSteps(
            self._queue, queue_bounds, self._stepped, self._metrics.failed_step, unclaimed=self._serving.unclaimed
        )
        return EngineLoop(partial(self._start.batches, min(tasks)), steps, self._on_state, self._watch)

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT, then finish accepted work; the exit code. Raises CannotStart."""
        for name in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(name, self._stop.set)
        await self._set_health(serving=False)
        await self._server.start()
        port = int(self._server.address.rpartition(":")[2])
        _log.info("listening", extra={"stage": "listen", "port": port, "metrics": self._metrics_address})
        self._port = port
        self._engine_loop.start()
        following = asyncio.create_task(self._follow(), name="follow the engine")
        stopping = asyncio.create_task(self._stop.wait(), name="wait for the signal")
        watching = asyncio.create_task(self._overdue(), name="watch the engine")
        tasks = (following, stopping, watching)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await self._server.stop(None)
        else:
            await self._drain()
        for task in tasks:
            task.cancel()
        if isinstance(self._failure, CannotStart):
            raise self._failure
        return 0 if self._failure is None else 1

    async def _overdue(self) -> None:
        """Wait until a phase of the engine takes too long: only a new process helps."""
        while (overdue := self._watch.overdue()) is None:  # noqa: ASYNC110 - a thread that hangs sets no event
            await asyncio.sleep(_WATCH_EVERY_S)
        _log.critical("the engine hangs", extra={"error": overdue})
        self._failure = EngineBroken(overdue)

    async def measured(self) -> Profiler:
        """Start, stop as soon as the engine is ready, and return what measured it. Raises CannotStart."""
        self._stop_when_ready = True
        if await self.run():
            raise CannotStart("the engine did not get ready: see the log")
        return self._start.profiler

    async def _drain(self) -> None:
        """Set health to NOT_SERVING, refuse new work, finish accepted work, then close the port."""
        _log.info("stopping", extra={"queued_tokens": self._queue.queued_tokens})
        await self._server.leave_service()
        self._queue.close()
        if self._serving.generation is not None:
            self._serving.generation.close()
        try:
            async with asyncio.timeout(self._settings.grpc.drain_timeout_s):
                await self._servicer.idle()
                if self._serving.description is not None:  # an engine that still loads cannot be interrupted
                    await self._ended.wait()
        except TimeoutError:
            _log.warning("not all batches were answered in time")
        await self._server.stop(_GOODBYE_S)
        _log.info("stopped")

    def _on_state(self, state: EngineState, error: Exception | None) -> None:
        self._post(lambda: self._states.put_nowait((state, error)))

    def _stepped(self, report: StepReport) -> None:
        """On the engine's thread."""
        if self._serving.description is not None:  # else it was a step of the profile
            self._metrics.step(report)

    def _launched(self, launch: Launch) -> None:
        """On the engine's thread."""
        if self._serving.description is not None:  # else it was a step of the profile
            self._metrics.launches.add(1, launch.value)

    def _post(self, action: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(action)

    async def _follow(self) -> None:
        try:
            while not self._ended.is_set():
                await self._show(*await self._states.get())
        except Exception as error:  # noqa: BLE001 - whatever it is, this process cannot serve
            _log.critical("the engine cannot be served", extra={"error": f"{type(error).__name__}: {error}"})
            self._failure = error

    async def _show(self, state: EngineState, error: Exception | None) -> None:
        if isinstance(error, FewerTasks):
            self._serve_fewer_tasks(error)
            return
        serving = state is EngineState.SERVING and not self._stop.is_set()
        if serving:
            await self._start.profiler.before_serving(self._queue, self._described())
            heap.freeze()
            self._announce()
            if self._stop_when_ready:
                self._stop.set()
        await self._set_health(serving=serving)
        if state is EngineState.REBUILDING:
            self._metrics.rebuilds.add(1)
        if error is not None:
            _log.error(
                "the engine left service", extra={"state": state.value, "error": f"{type(error).__name__}: {error}"}
            )
        if state in (EngineState.STOPPED, EngineState.FAILED):
            self._failure = error
            self._ended.set()

    def _serve_fewer_tasks(self, error: FewerTasks) -> None:
        """Serve a model for the tasks that are left, because its engine cannot serve all."""
        self._degraded = str(error)
        _log.error("one task is served", extra={"task": min(error.tasks).value, "reason": self._degraded})
        self._serving.generation = None
        self._engine_loop = self._engine_loop_of(error.tasks)
        self._engine_loop.start()

    def _described(self) -> Description:
        start = self._start
        assert start.facts is not None, "An engine serves whose facts are not known. This is a bug."
        name = self._settings.served_name
        return describe(
            name,
            start.facts,
            self._files,
            start.profiler.message,
            self._instance_id,
            generation=start.generation,
            degraded=self._degraded,
        )

    def _announce(self) -> None:
        self._serving.description = self._described()
        facts, peak = self._serving.description.facts, self._settings.engine.peak_tflops
        self._metrics.utilisation.per_token = facts.operations_per_token / (1e12 * peak) if peak else 0.0
        _log.info(
            "serving",
            extra={"stage": "serving", "port": self._port, "model": self._settings.served_name,
                   "model_revision": self._files.revision, "engine": facts.kind, "dtype": facts.dtype},
        )  # fmt: skip

    async def _set_health(self, *, serving: bool) -> None:
        await self._server.set_serving(("", _SERVICE), serving=serving)

    def _unready(self) -> str | None:
        ready = self._serving.description is not None and not self._stop.is_set()
        return None if ready else "the engine is not ready"
