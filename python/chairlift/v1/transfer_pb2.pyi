from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PrefillRequest(_message.Message):
    __slots__ = ("layout", "token_ids", "first_block", "scope", "ticket", "instance", "shared_memory")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    layout: bytes
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    first_block: int
    scope: str
    ticket: str
    instance: str
    shared_memory: SharedMemory
    def __init__(self, layout: _Optional[bytes] = ..., token_ids: _Optional[_Iterable[int]] = ..., first_block: _Optional[int] = ..., scope: _Optional[str] = ..., ticket: _Optional[str] = ..., instance: _Optional[str] = ..., shared_memory: _Optional[_Union[SharedMemory, _Mapping]] = ...) -> None: ...

class SharedMemory(_message.Message):
    __slots__ = ("host", "pid", "fd", "size", "nonce")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    FD_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    host: str
    pid: int
    fd: int
    size: int
    nonce: bytes
    def __init__(self, host: _Optional[str] = ..., pid: _Optional[int] = ..., fd: _Optional[int] = ..., size: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class PrefillResponse(_message.Message):
    __slots__ = ("accepted", "blocks", "end")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    accepted: PrefillAccepted
    blocks: PrefillBlocks
    end: PrefillEnd
    def __init__(self, accepted: _Optional[_Union[PrefillAccepted, _Mapping]] = ..., blocks: _Optional[_Union[PrefillBlocks, _Mapping]] = ..., end: _Optional[_Union[PrefillEnd, _Mapping]] = ...) -> None: ...

class PrefillAccepted(_message.Message):
    __slots__ = ("instance", "uses_shared_memory")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    USES_SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    instance: str
    uses_shared_memory: bool
    def __init__(self, instance: _Optional[str] = ..., uses_shared_memory: bool = ...) -> None: ...

class PrefillBlocks(_message.Message):
    __slots__ = ("indices", "data", "checksums", "is_shared")
    INDICES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    IS_SHARED_FIELD_NUMBER: _ClassVar[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    checksums: _containers.RepeatedScalarFieldContainer[int]
    is_shared: bool
    def __init__(self, indices: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., checksums: _Optional[_Iterable[int]] = ..., is_shared: bool = ...) -> None: ...

class PrefillEnd(_message.Message):
    __slots__ = ("computed_tokens",)
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    computed_tokens: int
    def __init__(self, computed_tokens: _Optional[int] = ...) -> None: ...
