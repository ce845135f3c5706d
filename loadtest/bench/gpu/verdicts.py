"""What the figures decide: one sentence for each decision that was made without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean

from loadtest.bench.figures import Figure
from loadtest.bench.gpu.engines import DIRECT, GRAPHED, NO_GRAPHS, STEPS, V1, V2, Engine

DIRECT_PAYS = 1.1
"""How many times as fast as core the direct engine must be to stay the default for encoders on a GPU (ADR 30)."""
GRAPHS_PAY, _JUDGED = 2.0, 600
"""How many times as fast a step of so many tokens must be with graphs of the direct engine (ADR 60)."""
_LEVEL = 0.05
_IDLE = 1.2
"""Step time over computing time of the GPU, from which the GPU waits for the host."""
_DOUBLING = 1.05


def verdicts(engines: Sequence[Engine], figures: Sequence[Figure]) -> list[str]:
    """All that can be decided by what was measured."""
    by_model: dict[str, dict[str, Engine]] = {}
    for engine in engines:
        if not engine.error:
            by_model.setdefault(engine.model, {})[engine.side] = engine
    return [*_engines(by_model), *_stack(figures)]


def _engines(by_model: Mapping[str, Mapping[str, Engine]]) -> Iterator[str]:
    for model, sides in by_model.items():
        core = sides.get(V2)
        yield from (f"{model}, {side}: {equal_sums(engine)}" for side, engine in sides.items() if engine.lengths)
        if core is None:
            continue
        if V1 in sides:
            ratio = over(core, sides[V1])
            keep = "keep it" if ratio >= 1 - _LEVEL else "set VLLM_USE_V2_MODEL_RUNNER=0 for core (ADR 30)"
            yield f"{model}: runner V2 is {ratio:.2f} × V1: {keep}"
        if DIRECT in sides:
            ratio = over(sides[DIRECT], core)
            chosen = "direct stays the default" if ratio >= DIRECT_PAYS else "make core the default on a GPU"
            yield f"{model}: direct is {ratio:.2f} × core (ADR 30 asks for {DIRECT_PAYS}): {chosen}"
        if GRAPHED in sides and DIRECT in sides:
            yield f"{model}: {full_graphs(sides[GRAPHED], sides[DIRECT])}"
        if NO_GRAPHS in sides:
            yield f"{model}: {graphs(core, sides[NO_GRAPHS])}"
        yield f"{model}: {host(core)}"
        yield f"{model}: {knee(core)}"


def over(one: Engine, other: Engine) -> float:
    """How many times as fast `one` computes the steps that both computed."""
    common = [tokens for tokens in STEPS if tokens in one.steps and tokens in other.steps]
    return geometric_mean([one.tokens_per_s(tokens) / other.tokens_per_s(tokens) for tokens in common])


def full_graphs(graphed: Engine, direct: Engine) -> str:
    """Whether graphs of the direct engine pay (ADR 60): at 600 tokens, and at the sizes of the table."""
    if not graphed.capture_sizes:
        return "the direct engine captured no graphs: its log says why"
    gain = graphed.tokens_per_s(_JUDGED) / direct.tokens_per_s(_JUDGED)
    times = ", ".join(
        f"{tokens} tokens {1e3 * direct.steps[tokens][0]:.2f} → {1e3 * graphed.steps[tokens][0]:.2f} ms"
        for tokens in STEPS
        if tokens in direct.steps and tokens in graphed.steps
    )
    keep = "set engine.graphs to auto by default" if gain >= GRAPHS_PAY else "leave engine.graphs off (ADR 60)"
    return f"graphs are {gain:.2f} × direct at {_JUDGED} tokens ({GRAPHS_PAY:g} wanted): {keep}; {times}"


def equal_sums(engine: Engine) -> str:
    """Whether steps of equal sums of tokens take equally long, however these are divided: what budgets rest on."""
    times = ", ".join(f"{name} {1e3 * step_s:.2f}" for name, step_s in engine.lengths.items())
    return f"600 tokens in queries of so many tokens each take ms: {times}: {engine.apart - 1.0:.0%} apart"


def graphs(core: Engine, plain: Engine) -> str:
    """Up to which size graphs pay, of the sizes that both profiles have (ADR 38)."""
    if not core.capture_sizes:
        return "no graphs were captured: nothing to decide about their sizes"
    faster = [
        tokens
        for tokens in core.capture_sizes
        if tokens in plain.profile and plain.profile[tokens] > (1 + _LEVEL) * core.profile.get(tokens, float("inf"))
    ]
    if not faster:
        return "graphs pay for no size: capture none"
    largest = max(core.capture_sizes)
    more = "capture larger ones too" if faster[-1] == largest else f"capture none above {faster[-1]} tokens"
    return f"graphs pay up to {faster[-1]} of {largest} tokens: {more} (modelserver/engines/model_config.py)"


def host(core: Engine) -> str:
    """From which step on the GPU is busy all the time."""
    waits = [tokens for tokens, (step_s, device_s) in core.steps.items() if step_s > _IDLE * device_s]
    if not waits:
        return "the GPU computes all the time at every size: nothing to gain by launching earlier"
    return f"the GPU waits for the host in steps of up to {max(waits)} tokens: full graphs or two steps in flight pay"


def knee(core: Engine) -> str:
    """Whether the profile was measured far enough."""
    last, half = core.max_tokens, core.max_tokens // 2
    if not {last, half} <= core.profile.keys():
        return f"saturation point {core.saturation_point} tokens"
    gain = last / core.profile[last] / (half / core.profile[half])
    far = "far enough" if gain < _DOUBLING else "not far enough: raise _LARGEST_GPU_STEP (modelserver/startup.py)"
    return f"saturation point {core.saturation_point} tokens; from {half} to {last} throughput is {gain:.2f} ×: {far}"


def _stack(figures: Sequence[Figure]) -> Iterator[str]:
    for figure in figures:
        if figure.wanted:
            kept = "kept" if figure.kept else "missed"
            yield f"{figure.bench} {figure.figure}: {figure.value:.2f}, wanted {figure.wanted}: {kept}"
