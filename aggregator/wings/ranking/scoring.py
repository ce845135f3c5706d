"""What a request for scores asks for, and how a model joins the texts that it scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from aggregator.model_server import Details, ServerDescription
from aggregator.request.request import Request
from aggregator.scheduler.work_item import Task


@dataclass(frozen=True, slots=True)
class Scoring:
    """The wishes of a request for scores for its inputs, which are the second texts of pairs.

    `firsts`: the first text of each pair; None: the input is scored by itself. `ranks`: the inputs are documents to be
    ordered, of which `top_n` are returned (0: all), with their texts if `return_documents`. `max_tokens_per_doc`: those
    that are left of a document; 0: all.
    """

    firsts: Sequence[str | None]
    ranks: bool = False
    top_n: int = 0
    return_documents: bool = False
    max_tokens_per_doc: int = 0


def scoring_of(request: Request) -> Scoring:
    details = request.details
    assert isinstance(details, Scoring), "A request without a score was to be scored. This is a bug."
    return details


@dataclass(frozen=True, slots=True)
class PairTemplate(Details):
    """How a model wants two texts as one sequence: in a `text` with {query} and {document}, or as its tokenizer joins.

    `token_types`: it tells the second text by token type 1.
    """

    task: ClassVar[Task] = Task.SCORE
    is_vectors: ClassVar[bool] = False
    agreed: ClassVar[tuple[str, ...]] = (*Details.agreed, "details")

    text: str = ""
    token_types: bool = False

    @override
    def shown(self, labels: Sequence[str]) -> str:
        return "classify" if labels else "rank"

    def ends(self, query: str) -> tuple[str, str]:
        """The text that goes before and after a document."""
        before, _, after = self.text.partition("{document}")
        return before.replace("{query}", query), after.replace("{query}", query)


def template_of(description: ServerDescription) -> PairTemplate:
    details = description.details
    assert isinstance(details, PairTemplate), "A server that does not score was to score. This is a bug."
    return details
