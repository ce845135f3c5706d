"""A task of the aggregator: all that the stations ask of it, so that none of them asks which task it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from sys import getsizeof
from typing import Any, ClassVar, Protocol

from aggregator.errors import Code, ModelServerBusy, ModelServerLost
from aggregator.model_server import Details, ModelServer, OutgoingBatch, ServerDescription
from aggregator.request.request import Defaults, Failure, Input, Options, Outcome, Request
from aggregator.request.vector import Vector, vector_bytes
from aggregator.scheduler.dispatcher import Dispatcher
from aggregator.scheduler.work_item import ID_BYTES, Task
from aggregator.tokenizers.tokenizer import Tokenizer
from k8s.pod.errors import StartError
from protos.modelserver.v1 import modelserver_pb2 as pb

Counted = bytes | Failure
"""The token ids of one text, int32 little endian, or why it has none."""
Made = tuple[bytes, int] | Failure
"""One input's sequence with its marks, as `WorkItem` has them, and the number of its tokens; or why it has none."""
Parts = tuple[Sequence[Input], Sequence[Outcome | None], Options, object]
"""What a task reads of a message: inputs, outcomes (None: it is to be computed), options, a request's details."""

_LARGE_BYTES = 1024 * 1024  # of vectors, which take a millisecond to encode


class Revision(Protocol):
    """A model revision, as far as sequences need it: a Protocol, because admission is a layer above requests."""

    @property
    def description(self) -> ServerDescription: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def prompts(self) -> dict[int, str]:
        """The text before each input, by `InputType`."""
        ...


