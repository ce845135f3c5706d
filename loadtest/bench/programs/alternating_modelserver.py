"""A model server with two tasks that can stop mixing: `python -m loadtest.bench.programs.alternating_modelserver`.

It is the product until SIGUSR1. From then on to the next SIGUSR1 its steps alternate while both tasks wait: one embeds,
the next one generates. Running generations keep their place until then.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from typing_extensions import override

from modelserver import process_env
from modelserver.__main__ import main


def _alternate() -> None:
    """Replace the engine that `modelserver` will load."""
    process_env.prepare_engine_env(os.environ, local_model=True, v1_runner=True)
    from vllm.v1.core.sched.request_queue import create_request_queue  # noqa: PLC0415 - vLLM reads the environment first

    from modelserver.wings.both import vllm_generator  # noqa: PLC0415
    from modelserver.wings.both.tap import NAME  # noqa: PLC0415
    from modelserver.wings.generation.generator import NewTokens, StepLoad  # noqa: PLC0415

    class Alternating(vllm_generator.VllmMixedGenerator):
        """Puts the requests of one task aside for a step, while both have some."""

        alternates = False
        _embeds_next = True

        @override
        def step(self) -> tuple[Sequence[NewTokens], StepLoad]:
            if not self.alternates:
                return super().step()
            scheduler: Any = self.scheduler
            requests = list(scheduler.requests.values())
            embeddings = {each.request_id for each in requests if each.request_id.startswith(NAME)}
            if not embeddings or len(embeddings) == len(requests):
                return super().step()
            embeds, self._embeds_next = self._embeds_next, not self._embeds_next

            def now(request: Any) -> bool:
                return (request.request_id in embeddings) is embeds

            running, waiting = list(scheduler.running), list(scheduler.waiting)
            aside = [each for each in running if not now(each)]
            scheduler.running = [each for each in running if now(each)]
            scheduler.waiting = create_request_queue(scheduler.policy)
            for each in waiting:
                if now(each):
                    scheduler.waiting.add_request(each)
            active = scheduler.max_num_active_reqs
            scheduler.max_num_active_reqs = max(1, active - len(aside))
            try:
                return super().step()
            finally:
                scheduler.max_num_active_reqs = active
                scheduler.running = aside + scheduler.running
                for each in waiting:
                    if not now(each):
                        scheduler.waiting.add_request(each)

    def switch(_number: int, _frame: FrameType | None) -> None:
        Alternating.alternates = not Alternating.alternates

    signal.signal(signal.SIGUSR1, switch)
    vllm_generator.VllmMixedGenerator = Alternating  # type: ignore[misc]


if __name__ == "__main__":
    _alternate()
    sys.exit(main(sys.argv[1:]))
