from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_INTERACTIVE: _ClassVar[Priority]
    PRIORITY_DEFAULT: _ClassVar[Priority]
    PRIORITY_BACKGROUND: _ClassVar[Priority]
PRIORITY_UNSPECIFIED: Priority
PRIORITY_INTERACTIVE: Priority
PRIORITY_DEFAULT: Priority
PRIORITY_BACKGROUND: Priority

class EmbedBatchRequest(_message.Message):
    __slots__ = ("batch_id", "model", "model_revision", "token_ids", "lengths", "attempt", "isolate", "max_step_tokens", "second_segments", "span_counts", "spans", "priority", "max_shared_tokens")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ISOLATE_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECOND_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SPAN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MAX_SHARED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    model: str
    model_revision: str
    token_ids: bytes
    lengths: bytes
    attempt: int
    isolate: bool
    max_step_tokens: int
    second_segments: bytes
    span_counts: bytes
    spans: bytes
    priority: Priority
    max_shared_tokens: int
    def __init__(self, batch_id: _Optional[str] = ..., model: _Optional[str] = ..., model_revision: _Optional[str] = ..., token_ids: _Optional[bytes] = ..., lengths: _Optional[bytes] = ..., attempt: _Optional[int] = ..., isolate: bool = ..., max_step_tokens: _Optional[int] = ..., second_segments: _Optional[bytes] = ..., span_counts: _Optional[bytes] = ..., spans: _Optional[bytes] = ..., priority: _Optional[_Union[Priority, str]] = ..., max_shared_tokens: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("embeddings", "dimensions", "errors", "step_tokens", "step_duration_s", "queued_tokens", "idle_before_s", "staged_s", "decoding_sequences", "embed_room_tokens", "engine_s", "unclaimed_s", "recent_priorities")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_DURATION_S_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IDLE_BEFORE_S_FIELD_NUMBER: _ClassVar[int]
    STAGED_S_FIELD_NUMBER: _ClassVar[int]
    DECODING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    EMBED_ROOM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_S_FIELD_NUMBER: _ClassVar[int]
    UNCLAIMED_S_FIELD_NUMBER: _ClassVar[int]
    RECENT_PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    embeddings: bytes
    dimensions: int
    errors: _containers.RepeatedCompositeFieldContainer[QueryError]
    step_tokens: int
    step_duration_s: float
    queued_tokens: int
    idle_before_s: float
    staged_s: float
    decoding_sequences: int
    embed_room_tokens: int
    engine_s: float
    unclaimed_s: float
    recent_priorities: _containers.RepeatedScalarFieldContainer[Priority]
    def __init__(self, embeddings: _Optional[bytes] = ..., dimensions: _Optional[int] = ..., errors: _Optional[_Iterable[_Union[QueryError, _Mapping]]] = ..., step_tokens: _Optional[int] = ..., step_duration_s: _Optional[float] = ..., queued_tokens: _Optional[int] = ..., idle_before_s: _Optional[float] = ..., staged_s: _Optional[float] = ..., decoding_sequences: _Optional[int] = ..., embed_room_tokens: _Optional[int] = ..., engine_s: _Optional[float] = ..., unclaimed_s: _Optional[float] = ..., recent_priorities: _Optional[_Iterable[_Union[Priority, str]]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "seed", "stop_token_ids", "presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs", "ignore_eos")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logprobs: int
    ignore_eos: bool
    def __init__(self, max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., seed: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logprobs: _Optional[int] = ..., ignore_eos: bool = ...) -> None: ...

class StartSequence(_message.Message):
    __slots__ = ("sequence", "model", "model_revision", "token_ids", "sampling", "traceparent", "account", "priority")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    model: str
    model_revision: str
    token_ids: bytes
    sampling: Sampling
    traceparent: str
    account: int
    priority: Priority
    def __init__(self, sequence: _Optional[int] = ..., model: _Optional[str] = ..., model_revision: _Optional[str] = ..., token_ids: _Optional[bytes] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., traceparent: _Optional[str] = ..., account: _Optional[int] = ..., priority: _Optional[_Union[Priority, str]] = ...) -> None: ...

class GenerateCommand(_message.Message):
    __slots__ = ("start", "abort")
    START_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    start: StartSequence
    abort: int
    def __init__(self, start: _Optional[_Union[StartSequence, _Mapping]] = ..., abort: _Optional[int] = ...) -> None: ...

class FinishedSequence(_message.Message):
    __slots__ = ("sequence", "code", "message", "length", "stop_tokens")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    code: int
    message: str
    length: bool
    stop_tokens: int
    def __init__(self, sequence: _Optional[int] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., length: bool = ..., stop_tokens: _Optional[int] = ...) -> None: ...

class SequenceLogprobs(_message.Message):
    __slots__ = ("sequence", "width", "token_ids", "logprobs", "ranks")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    width: int
    token_ids: bytes
    logprobs: bytes
    ranks: bytes
    def __init__(self, sequence: _Optional[int] = ..., width: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., ranks: _Optional[bytes] = ...) -> None: ...

class GenerateStep(_message.Message):
    __slots__ = ("sequences", "counts", "token_ids", "finished", "logprobs", "step_duration_s", "free_kv_tokens", "running", "waiting_tokens", "embed_room_tokens", "decoding_sequences", "prompt_tokens", "embedding_tokens", "accounts", "account_seconds", "unclaimed_s")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STEP_DURATION_S_FIELD_NUMBER: _ClassVar[int]
    FREE_KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EMBED_ROOM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTS_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNCLAIMED_S_FIELD_NUMBER: _ClassVar[int]
    sequences: bytes
    counts: bytes
    token_ids: bytes
    finished: _containers.RepeatedCompositeFieldContainer[FinishedSequence]
    logprobs: _containers.RepeatedCompositeFieldContainer[SequenceLogprobs]
    step_duration_s: float
    free_kv_tokens: int
    running: int
    waiting_tokens: int
    embed_room_tokens: int
    decoding_sequences: int
    prompt_tokens: int
    embedding_tokens: int
    accounts: bytes
    account_seconds: bytes
    unclaimed_s: float
    def __init__(self, sequences: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., finished: _Optional[_Iterable[_Union[FinishedSequence, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[SequenceLogprobs, _Mapping]]] = ..., step_duration_s: _Optional[float] = ..., free_kv_tokens: _Optional[int] = ..., running: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., embed_room_tokens: _Optional[int] = ..., decoding_sequences: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., embedding_tokens: _Optional[int] = ..., accounts: _Optional[bytes] = ..., account_seconds: _Optional[bytes] = ..., unclaimed_s: _Optional[float] = ...) -> None: ...

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
    __slots__ = ("floor_s", "fixed_s", "per_token_s", "saturation_point", "rule", "max_tokens", "points", "measured_at", "backlog_tokens", "eager_s")
    FLOOR_S_FIELD_NUMBER: _ClassVar[int]
    FIXED_S_FIELD_NUMBER: _ClassVar[int]
    PER_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    SATURATION_POINT_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_AT_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EAGER_S_FIELD_NUMBER: _ClassVar[int]
    floor_s: float
    fixed_s: float
    per_token_s: float
    saturation_point: int
    rule: str
    max_tokens: int
    points: _containers.RepeatedCompositeFieldContainer[ProfilePoint]
    measured_at: str
    backlog_tokens: int
    eager_s: float
    def __init__(self, floor_s: _Optional[float] = ..., fixed_s: _Optional[float] = ..., per_token_s: _Optional[float] = ..., saturation_point: _Optional[int] = ..., rule: _Optional[str] = ..., max_tokens: _Optional[int] = ..., points: _Optional[_Iterable[_Union[ProfilePoint, _Mapping]]] = ..., measured_at: _Optional[str] = ..., backlog_tokens: _Optional[int] = ..., eager_s: _Optional[float] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("model", "model_revision", "tokenizer_fingerprint", "dimensions", "matryoshka_dimensions", "max_input_tokens", "step_token_capacity", "step_query_capacity", "normalizes", "query_prompt", "document_prompt", "profile", "engine", "engine_version", "dtype", "device", "vocabulary_size", "instance_id", "task", "generation", "tasks", "degraded", "capture_sizes", "labels", "pair_template", "pools_spans", "never_zero", "token_vectors")
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
    TASK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_SIZES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    PAIR_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    POOLS_SPANS_FIELD_NUMBER: _ClassVar[int]
    NEVER_ZERO_FIELD_NUMBER: _ClassVar[int]
    TOKEN_VECTORS_FIELD_NUMBER: _ClassVar[int]
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
    task: str
    generation: GenerationProfile
    tasks: _containers.RepeatedScalarFieldContainer[str]
    degraded: str
    capture_sizes: _containers.RepeatedScalarFieldContainer[int]
    labels: _containers.RepeatedScalarFieldContainer[str]
    pair_template: PairTemplate
    pools_spans: bool
    never_zero: bool
    token_vectors: TokenVectors
    def __init__(self, model: _Optional[str] = ..., model_revision: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., dimensions: _Optional[int] = ..., matryoshka_dimensions: _Optional[_Iterable[int]] = ..., max_input_tokens: _Optional[int] = ..., step_token_capacity: _Optional[int] = ..., step_query_capacity: _Optional[int] = ..., normalizes: bool = ..., query_prompt: _Optional[str] = ..., document_prompt: _Optional[str] = ..., profile: _Optional[_Union[SaturationProfile, _Mapping]] = ..., engine: _Optional[str] = ..., engine_version: _Optional[str] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., instance_id: _Optional[str] = ..., task: _Optional[str] = ..., generation: _Optional[_Union[GenerationProfile, _Mapping]] = ..., tasks: _Optional[_Iterable[str]] = ..., degraded: _Optional[str] = ..., capture_sizes: _Optional[_Iterable[int]] = ..., labels: _Optional[_Iterable[str]] = ..., pair_template: _Optional[_Union[PairTemplate, _Mapping]] = ..., pools_spans: bool = ..., never_zero: bool = ..., token_vectors: _Optional[_Union[TokenVectors, _Mapping]] = ...) -> None: ...

class TokenVectors(_message.Message):
    __slots__ = ("query_prefix", "document_prefix", "query_tokens", "document_tokens", "expansion_id", "expansion_tokens", "left_out_ids", "left_out_of_queries", "left_out_of_documents", "weights")
    QUERY_PREFIX_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_PREFIX_FIELD_NUMBER: _ClassVar[int]
    QUERY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPANSION_ID_FIELD_NUMBER: _ClassVar[int]
    EXPANSION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_IDS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_OF_QUERIES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_OF_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    query_prefix: _containers.RepeatedScalarFieldContainer[int]
    document_prefix: _containers.RepeatedScalarFieldContainer[int]
    query_tokens: int
    document_tokens: int
    expansion_id: int
    expansion_tokens: int
    left_out_ids: _containers.RepeatedScalarFieldContainer[int]
    left_out_of_queries: bool
    left_out_of_documents: bool
    weights: bool
    def __init__(self, query_prefix: _Optional[_Iterable[int]] = ..., document_prefix: _Optional[_Iterable[int]] = ..., query_tokens: _Optional[int] = ..., document_tokens: _Optional[int] = ..., expansion_id: _Optional[int] = ..., expansion_tokens: _Optional[int] = ..., left_out_ids: _Optional[_Iterable[int]] = ..., left_out_of_queries: bool = ..., left_out_of_documents: bool = ..., weights: bool = ...) -> None: ...

class PairTemplate(_message.Message):
    __slots__ = ("text", "token_types")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TYPES_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_types: bool
    def __init__(self, text: _Optional[str] = ..., token_types: bool = ...) -> None: ...

class GenerationProfile(_message.Message):
    __slots__ = ("fixed_s", "per_sequence_s", "per_token_s", "kv_tokens", "max_sequences", "context_tokens")
    FIXED_S_FIELD_NUMBER: _ClassVar[int]
    PER_SEQUENCE_S_FIELD_NUMBER: _ClassVar[int]
    PER_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    fixed_s: float
    per_sequence_s: float
    per_token_s: float
    kv_tokens: int
    max_sequences: int
    context_tokens: int
    def __init__(self, fixed_s: _Optional[float] = ..., per_sequence_s: _Optional[float] = ..., per_token_s: _Optional[float] = ..., kv_tokens: _Optional[int] = ..., max_sequences: _Optional[int] = ..., context_tokens: _Optional[int] = ...) -> None: ...

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
