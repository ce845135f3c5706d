"""The engine by itself, in a process for each model and each way to drive it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.bench.gpu.models import operations_per_token
from loadtest.stack import constants
from loadtest.stack.errors import StackError

STEPS = (13, 256, 600, 2400, 8192)
"""Tokens of the steps that are looked at."""
PREFIX = "TOKENBATCH_MODELSERVER_"
V2, NO_GRAPHS, V1, DIRECT = "core V2", "core V2 without graphs", "core V1", "direct"
GRAPHED = "direct with graphs"
_OPTIONS = "ENGINE__VLLM_OPTIONS"
SIDES: Mapping[str, Mapping[str, str]] = {
    V2: {"ENGINE__KIND": "core"},
    NO_GRAPHS: {"ENGINE__KIND": "core", _OPTIONS: '{"compilation_config": {"cudagraph_mode": "NONE"}}'},
    V1: {"ENGINE__KIND": "core"},
    DIRECT: {"ENGINE__KIND": "direct"},
    GRAPHED: {"ENGINE__KIND": "direct", "ENGINE__GRAPHS": "auto"},
}
_RUNNER = {V1: {"VLLM_USE_V2_MODEL_RUNNER": "0"}}
_TIMEOUT_S = 240.0
_QUICK = '{"modelserver.wings.profile.settings:ProfileSettings.budget_s": 3}'


@dataclass(frozen=True, slots=True)
class Engine:
    """What `engine_steps` found of one model on one side.

    `steps`: by tokens, seconds of a step and those that the device computed. `profile`: seconds by tokens. `lengths`:
    seconds of a step of 600 tokens, by the tokens of its queries. `error`: why there is nothing else.
    """

    model: str
    side: str
    error: str = ""
    device: str = ""
    dtype: str = ""
    load_s: float = 0.0
    saturation_point: int = 0
    max_tokens: int = 0
    capture_sizes: Sequence[int] = ()
    steps: Mapping[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    lengths: Mapping[str, float] = field(default_factory=dict[str, float])
    profile: Mapping[int, float] = field(default_factory=dict[int, float])
    flops: float = 0.0
    bytes_per_s: float = 0.0
    operations_per_token: float = 0.0

    def tokens_per_s(self, tokens: int) -> float:
        """Tokens per second in successive steps of `tokens` tokens; 0 if that size was not measured."""
        step_s, _ = self.steps.get(tokens, (0.0, 0.0))
        return tokens / step_s if step_s else 0.0

    @property
    def apart(self) -> float:
        """How many times as long the slowest step of equal sums of tokens takes as the fastest one."""
        return max(self.lengths.values()) / min(self.lengths.values())

    def of_roofline(self, tokens: int) -> float:
        """The share of the device's operations a second that such steps use."""
        return self.tokens_per_s(tokens) * self.operations_per_token / self.flops if self.flops else 0.0


def measured(model: str, side: str, model_folder: Path, folder: Path, tokens: Sequence[int] = STEPS) -> Engine:
    """Load the model on this side and time steps of so many tokens; a side that does not start says why."""
    told = {**SIDES[side], "MODEL__PATH": str(model_folder), constants.NAME: _QUICK}
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **_RUNNER.get(side, {})}
    environment |= {PREFIX + name: value for name, value in told.items()}
    command = [*constants.command("loadtest.bench.programs.engine_steps"), "--tokens", *map(str, tokens)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Engine(model, side, f"not measured within {_TIMEOUT_S:g} s")
    log_file = folder / f"{model}-{side.replace(' ', '-')}.log"
    log_file.write_text(done.stderr, encoding="utf-8")
    if done.returncode:
        return Engine(model, side, (done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    try:
        return _parsed(model, side, done.stdout.splitlines()[-1], operations_per_token(model_folder))
    except (LookupError, TypeError, ValueError) as error:
        raise StackError(f"engine_steps wrote no figures: {error!r}; its log is {log_file}") from error


def _parsed(model: str, side: str, line: str, operations: float) -> Engine:
    found = json.loads(line)
    for by_tokens in ("steps", "profile"):
        found[by_tokens] = {int(tokens): seconds for tokens, seconds in found[by_tokens].items()}
    return Engine(model, side, operations_per_token=operations, **found)
