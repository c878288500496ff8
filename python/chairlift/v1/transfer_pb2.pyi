from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PrefillRequest(_message.Message):
    __slots__ = ("layout", "token_ids", "first_block", "scope", "ticket", "instance")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    layout: bytes
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    first_block: int
    scope: str
    ticket: str
    instance: str
    def __init__(self, layout: _Optional[bytes] = ..., token_ids: _Optional[_Iterable[int]] = ..., first_block: _Optional[int] = ..., scope: _Optional[str] = ..., ticket: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("instance",)
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    instance: str
    def __init__(self, instance: _Optional[str] = ...) -> None: ...

class PrefillBlocks(_message.Message):
    __slots__ = ("indices", "data", "checksums")
    INDICES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    checksums: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, indices: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., checksums: _Optional[_Iterable[int]] = ...) -> None: ...

class PrefillEnd(_message.Message):
    __slots__ = ("computed_tokens",)
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    computed_tokens: int
    def __init__(self, computed_tokens: _Optional[int] = ...) -> None: ...
