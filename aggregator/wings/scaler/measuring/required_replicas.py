"""How many model servers a load needs: the formula of the scaler, which the live view shows in its terms."""

from __future__ import annotations

from collections.abc import Iterable

DRAIN_S = 30.0
"""The time in which a backlog is to be processed, and"""
UTILISATION = 0.75
"""the share of a model server's throughput to plan with, unless the scaler is set to others."""


def backlog_tokens(unread_records: float, tokens_per_record: float, held_tokens: float) -> float:
    """Tokens that wait: records from the fetch position to the log end, and tokens in queues or in flight.

    The committed lag would count records in queues twice, because they are not committed yet.
    """
    return unread_records * tokens_per_record + held_tokens


def pod_throughput(replicas: Iterable[tuple[int, float]]) -> float | None:
    """R in tokens/s: the mean over replicas of token budget ÷ predicted step time; None without replicas."""
    speeds = [token_budget / step_s for token_budget, step_s in replicas]
    return sum(speeds) / len(speeds) if speeds else None


def memory_pods(arrival_tokens_per_s: float, kv_token_s_per_token: float, pod_kv_tokens: float) -> float:
    """Lambda * W / K: the number of pods whose memory the texts in progress fill, by Little's law.

    W: token-seconds of keys and values per arriving token; K: tokens that one pod can hold. 0 if the model does not
    generate.
    """
    return arrival_tokens_per_s * kv_token_s_per_token / pod_kv_tokens if pod_kv_tokens else 0.0


def required_replicas(
    arrival_tokens_per_s: float,
    backlog: float,
    pod_tokens_per_s: float,
    *,
    drain_s: float,
    utilisation: float,
    in_memory: float = 0.0,
) -> float:
    """(max(lambda / R, M) + B / (drain * R)) / rho: pods to process the arrivals, and the backlog within `drain_s`.

    M: `in_memory`, the number of pods whose memory the texts fill.
    """
    keeping_up = max(arrival_tokens_per_s / pod_tokens_per_s, in_memory)
    return (keeping_up + backlog / drain_s / pod_tokens_per_s) / utilisation
