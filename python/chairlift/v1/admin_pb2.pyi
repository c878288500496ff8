import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AdapterState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADAPTER_STATE_UNSPECIFIED: _ClassVar[AdapterState]
    ADAPTER_STATE_LOADING: _ClassVar[AdapterState]
    ADAPTER_STATE_READY: _ClassVar[AdapterState]
    ADAPTER_STATE_UNLOADING: _ClassVar[AdapterState]
ADAPTER_STATE_UNSPECIFIED: AdapterState
ADAPTER_STATE_LOADING: AdapterState
ADAPTER_STATE_READY: AdapterState
ADAPTER_STATE_UNLOADING: AdapterState

class LoadAdapterRequest(_message.Message):
    __slots__ = ("name", "folder", "tenants")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    folder: str
    tenants: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., folder: _Optional[str] = ..., tenants: _Optional[_Iterable[str]] = ...) -> None: ...

class LoadAdapterResponse(_message.Message):
    __slots__ = ("adapter",)
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    adapter: Adapter
    def __init__(self, adapter: _Optional[_Union[Adapter, _Mapping]] = ...) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("name", "timeout")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    timeout: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class UnloadAdapterResponse(_message.Message):
    __slots__ = ("num_failed",)
    NUM_FAILED_FIELD_NUMBER: _ClassVar[int]
    num_failed: int
    def __init__(self, num_failed: _Optional[int] = ...) -> None: ...

class ListAdaptersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAdaptersResponse(_message.Message):
    __slots__ = ("adapters", "max_adapters", "max_adapter_rank")
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_ADAPTER_RANK_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    max_adapters: int
    max_adapter_rank: int
    def __init__(self, adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ..., max_adapters: _Optional[int] = ..., max_adapter_rank: _Optional[int] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "state", "rank", "num_bytes", "tenants", "generation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: AdapterState
    rank: int
    num_bytes: int
    tenants: _containers.RepeatedScalarFieldContainer[str]
    generation: int
    def __init__(self, name: _Optional[str] = ..., state: _Optional[_Union[AdapterState, str]] = ..., rank: _Optional[int] = ..., num_bytes: _Optional[int] = ..., tenants: _Optional[_Iterable[str]] = ..., generation: _Optional[int] = ...) -> None: ...
