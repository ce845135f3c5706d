"""A task of the aggregator: all that the stations ask of it, so that none of them asks which task it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from sys import getsizeof
from typing import Any, ClassVar, Protocol

from aggregator.model_server import Details, ServerDescription
from aggregator.request.request import Defaults, Failure, Input, Options, Outcome, Request
from aggregator.request.vector import vector_bytes
from aggregator.scheduler.work_item import Task
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
    its requests, in a sentence. `response`: the message of its replies.
    """

    task: ClassVar[Task]
    name: ClassVar[str]
    served: ClassVar[tuple[str, ...]]
    message: ClassVar[str]
    response: ClassVar[type[Any]]

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

    # On model servers

    def details(self, said: pb.DescribeResponse) -> Details:
        """What a server that does the task says of it. Raises BadDescription."""
        del said
        return Details()

    def check_tokenizer(self, description: ServerDescription, tokenizer: Tokenizer) -> None:  # noqa: B027 - most need nothing
        """Raises ValueError where sequences of the task cannot be made with it. Called on a thread."""

    @abstractmethod
    def texts(self, revision: Revision, request: Request, indexes: Sequence[int]) -> Sequence[str]:
        """The texts to tokenize for the inputs at `indexes`. May fail the request as a whole."""

    @abstractmethod
    def make(
        self, revision: Revision, request: Request, indexes: Sequence[int], counted: Sequence[Counted]
    ) -> Iterator[Made]:
        """Each input's sequence, within the model's limit, or why it has none; `counted`: the tokens of its `texts`.

        May fail the request as a whole.
        """


def kind_named(name: str, kinds: Sequence[Kind]) -> Kind:
    """The kind that settings name. Raises StartError."""
    for kind in kinds:
        if kind.name == name:
            return kind
    raise StartError(f"task {name} is not one of this aggregator's: {', '.join(kind.name for kind in kinds)}")
