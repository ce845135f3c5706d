"""Route each request to a model revision, and fill in the options that the model decides."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.models import Models, ServedTask
from aggregator.admission.pending import Pending
from aggregator.errors import Code, InvalidRequest, ModelUnavailable, TokenbatchError
from aggregator.request.request import Failure, Options, Request, Stage
from aggregator.scheduler.work_item import Task

_LOG = logging.getLogger(__name__)
UNQUEUED = Failure(Code.INTERNAL, "the request could not be queued")
"""The outcome of a request after an unexpected error."""


@dataclass(slots=True)
class Routed:
    """Requests by model revision; `refused` are failed requests, `expired` of them by their deadline.

    Requests that wait for the first server of their model are in neither: they are pending.
    """

    groups: dict[ModelRevision, tuple[ServedTask, list[Request]]] = field(default_factory=dict)
    refused: list[Request] = field(default_factory=list)
    expired: int = 0


def route_all(requests: Sequence[Request], models: Models, now_s: float) -> Routed:
    """Route requests of any source, at `now_s` (monotonic seconds); equal model and options are looked up once."""
    routed = Routed()
    routes: dict[tuple[str, str, str, bool, int, Task], tuple[Options, Pending | list[Request]]] = {}
    for request in requests:
        try:
            if request.remaining and request.deadline_s <= now_s:
                routed.expired += 1
                request.fail(_expired_on_arrival(now_s - request.deadline_s))
            if request.remaining:
                key = (
                    request.model,
                    request.model_revision,
                    request.replay_revision,
                    request.source.refusable,
                    id(request.options),
                    request.kind.task,
                )
                route = routes.get(key)
                if route is None:
                    served, model_revision, options = _route(request, models, now_s)
                    if model_revision is None:
                        route = options, served.pending
                    else:
                        route = options, routed.groups.setdefault(model_revision, (served, []))[1]
                    if served.model.canary is None:  # with a canary each request may go to another revision
                        routes[key] = route
                request.options, group = route
                group.append(request)
            elif request.stage is not Stage.GIVEN_UP:
                routed.refused.append(request)
        except TokenbatchError as error:
            request.fail(Failure.of(error))
            routed.refused.append(request)
        except Exception:  # noqa: BLE001 - an unexpected error must not stop all other requests
            _LOG.exception("a request could not be routed")
            request.fail(UNQUEUED)
            routed.refused.append(request)
    return routed


def _expired_on_arrival(late_s: float) -> Failure:
    """Says by how much and by which clock: of clocks that disagree, only the sender may know."""
    ago = f"{late_s:,.1f} s before the request arrived, by the aggregator's clock"
    return Failure(Code.DEADLINE_EXCEEDED, f"the deadline passed {ago}")


def unroute(request: Request) -> None:
    """Forget every vector and the revision's defaults, so that no reply mixes revisions; failures stay."""
    request.outcomes = [outcome if isinstance(outcome, Failure) else None for outcome in request.outcomes]
    request.remaining = request.outcomes.count(None)
    request.options = request.options.asked or request.options


def _route(request: Request, models: Models, now_s: float) -> tuple[ServedTask, ModelRevision | None, Options]:
    """The model's task, the revision for the request (None: none is known yet), and its complete options."""
    served = models.find(request.model, request.task)
    if served.refused_from_s <= now_s:
        does = " and ".join(each.task.does for each in served.model.tasks.values() if each.served_since_s < inf)
        others = ", ".join(each.name for each in models.tasks if each.task is request.task and each.revisions)
        remedy = f"use model {others}" if others else f"no model here {request.task.does}"
        raise InvalidRequest(f"{served.name} {does} and does not {request.task.words}: {remedy}", "model")
    model_revision = served.choose(request.model_revision, request.request_id, request.replay_revision, now_s)
    waits = not request.source.refusable or now_s < served.calls_wait_until_s
    if not waits and (model_revision is None or not model_revision.servers):
        raise ModelUnavailable(f"no server of {served.name} is available")
    if model_revision is None:
        return served, None, request.options
    if request.kind.has_options:
        return served, model_revision, model_revision.resolve(request.options)
    return served, model_revision, request.options
