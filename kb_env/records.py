"""The frozen dataclasses as msgpack bytes and back, with every type checked on the way in.

This is the only serialisation between processes and on disk: data, never code. Reading checks
each field against its annotation, so that bytes from a hostile or damaged source either become
exactly the dataclass asked for or raise :class:`RecordError`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

import msgpack

T = TypeVar("T")

#: Largest string, bytes, array or map accepted on reading (bytes or entries).
LIMIT = 1 << 28


class RecordError(ValueError):
    """Bytes that are not the record they were read as."""


def plain(value: object) -> Any:
    """The value as msgpack-able plain data: dataclasses become maps of their fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        data = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if type(value).__name__ in _TAGGED:
            data["@"] = type(value).__name__
        return data
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    raise TypeError(f"{type(value).__name__} has no record form")


#: Dataclasses that stand in unions and therefore carry their name.
_TAGGED = frozenset({"Launch", "Fill", "Copy", "Upload"})


def pack(value: object) -> bytes:
    """msgpack bytes of a dataclass (or of plain data)."""
    packed: bytes = msgpack.packb(plain(value), use_bin_type=True, unicode_errors="surrogatepass")
    return packed


def unpack(cls: type[T], data: bytes) -> T:
    """Read ``data`` as ``cls``.

    Raises:
        RecordError: if the bytes are not msgpack, or not exactly of that shape.
    """
    return from_plain(cls, unpack_plain(data))


def unpack_plain(data: bytes) -> Any:
    """Plain data from msgpack bytes; raises RecordError on anything else."""
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=False,
            unicode_errors="surrogatepass",
            max_str_len=LIMIT,
            max_bin_len=LIMIT,
            max_array_len=LIMIT,
            max_map_len=LIMIT,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise RecordError(f"not a record: {error}") from error


def from_plain(cls: Any, value: Any) -> Any:
    """Check ``value`` against the type ``cls`` (a dataclass, container, union or scalar)."""
    return _read(cls, value, "record")


def _read(cls: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(cls)
    if origin in (typing.Union, types.UnionType):
        return _read_union(typing.get_args(cls), value, where)
    if origin is tuple:
        return _read_tuple(typing.get_args(cls), value, where)
    if origin is list:
        (item,) = typing.get_args(cls)
        return [_read(item, entry, where) for entry in _expect(value, list, where)]
    if origin is not None and issubclass(origin, Mapping):
        key_type, item_type = typing.get_args(cls)
        return {
            _read(key_type, key, where): _read(item_type, entry, f"{where}.{key}")
            for key, entry in _expect(value, dict, where).items()
        }
    if dataclasses.is_dataclass(cls):
        return _read_dataclass(cls, value, where)
    if isinstance(cls, type) and issubclass(cls, Enum):
        try:
            return cls(value)
        except ValueError as error:
            raise RecordError(f"{where}: {value!r} is no {cls.__name__}") from error
    if cls is Any or cls is object:
        return value
    return _expect(value, cls, where)


def _expect(value: Any, cls: type, where: str) -> Any:
    if cls is float and type(value) is int:
        return float(value)
    exact = type(value) is cls if cls in (int, float, bool, str, bytes) else isinstance(value, cls)
    if not exact:
        raise RecordError(f"{where}: {type(value).__name__} where {getattr(cls, '__name__', cls)} belongs")
    return value


def _read_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    if isinstance(value, dict) and "@" in value:
        for option in options:
            if getattr(option, "__name__", "") == value["@"]:
                return _read(option, value, where)
    # An int field may share a union with float: the exact type wins.
    for option in options:
        if option is type(value):
            return value
    for option in options:
        if option is type(None):
            continue
        try:
            return _read(option, value, where)
        except RecordError:
            continue
    raise RecordError(f"{where}: {type(value).__name__} fits none of the allowed types")


def _read_tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    items = _expect(value, list, where)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_read(args[0], item, f"{where}[{i}]") for i, item in enumerate(items))
    if len(items) != len(args):
        raise RecordError(f"{where}: {len(items)} items where {len(args)} belong")
    return tuple(
        _read(arg, item, f"{where}[{i}]") for i, (arg, item) in enumerate(zip(args, items, strict=True))
    )


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _read_dataclass(cls: Any, value: Any, where: str) -> Any:
    data = _expect(value, dict, where)
    hints = _hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls)}
    for name in data:
        if name not in known and name != "@":
            raise RecordError(f"{where}: {cls.__name__} has no field {name!r}")
    arguments = {}
    for name, spec in known.items():
        if name in data:
            arguments[name] = _read(hints[name], data[name], f"{where}.{name}")
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise RecordError(f"{where}: {cls.__name__} lacks {name!r}")
    return cls(**arguments)
