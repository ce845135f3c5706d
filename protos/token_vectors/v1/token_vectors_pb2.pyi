from protos.embedding.v1 import embedding_pb2 as _embedding_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tokens(_message.Message):
    __slots__ = ("embeddings", "dimensions", "encoding", "scales", "ids", "weights", "token_count", "status")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SCALES_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    embeddings: bytes
    dimensions: int
    encoding: _embedding_pb2.Encoding
    scales: _containers.RepeatedScalarFieldContainer[float]
    ids: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[float]
    token_count: int
    status: _embedding_pb2.Status
    def __init__(self, embeddings: _Optional[bytes] = ..., dimensions: _Optional[int] = ..., encoding: _Optional[_Union[_embedding_pb2.Encoding, str]] = ..., scales: _Optional[_Iterable[float]] = ..., ids: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[float]] = ..., token_count: _Optional[int] = ..., status: _Optional[_Union[_embedding_pb2.Status, _Mapping]] = ...) -> None: ...

class EmbedTokensResponse(_message.Message):
    __slots__ = ("request_id", "model", "model_revision", "status", "inputs", "timings", "batch_id", "attempt", "reply_id", "replay", "cached")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REPLY_ID_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    model_revision: str
    status: _embedding_pb2.Status
    inputs: _containers.RepeatedCompositeFieldContainer[Tokens]
    timings: _embedding_pb2.Timings
    batch_id: str
    attempt: int
    reply_id: str
    replay: bool
    cached: int
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., model_revision: _Optional[str] = ..., status: _Optional[_Union[_embedding_pb2.Status, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[Tokens, _Mapping]]] = ..., timings: _Optional[_Union[_embedding_pb2.Timings, _Mapping]] = ..., batch_id: _Optional[str] = ..., attempt: _Optional[int] = ..., reply_id: _Optional[str] = ..., replay: bool = ..., cached: _Optional[int] = ...) -> None: ...
