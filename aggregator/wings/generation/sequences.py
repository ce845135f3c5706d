"""The sequence of a generation: its prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from aggregator.admission.sequences import fitted, too_long, unknown_id, unmarked
from aggregator.errors import Code, InvalidRequest
from aggregator.request.kind import Counted, Made, Revision
from aggregator.request.request import Failure, Request
from aggregator.scheduler.work_item import ID_BYTES
from aggregator.wings.generation.chat import prompt_of
from aggregator.wings.generation.generation import Generation, generation_of


def prompt_texts(revision: Revision, request: Request) -> Sequence[str]:
    """A prompt: a text, token ids, or a chat as the model's template formats it."""
    generation = generation_of(request)
    if not generation.messages:
        return [text for text in request.inputs if isinstance(text, str)]
    try:
        return [prompt_of(revision.tokenizer, generation.messages)]
    except InvalidRequest as error:
        generation.refusal = replace(Failure.of(error), field=generation.prompt_field)
        return ()


def prompts(revision: Revision, request: Request, counted: Sequence[Counted]) -> Iterator[Made]:
    """The tokens of its prompt."""
    given, generation = request.inputs[0], generation_of(request)
    token_ids = counted[0] if counted else generation.refusal or given
    assert isinstance(token_ids, bytes | Failure), "A prompt was not tokenized. This is a bug."
    if isinstance(token_ids, bytes):
        token_ids = _prompt(revision, request, generation, token_ids)
    yield unmarked(fitted(revision, request, token_ids))


def _prompt(revision: Revision, request: Request, generation: Generation, token_ids: bytes) -> Counted:
    if generation.messages:  # the template itself places special tokens
        token_ids = revision.tokenizer.without_special(token_ids)
    if (unknown := unknown_id(revision, token_ids)) is not None:
        return replace(unknown, field=generation.prompt_field)
    description = revision.description
    size = description.vocabulary_size
    if any(token_id >= size for token_id in generation.sampling.stop_token_ids):
        field = "sampling.stop_token_ids"
        message = f"{field} holds an id that is not below {size}, the size of the vocabulary"
        return Failure(Code.INVALID_ARGUMENT, message, field=field)
    tokens = len(token_ids) // ID_BYTES
    if not tokens:
        return Failure(Code.INVALID_ARGUMENT, "the prompt has no tokens", field=generation.prompt_field)
    if tokens >= description.max_input_tokens:
        return too_long(revision, request, f"{tokens} tokens")
    detokenizer = revision.tokenizer.detokenizer(token_ids)
    generation.begin(description.model_revision, token_ids, detokenizer, description.max_input_tokens)
    return token_ids
