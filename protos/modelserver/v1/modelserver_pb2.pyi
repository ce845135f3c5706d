from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EmbedBatchRequest(_message.Message):
    __slots__ = ("batch_id", "model", "model_revision", "token_ids", "lengths", "attempt", "isolate", "max_step_tokens")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ISOLATE_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    model: str
    model_revision: str
    token_ids: bytes
    lengths: bytes
    attempt: int
    isolate: bool
    max_step_tokens: int
    def __init__(self, batch_id: _Optional[str] = ..., model: _Optional[str] = ..., model_revision: _Optional[str] = ..., token_ids: _Optional[bytes] = ..., lengths: _Optional[bytes] = ..., attempt: _Optional[int] = ..., isolate: bool = ..., max_step_tokens: _Optional[int] = ...) -> None: ...

class QueryError(_message.Message):
    __slots__ = ("index", "code", "message")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    index: int
    code: int
    message: str
    def __init__(self, index: _Optional[int] = ..., code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class EmbedBatchResponse(_message.Message):
    __slots__ = ("embeddings", "dimensions", "errors", "step_tokens", "step_duration_s", "queued_tokens", "idle_before_s", "staged_s")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_DURATION_S_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IDLE_BEFORE_S_FIELD_NUMBER: _ClassVar[int]
    STAGED_S_FIELD_NUMBER: _ClassVar[int]
    embeddings: bytes
    dimensions: int
    errors: _containers.RepeatedCompositeFieldContainer[QueryError]
    step_tokens: int
    step_duration_s: float
    queued_tokens: int
    idle_before_s: float
    staged_s: float
    def __init__(self, embeddings: _Optional[bytes] = ..., dimensions: _Optional[int] = ..., errors: _Optional[_Iterable[_Union[QueryError, _Mapping]]] = ..., step_tokens: _Optional[int] = ..., step_duration_s: _Optional[float] = ..., queued_tokens: _Optional[int] = ..., idle_before_s: _Optional[float] = ..., staged_s: _Optional[float] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProfilePoint(_message.Message):
    __slots__ = ("step_tokens", "step_duration_s")
    STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_DURATION_S_FIELD_NUMBER: _ClassVar[int]
    step_tokens: int
    step_duration_s: float
    def __init__(self, step_tokens: _Optional[int] = ..., step_duration_s: _Optional[float] = ...) -> None: ...

class SaturationProfile(_message.Message):
    __slots__ = ("floor_s", "fixed_s", "per_token_s", "saturation_point", "rule", "max_tokens", "points", "measured_at", "backlog_tokens")
    FLOOR_S_FIELD_NUMBER: _ClassVar[int]
    FIXED_S_FIELD_NUMBER: _ClassVar[int]
    PER_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    SATURATION_POINT_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_AT_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_TOKENS_FIELD_NUMBER: _ClassVar[int]
    floor_s: float
    fixed_s: float
    per_token_s: float
    saturation_point: int
    rule: str
    max_tokens: int
    points: _containers.RepeatedCompositeFieldContainer[ProfilePoint]
    measured_at: str
    backlog_tokens: int
    def __init__(self, floor_s: _Optional[float] = ..., fixed_s: _Optional[float] = ..., per_token_s: _Optional[float] = ..., saturation_point: _Optional[int] = ..., rule: _Optional[str] = ..., max_tokens: _Optional[int] = ..., points: _Optional[_Iterable[_Union[ProfilePoint, _Mapping]]] = ..., measured_at: _Optional[str] = ..., backlog_tokens: _Optional[int] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("model", "model_revision", "tokenizer_fingerprint", "dimensions", "matryoshka_dimensions", "max_input_tokens", "step_token_capacity", "step_query_capacity", "normalizes", "query_prompt", "document_prompt", "profile", "engine", "engine_version", "dtype", "device", "vocabulary_size", "instance_id")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    MATRYOSHKA_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_TOKEN_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    STEP_QUERY_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    NORMALIZES_FIELD_NUMBER: _ClassVar[int]
    QUERY_PROMPT_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_PROMPT_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    model: str
    model_revision: str
    tokenizer_fingerprint: str
    dimensions: int
    matryoshka_dimensions: _containers.RepeatedScalarFieldContainer[int]
    max_input_tokens: int
    step_token_capacity: int
    step_query_capacity: int
    normalizes: bool
    query_prompt: str
    document_prompt: str
    profile: SaturationProfile
    engine: str
    engine_version: str
    dtype: str
    device: str
    vocabulary_size: int
    instance_id: str
    def __init__(self, model: _Optional[str] = ..., model_revision: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., dimensions: _Optional[int] = ..., matryoshka_dimensions: _Optional[_Iterable[int]] = ..., max_input_tokens: _Optional[int] = ..., step_token_capacity: _Optional[int] = ..., step_query_capacity: _Optional[int] = ..., normalizes: bool = ..., query_prompt: _Optional[str] = ..., document_prompt: _Optional[str] = ..., profile: _Optional[_Union[SaturationProfile, _Mapping]] = ..., engine: _Optional[str] = ..., engine_version: _Optional[str] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., instance_id: _Optional[str] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TokenizerChunk(_message.Message):
    __slots__ = ("file_name", "data")
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file_name: str
    data: bytes
    def __init__(self, file_name: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...
