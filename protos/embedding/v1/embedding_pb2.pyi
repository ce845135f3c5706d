import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InputType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INPUT_TYPE_UNSPECIFIED: _ClassVar[InputType]
    INPUT_TYPE_QUERY: _ClassVar[InputType]
    INPUT_TYPE_DOCUMENT: _ClassVar[InputType]

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_INTERACTIVE: _ClassVar[Priority]
    PRIORITY_DEFAULT: _ClassVar[Priority]
    PRIORITY_BACKGROUND: _ClassVar[Priority]

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_UNSPECIFIED: _ClassVar[Encoding]
    ENCODING_FLOAT32: _ClassVar[Encoding]
    ENCODING_FLOAT16: _ClassVar[Encoding]
    ENCODING_INT8: _ClassVar[Encoding]
    ENCODING_BINARY: _ClassVar[Encoding]

class Truncate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRUNCATE_UNSPECIFIED: _ClassVar[Truncate]
    TRUNCATE_NONE: _ClassVar[Truncate]
    TRUNCATE_START: _ClassVar[Truncate]
    TRUNCATE_END: _ClassVar[Truncate]
INPUT_TYPE_UNSPECIFIED: InputType
INPUT_TYPE_QUERY: InputType
INPUT_TYPE_DOCUMENT: InputType
PRIORITY_UNSPECIFIED: Priority
PRIORITY_INTERACTIVE: Priority
PRIORITY_DEFAULT: Priority
PRIORITY_BACKGROUND: Priority
ENCODING_UNSPECIFIED: Encoding
ENCODING_FLOAT32: Encoding
ENCODING_FLOAT16: Encoding
ENCODING_INT8: Encoding
ENCODING_BINARY: Encoding
TRUNCATE_UNSPECIFIED: Truncate
TRUNCATE_NONE: Truncate
TRUNCATE_START: Truncate
TRUNCATE_END: Truncate

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Chunks(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("text", "token_ids", "chunks", "token_count", "spans")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: TokenIds
    chunks: Chunks
    token_count: int
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., chunks: _Optional[_Union[Chunks, _Mapping]] = ..., token_count: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("request_id", "model", "model_revision", "inputs", "input_type", "priority", "dimensions", "encoding", "normalize", "truncate", "tenant", "expire_time", "truncate_to")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_TO_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    model_revision: str
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    input_type: InputType
    priority: Priority
    dimensions: int
    encoding: Encoding
    normalize: bool
    truncate: Truncate
    tenant: str
    expire_time: _timestamp_pb2.Timestamp
    truncate_to: int
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., model_revision: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., input_type: _Optional[_Union[InputType, str]] = ..., priority: _Optional[_Union[Priority, str]] = ..., dimensions: _Optional[int] = ..., encoding: _Optional[_Union[Encoding, str]] = ..., normalize: bool = ..., truncate: _Optional[_Union[Truncate, str]] = ..., tenant: _Optional[str] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., truncate_to: _Optional[int] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("code", "message", "retryable", "retry_delay")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    retryable: bool
    retry_delay: _duration_pb2.Duration
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., retryable: bool = ..., retry_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ChunkEmbedding(_message.Message):
    __slots__ = ("embedding", "scale")
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    embedding: bytes
    scale: float
    def __init__(self, embedding: _Optional[bytes] = ..., scale: _Optional[float] = ...) -> None: ...

class Embedding(_message.Message):
    __slots__ = ("embedding", "dimensions", "encoding", "token_count", "status", "scale", "chunks")
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    embedding: bytes
    dimensions: int
    encoding: Encoding
    token_count: int
    status: Status
    scale: float
    chunks: _containers.RepeatedCompositeFieldContainer[ChunkEmbedding]
    def __init__(self, embedding: _Optional[bytes] = ..., dimensions: _Optional[int] = ..., encoding: _Optional[_Union[Encoding, str]] = ..., token_count: _Optional[int] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., scale: _Optional[float] = ..., chunks: _Optional[_Iterable[_Union[ChunkEmbedding, _Mapping]]] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queued", "batched", "inference")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    BATCHED_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_FIELD_NUMBER: _ClassVar[int]
    queued: _duration_pb2.Duration
    batched: _duration_pb2.Duration
    inference: _duration_pb2.Duration
    def __init__(self, queued: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., batched: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., inference: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("request_id", "model", "model_revision", "status", "embeddings", "timings", "batch_id", "attempt", "reply_id", "replay", "cached")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REPLY_ID_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    model_revision: str
    status: Status
    embeddings: _containers.RepeatedCompositeFieldContainer[Embedding]
    timings: Timings
    batch_id: str
    attempt: int
    reply_id: str
    replay: bool
    cached: int
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., model_revision: _Optional[str] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., embeddings: _Optional[_Iterable[_Union[Embedding, _Mapping]]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., batch_id: _Optional[str] = ..., attempt: _Optional[int] = ..., reply_id: _Optional[str] = ..., replay: bool = ..., cached: _Optional[int] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "aliases", "revision", "dimensions", "matryoshka_dimensions", "max_input_tokens", "ready_model_servers", "task")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    MATRYOSHKA_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    READY_MODEL_SERVERS_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    name: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    revision: str
    dimensions: int
    matryoshka_dimensions: _containers.RepeatedScalarFieldContainer[int]
    max_input_tokens: int
    ready_model_servers: int
    task: str
    def __init__(self, name: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., revision: _Optional[str] = ..., dimensions: _Optional[int] = ..., matryoshka_dimensions: _Optional[_Iterable[int]] = ..., max_input_tokens: _Optional[int] = ..., ready_model_servers: _Optional[int] = ..., task: _Optional[str] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...
