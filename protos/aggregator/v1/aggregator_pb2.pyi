from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetDemandRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetDemandResponse(_message.Message):
    __slots__ = ("busy_share", "models", "partitions", "streams")
    BUSY_SHARE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    busy_share: float
    models: _containers.RepeatedCompositeFieldContainer[ModelDemand]
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    streams: _containers.RepeatedCompositeFieldContainer[Stream]
    def __init__(self, busy_share: _Optional[float] = ..., models: _Optional[_Iterable[_Union[ModelDemand, _Mapping]]] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., streams: _Optional[_Iterable[_Union[Stream, _Mapping]]] = ...) -> None: ...

class ModelDemand(_message.Message):
    __slots__ = ("model", "other_tokens_per_s", "kafka_tokens_per_s", "held_tokens", "tokens_per_record", "replicas", "p99_s", "slo_s", "pending_requests", "kv_token_s_per_token")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OTHER_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    KAFKA_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    HELD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_RECORD_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    P99_S_FIELD_NUMBER: _ClassVar[int]
    SLO_S_FIELD_NUMBER: _ClassVar[int]
    PENDING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    KV_TOKEN_S_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    model: str
    other_tokens_per_s: float
    kafka_tokens_per_s: float
    held_tokens: int
    tokens_per_record: float
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    p99_s: float
    slo_s: float
    pending_requests: int
    kv_token_s_per_token: float
    def __init__(self, model: _Optional[str] = ..., other_tokens_per_s: _Optional[float] = ..., kafka_tokens_per_s: _Optional[float] = ..., held_tokens: _Optional[int] = ..., tokens_per_record: _Optional[float] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., p99_s: _Optional[float] = ..., slo_s: _Optional[float] = ..., pending_requests: _Optional[int] = ..., kv_token_s_per_token: _Optional[float] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("address", "token_budget", "step_time_s", "budget_at_floor", "kv_tokens")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_S_FIELD_NUMBER: _ClassVar[int]
    BUDGET_AT_FLOOR_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    address: str
    token_budget: int
    step_time_s: float
    budget_at_floor: bool
    kv_tokens: int
    def __init__(self, address: _Optional[str] = ..., token_budget: _Optional[int] = ..., step_time_s: _Optional[float] = ..., budget_at_floor: bool = ..., kv_tokens: _Optional[int] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("topic", "partition", "fetch_position", "model")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FETCH_POSITION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    fetch_position: int
    model: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., fetch_position: _Optional[int] = ..., model: _Optional[str] = ...) -> None: ...

class Stream(_message.Message):
    __slots__ = ("stream", "model", "waiting_entries", "tokens_per_entry")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WAITING_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_ENTRY_FIELD_NUMBER: _ClassVar[int]
    stream: str
    model: str
    waiting_entries: int
    tokens_per_entry: float
    def __init__(self, stream: _Optional[str] = ..., model: _Optional[str] = ..., waiting_entries: _Optional[int] = ..., tokens_per_entry: _Optional[float] = ...) -> None: ...