class Kind(ABC):
    """One task: how its requests are read, counted, computed and answered. There is one object of each class.

    `name`: in the settings of topics and streams. `served`: the names that model servers give it. `message`: that of
    its requests, in a sentence. `response`: the message of its replies. `sizes`: the fields of a description that are
    not 0. `has_options`: whether a revision completes the options of requests.
    """

    task: ClassVar[Task]
    name: ClassVar[str]
    served: ClassVar[tuple[str, ...]]
    message: ClassVar[str]
    response: ClassVar[type[Any]]
    sizes: ClassVar[tuple[str, ...]] = (
        "dimensions",
        "max_input_tokens",
        "step_token_capacity",
        "step_query_capacity",
        "vocabulary_size",
    )
    has_options: ClassVar[bool] = True

    # In messages

    @abstractmethod
    def decode(self, value: bytes, max_inputs: int) -> Any:
        """The message in protobuf. Raises InvalidRequest or DecodeError."""

    @abstractmethod
    def decode_json(self, value: bytes, max_inputs: int) -> Any:
        """The message in JSON. Raises InvalidRequest or Undecodable, which quote no value."""

    @abstractmethod
    def decode_text(self, text: str) -> Any:
        """The message of a text by itself. Raises InvalidRequest."""

    @abstractmethod
    def parts(self, message: Any, defaults: Defaults, received_s: float) -> Parts:
        """The parts of a request that are not the same for every task; an input at fault has its own Failure.

        Raises InvalidRequest where the whole request is at fault.
        """

    @abstractmethod
    def answer(self, request: Request, reply_id: str, now_s: float) -> Any:
        """The message that answers a completed request, at `now_s` (monotonic)."""

    def to_protobuf(self, request: Request, reply_id: str, now_s: float) -> bytes:
        """The same in protobuf, which may be quicker."""
        encoded: bytes = self.answer(request, reply_id, now_s).SerializeToString()
        return encoded

    def inputs_field(self, request: Request) -> str:
        """The field of its message that holds the inputs."""
        del request
        return "inputs"

    # On the way; what says so serves `wings/generation`

    def start_by_s(self, request: Request) -> float:
        """The time (monotonic) by which its computation is to have begun."""
        return request.deadline_s

    def refusal(self, request: Request, token_count: int, dispatcher: Dispatcher, now_s: float) -> Failure | None:
        """Why a call is refused that would come too late for its own wishes."""
        del request, token_count, dispatcher, now_s
        return None

    def replayed(self, request: Request) -> None:  # noqa: B027 - most need nothing
        """It may have been answered before: it does not expire by its own wishes."""

    def restart(self, request: Request) -> bool:
        """Begin anew, on another model revision; False if it cannot."""
        del request
        return True

    def answered_by(self, request: Request) -> str:
        """The model revision that answered it; empty if none did."""
        outcome = request.outcomes[0] if request.outcomes else None
        return outcome.batch.model_revision if isinstance(outcome, Vector) else ""

    def first_token_s(self, request: Request) -> float:
        """When the first part of its result came (monotonic), if it comes in parts."""
        del request
        return inf

    def poison(self, request: Request) -> Sequence[bytes]:
        """The inputs that are refused beside the one that made engines fail."""
        del request
        return ()

    def too_long(self, request: Request, description: ServerDescription, found: str) -> Failure:
        """The failure of an input that is too long; `found`: its length."""
        del request
        remedy = "send less, or set truncate to TRUNCATE_END or TRUNCATE_START"
        taken = f"{description.max_input_tokens} tokens"
        return Failure(Code.OUT_OF_RANGE, f"{found}: {description.model} takes {taken}; {remedy}")

    # Sizes

    def characters(self, request: Request) -> int:
        """The characters of all its texts; a token id counts as four."""
        inputs = request.inputs
        return len(inputs[0]) if len(inputs) == 1 else sum(map(len, inputs))

    def text_bytes(self, request: Request) -> int:
        """The memory of all its texts and token ids: a text that many inputs share is there once."""
        return sum(map(getsizeof, request.inputs))

    def result_bytes(self, request: Request, dimensions: int) -> int:
        """The size of each result of a request, as it is written; `dimensions`: of the model's vectors."""
        return vector_bytes(request.options.dimensions or dimensions, request.options.encoding)

    def is_large(self, request: Request) -> bool:
        """Whether its response takes a millisecond or more to encode, so that a thread should do it."""
        count = request.vector_count
        return count > 1 and count * vector_bytes(request.options.dimensions, request.options.encoding) >= _LARGE_BYTES

    def answer_parts(self, request: Request) -> int:
        """How much its response holds, counted in what takes as long to write as a vector."""
        return request.vector_count

    # On model servers

    def details(self, said: pb.DescribeResponse) -> Details:
        """What a server that does the task says of it. Raises BadDescription."""
        del said
        return Details()

    def described(self, description: ServerDescription, said: pb.DescribeResponse) -> ServerDescription:
        """A server's description, with what is otherwise for this task."""
        del said
        return description

    def connect(self, client: Any, description: ServerDescription) -> ModelServer | None:
        """A server that takes more than batches; `client`: a `ModelServerClient`."""
        del client, description
        return None

    async def probe(self, server: ModelServer, token_ids: bytes, *, timeout_s: float) -> float | None:
        """Have these ids (int32) computed. Returns the engine's time (s), if it is known. Raises BatchFailed."""
        batch = OutgoingBatch(
            batch_id="probe",
            token_ids=token_ids,
            lengths=(len(token_ids) // ID_BYTES).to_bytes(ID_BYTES, "little"),
            query_count=1,
            token_count=len(token_ids) // ID_BYTES,
            attempt=0,
            isolate=False,
            max_step_tokens=2**31 - 1,
        )
        with suppress(ModelServerBusy):  # it is alive and busy
            result = await server.embed(batch, timeout_s=timeout_s)
            for _, code, message in result.errors:
                raise ModelServerLost(f"it fails on a probe: {Code(code).name}: {message}")
            return result.report.engine_s
        return None

    def check_tokenizer(self, description: ServerDescription, tokenizer: Tokenizer) -> None:  # noqa: B027 - most need nothing
        """Raises ValueError where sequences of the task cannot be made with it. Called on a thread."""

    def texts_take_long(self, request: Request) -> bool:
        """Whether `texts` takes a millisecond or more, so that a thread should do it."""
        del request
        return False

    @abstractmethod
    def texts(self, revision: Revision, request: Request, indexes: Sequence[int]) -> Sequence[str]:
        """The texts to tokenize for the inputs at `indexes`."""

    @abstractmethod
    def make(
        self, revision: Revision, request: Request, indexes: Sequence[int], counted: Sequence[Counted]
    ) -> Iterable[Made]:
        """Each input's sequence, within the model's limit, or why it has none; `counted`: the tokens of its `texts`.

        May fail the request as a whole.
        """


def kind_named(name: str, kinds: Sequence[Kind]) -> Kind:
    """The kind that settings name. Raises StartError."""
    for kind in kinds:
        if kind.name == name:
            return kind
    raise StartError(f"task {name} is not one of this aggregator's: {', '.join(kind.name for kind in kinds)}")
