from chairlift.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VectorFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VECTOR_FORMAT_UNSPECIFIED: _ClassVar[VectorFormat]
    VECTOR_FORMAT_FLOAT32: _ClassVar[VectorFormat]
    VECTOR_FORMAT_FLOAT16: _ClassVar[VectorFormat]
    VECTOR_FORMAT_INT8: _ClassVar[VectorFormat]
    VECTOR_FORMAT_BINARY: _ClassVar[VectorFormat]

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_UNSPECIFIED: _ClassVar[Pooling]
    POOLING_LAST: _ClassVar[Pooling]
    POOLING_MEAN: _ClassVar[Pooling]
    POOLING_FIRST: _ClassVar[Pooling]
    POOLING_MAX: _ClassVar[Pooling]
VECTOR_FORMAT_UNSPECIFIED: VectorFormat
VECTOR_FORMAT_FLOAT32: VectorFormat
VECTOR_FORMAT_FLOAT16: VectorFormat
VECTOR_FORMAT_INT8: VectorFormat
VECTOR_FORMAT_BINARY: VectorFormat
POOLING_UNSPECIFIED: Pooling
POOLING_LAST: Pooling
POOLING_MEAN: Pooling
POOLING_FIRST: Pooling
POOLING_MAX: Pooling

class EmbedRequest(_message.Message):
    __slots__ = ("model", "inputs", "options")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[EmbedInput]
    options: EmbedOptions
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[EmbedInput, _Mapping]]] = ..., options: _Optional[_Union[EmbedOptions, _Mapping]] = ...) -> None: ...

class EmbedOptions(_message.Message):
    __slots__ = ("pooling", "normalize", "dimensions", "add_special_tokens", "truncate_prompt", "truncate_end", "format", "prompt_name")
    POOLING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_PROMPT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_END_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    pooling: Pooling
    normalize: bool
    dimensions: int
    add_special_tokens: bool
    truncate_prompt: int
    truncate_end: bool
    format: VectorFormat
    prompt_name: str
    def __init__(self, pooling: _Optional[_Union[Pooling, str]] = ..., normalize: bool = ..., dimensions: _Optional[int] = ..., add_special_tokens: bool = ..., truncate_prompt: _Optional[int] = ..., truncate_end: bool = ..., format: _Optional[_Union[VectorFormat, str]] = ..., prompt_name: _Optional[str] = ...) -> None: ...

class EmbedInput(_message.Message):
    __slots__ = ("text", "token_ids", "text_pair")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_PAIR_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _generation_pb2.TokenIds
    text_pair: str
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[_generation_pb2.TokenIds, _Mapping]] = ..., text_pair: _Optional[str] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("embeddings",)
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    embeddings: _containers.RepeatedCompositeFieldContainer[Embedding]
    def __init__(self, embeddings: _Optional[_Iterable[_Union[Embedding, _Mapping]]] = ...) -> None: ...

class Embedding(_message.Message):
    __slots__ = ("values", "num_prompt_tokens", "packed")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    num_prompt_tokens: int
    packed: bytes
    def __init__(self, values: _Optional[_Iterable[float]] = ..., num_prompt_tokens: _Optional[int] = ..., packed: _Optional[bytes] = ...) -> None: ...

class ClassifyRequest(_message.Message):
    __slots__ = ("model", "inputs", "add_special_tokens", "truncate_end")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_END_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[EmbedInput]
    add_special_tokens: bool
    truncate_end: bool
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[EmbedInput, _Mapping]]] = ..., add_special_tokens: bool = ..., truncate_end: bool = ...) -> None: ...

class ClassifyResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Classification]
    def __init__(self, results: _Optional[_Iterable[_Union[Classification, _Mapping]]] = ...) -> None: ...

class Classification(_message.Message):
    __slots__ = ("scores", "num_prompt_tokens")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedCompositeFieldContainer[LabelScore]
    num_prompt_tokens: int
    def __init__(self, scores: _Optional[_Iterable[_Union[LabelScore, _Mapping]]] = ..., num_prompt_tokens: _Optional[int] = ...) -> None: ...

class LabelScore(_message.Message):
    __slots__ = ("label", "score")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    label: str
    score: float
    def __init__(self, label: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class RerankRequest(_message.Message):
    __slots__ = ("model", "query", "documents", "top_n", "truncate_end")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_END_FIELD_NUMBER: _ClassVar[int]
    model: str
    query: str
    documents: _containers.RepeatedScalarFieldContainer[str]
    top_n: int
    truncate_end: bool
    def __init__(self, model: _Optional[str] = ..., query: _Optional[str] = ..., documents: _Optional[_Iterable[str]] = ..., top_n: _Optional[int] = ..., truncate_end: bool = ...) -> None: ...

class RerankResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[RankedDocument]
    def __init__(self, results: _Optional[_Iterable[_Union[RankedDocument, _Mapping]]] = ...) -> None: ...

class RankedDocument(_message.Message):
    __slots__ = ("index", "score", "num_prompt_tokens")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    index: int
    score: float
    num_prompt_tokens: int
    def __init__(self, index: _Optional[int] = ..., score: _Optional[float] = ..., num_prompt_tokens: _Optional[int] = ...) -> None: ...

class EmbedStreamRequest(_message.Message):
    __slots__ = ("model", "options", "request_id", "input")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    model: str
    options: EmbedOptions
    request_id: str
    input: EmbedInput
    def __init__(self, model: _Optional[str] = ..., options: _Optional[_Union[EmbedOptions, _Mapping]] = ..., request_id: _Optional[str] = ..., input: _Optional[_Union[EmbedInput, _Mapping]] = ...) -> None: ...

class EmbedStreamResponse(_message.Message):
    __slots__ = ("request_id", "embedding", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    embedding: Embedding
    error: _generation_pb2.Error
    def __init__(self, request_id: _Optional[str] = ..., embedding: _Optional[_Union[Embedding, _Mapping]] = ..., error: _Optional[_Union[_generation_pb2.Error, _Mapping]] = ...) -> None: ...
