"""Check the answers of a model server before use: its description, vectors and figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from aggregator.errors import Code, ModelServerLost, TokenbatchError
from aggregator.model_server import (
    PRIORITIES,
    OutgoingBatch,
    ServerDescription,
    StepResult,
)
from aggregator.request.kind import Kind
from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import DEFAULT_TASK
from protos.modelserver.v1 import modelserver_pb2 as pb

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""One batch, or its vectors, is one message; a model server takes and gives as much."""

_FLOAT32 = np.dtype("<f4")
_NO_RESULT = "the answer is not finite, or all zero"
_CODES = frozenset(Code) - {Code.OK}
_MESSAGE_SLACK_BYTES = 64 * 1024  # for everything in an answer but its vectors
_PRIORITIES = {number: priority for priority, number in PRIORITIES.items()}
_RULES = frozenset(rule.value for rule in Rule)


class BadDescription(TokenbatchError):
    """A server's description is inconsistent, or not the expected one."""


def checked_description(address: str, said: pb.DescribeResponse, kinds: Sequence[Kind]) -> ServerDescription:
    """A server's description, with `beside` if it does two of the tasks. Raises BadDescription."""
    named = said.tasks or (said.task or DEFAULT_TASK,)
    described = [_described(address, said, kind) for kind in kinds if not {*kind.served}.isdisjoint(named)]
    if not described:
        known = (name for kind in kinds for name in kind.served)
        raise BadDescription(f"it does none of the tasks {', '.join(known)}")
    return replace(described[0], beside=described[1]) if described[1:] else described[0]


def _described(address: str, said: pb.DescribeResponse, kind: Kind) -> ServerDescription:
    """Its description for one task; `step_query_capacity` is held to the vectors that fit one message."""
    for name in ("model", "model_revision", "tokenizer_fingerprint", "instance_id"):
        if not getattr(said, name):
            raise BadDescription(f"it names no {name}")
    details = kind.details(said)
    for name in kind.sizes:
        if getattr(said, name) <= 0:
            raise BadDescription(f"its {name} is 0")
    matryoshka = frozenset(said.matryoshka_dimensions)
    if any(not 0 < dimensions <= said.dimensions for dimensions in matryoshka):
        raise BadDescription(f"its matryoshka_dimensions {sorted(matryoshka)} do not fit {said.dimensions} dimensions")
    if said.labels and len(said.labels) != said.dimensions:
        raise BadDescription(f"it names {len(said.labels)} labels for {said.dimensions} scores")
    answerable = (MAX_MESSAGE_BYTES - _MESSAGE_SLACK_BYTES) // max(1, said.dimensions * _FLOAT32.itemsize)
    description = ServerDescription(
        address=address,
        instance_id=said.instance_id,
        model=said.model,
        model_revision=said.model_revision,
        tokenizer_fingerprint=said.tokenizer_fingerprint,
        dimensions=said.dimensions,
        matryoshka_dimensions=matryoshka,
        max_input_tokens=min(said.max_input_tokens, said.step_token_capacity),
        step_token_capacity=said.step_token_capacity,
        step_query_capacity=min(said.step_query_capacity, answerable),
        vocabulary_size=said.vocabulary_size,
        normalizes=said.normalizes,
        query_prompt=said.query_prompt,
        document_prompt=said.document_prompt,
        curve=_curve(said),
        details=details,
        labels=tuple(said.labels),
        pools_spans=said.pools_spans,
        never_zero=said.never_zero,
    )
    return kind.described(description, said)


