import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from protos.embedding.v1 import embedding_pb2 as _embedding_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RankRequest(_message.Message):
    __slots__ = ("request_id", "model", "model_revision", "query", "documents", "top_n", "return_documents", "priority", "truncate", "truncate_to", "tenant", "expire_time", "max_tokens_per_doc")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    RETURN_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_TO_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_PER_DOC_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    model_revision: str
    query: str
    documents: _containers.RepeatedScalarFieldContainer[str]
    top_n: int
    return_documents: bool
    priority: _embedding_pb2.Priority
    truncate: _embedding_pb2.Truncate
    truncate_to: int
    tenant: str
    expire_time: _timestamp_pb2.Timestamp
    max_tokens_per_doc: int
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., model_revision: _Optional[str] = ..., query: _Optional[str] = ..., documents: _Optional[_Iterable[str]] = ..., top_n: _Optional[int] = ..., return_documents: bool = ..., priority: _Optional[_Union[_embedding_pb2.Priority, str]] = ..., truncate: _Optional[_Union[_embedding_pb2.Truncate, str]] = ..., truncate_to: _Optional[int] = ..., tenant: _Optional[str] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., max_tokens_per_doc: _Optional[int] = ...) -> None: ...

class RankedDocument(_message.Message):
    __slots__ = ("index", "score", "document", "token_count", "status")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    index: int
    score: float
    document: str
    token_count: int
    status: _embedding_pb2.Status
    def __init__(self, index: _Optional[int] = ..., score: _Optional[float] = ..., document: _Optional[str] = ..., token_count: _Optional[int] = ..., status: _Optional[_Union[_embedding_pb2.Status, _Mapping]] = ...) -> None: ...

class RankResponse(_message.Message):
    __slots__ = ("request_id", "model", "model_revision", "status", "results", "timings", "batch_id", "attempt", "reply_id", "replay", "cached")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
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
    results: _containers.RepeatedCompositeFieldContainer[RankedDocument]
    timings: _embedding_pb2.Timings
    batch_id: str
    attempt: int
    reply_id: str
    replay: bool
    cached: int
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., model_revision: _Optional[str] = ..., status: _Optional[_Union[_embedding_pb2.Status, _Mapping]] = ..., results: _Optional[_Iterable[_Union[RankedDocument, _Mapping]]] = ..., timings: _Optional[_Union[_embedding_pb2.Timings, _Mapping]] = ..., batch_id: _Optional[str] = ..., attempt: _Optional[int] = ..., reply_id: _Optional[str] = ..., replay: bool = ..., cached: _Optional[int] = ...) -> None: ...

class Pair(_message.Message):
    __slots__ = ("text", "second_text")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SECOND_TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    second_text: str
    def __init__(self, text: _Optional[str] = ..., second_text: _Optional[str] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("request_id", "model", "model_revision", "pairs", "priority", "truncate", "truncate_to", "tenant", "expire_time")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_TO_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    model_revision: str
    pairs: _containers.RepeatedCompositeFieldContainer[Pair]
    priority: _embedding_pb2.Priority
    truncate: _embedding_pb2.Truncate
    truncate_to: int
    tenant: str
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., model_revision: _Optional[str] = ..., pairs: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., priority: _Optional[_Union[_embedding_pb2.Priority, str]] = ..., truncate: _Optional[_Union[_embedding_pb2.Truncate, str]] = ..., truncate_to: _Optional[int] = ..., tenant: _Optional[str] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Scores(_message.Message):
    __slots__ = ("scores", "token_count", "status")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    token_count: int
    status: _embedding_pb2.Status
    def __init__(self, scores: _Optional[_Iterable[float]] = ..., token_count: _Optional[int] = ..., status: _Optional[_Union[_embedding_pb2.Status, _Mapping]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("request_id", "model", "model_revision", "status", "results", "timings", "batch_id", "attempt", "reply_id", "labels", "cached")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REPLY_ID_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    model_revision: str
    status: _embedding_pb2.Status
    results: _containers.RepeatedCompositeFieldContainer[Scores]
    timings: _embedding_pb2.Timings
    batch_id: str
    attempt: int
    reply_id: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    cached: int
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., model_revision: _Optional[str] = ..., status: _Optional[_Union[_embedding_pb2.Status, _Mapping]] = ..., results: _Optional[_Iterable[_Union[Scores, _Mapping]]] = ..., timings: _Optional[_Union[_embedding_pb2.Timings, _Mapping]] = ..., batch_id: _Optional[str] = ..., attempt: _Optional[int] = ..., reply_id: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., cached: _Optional[int] = ...) -> None: ...