def checked_result(batch: OutgoingBatch, description: ServerDescription, answer: pb.EmbedBatchResponse) -> StepResult:
    """A batch's result, `matrix` float32 [rows, dimensions]. Raises ModelServerLost where it cannot be right.

    A row that is no result is an error of its query, whether or not the server says so.
    """
    dimensions = description.dimensions
    if answer.dimensions != dimensions:
        raise ModelServerLost(f"the answer has {answer.dimensions} dimensions, not {dimensions}")
    rows = batch.row_count
    expected = rows * dimensions * _FLOAT32.itemsize
    if len(answer.embeddings) != expected:
        raise ModelServerLost(f"the answer holds {len(answer.embeddings)} bytes of vectors, not {expected}")
    matrix = np.frombuffer(answer.embeddings, _FLOAT32).reshape(rows, dimensions)
    times = (answer.step_duration_s, answer.idle_before_s, answer.staged_s, answer.engine_s, answer.unclaimed_s)
    for seconds in times:
        if not 0.0 <= seconds < math.inf:
            raise ModelServerLost(f"the answer reports a time of {seconds} s")
    errors = _errors(batch, answer)
    broken = broken_rows(matrix, zeros=not description.never_zero)
    if broken is not None:
        matrix = np.where(broken[:, None], np.float32(0.0), matrix)
        errors += _unnamed(batch, broken, errors)
    return StepResult(
        matrix=matrix,
        errors=errors,
        unclaimed_s=answer.unclaimed_s,
        report=StepReport(
            step_tokens=answer.step_tokens,
            step_duration_s=answer.step_duration_s,
            queued_tokens=answer.queued_tokens,
            idle_before_s=answer.idle_before_s,
            staged_s=answer.staged_s,
            decoding_sequences=answer.decoding_sequences,
            embed_room_tokens=answer.embed_room_tokens if answer.HasField("embed_room_tokens") else None,
            engine_s=answer.engine_s,
            recent_priorities=frozenset(
                _PRIORITIES[number] for number in answer.recent_priorities if number in _PRIORITIES
            ),
        ),
    )


def _curve(said: pb.DescribeResponse) -> Curve | None:
    """The measured curve; None if it is missing or invalid, so that the model's limits apply."""
    profile = said.profile
    times, eager_s = (profile.floor_s, profile.fixed_s, profile.per_token_s), profile.eager_s
    if any(not 0.0 <= seconds < math.inf for seconds in (*times, eager_s)) or not any(times):
        return None
    if profile.saturation_point < 1 or profile.rule not in _RULES:
        return None
    rule = Rule(profile.rule)
    sizes = tuple(sorted(said.capture_sizes))
    return Curve(*times, profile.saturation_point, rule, profile.max_tokens, profile.backlog_tokens, sizes, eager_s)


def _errors(batch: OutgoingBatch, answer: pb.EmbedBatchResponse) -> tuple[tuple[int, int, str], ...]:
    errors = tuple((error.index, error.code, error.message) for error in answer.errors)
    places = {place for place, _, _ in errors}
    if len(places) != len(errors) or any(place >= batch.query_count for place in places):
        raise ModelServerLost(f"the answer reports {len(errors)} failed queries at positions outside the batch")
    if any(code not in _CODES for _, code, _ in errors):
        raise ModelServerLost("the answer reports a failed query with an unknown code")
    return errors


def _unnamed(
    batch: OutgoingBatch, broken: npt.NDArray[np.bool_], errors: Sequence[tuple[int, int, str]]
) -> tuple[tuple[int, int, str], ...]:
    """An error for every query with a row that is no result, and of which the server said nothing."""
    named = {place for place, _, _ in errors}
    places = np.unique(np.repeat(np.arange(batch.query_count), batch.rows)[broken]).tolist()
    return tuple((place, int(Code.INTERNAL), _NO_RESULT) for place in places if place not in named)


def broken_rows(matrix: npt.NDArray[np.floating[Any]], *, zeros: bool) -> npt.NDArray[np.bool_] | None:
    """Which rows of [rows, columns] are not finite or, unless `zeros` are results, all zero; None: no row.

    The sums of squares show that none is at a third of the cost, unless they overflow or underflow.
    """
    squares = np.einsum("ij,ij->i", matrix, matrix)
    if np.isfinite(squares).all() and (zeros or bool(squares.all())):
        return None
    broken = np.logical_not(np.isfinite(matrix).all(axis=1))
    if not zeros:
        broken |= ~matrix.any(axis=1)
    return broken if broken.any() else None
