"""The strict binder: from plain containers to frozen dataclasses, exactly or not at all.

OmegaConf's structured configs turn 5 into '5' and "8" into 8 without a word; here a value has the declared type
or is refused, an unknown key is refused with the nearest spelling, and a missing one is refused too.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from forge_pipeline.errors import ConfigError, did_you_mean
from forge_pipeline.locate import conf_dir

T = TypeVar("T")


def defaults(file: str) -> dict[str, Any]:
    """Return the options of a file below conf/, such as `load/default.yaml`."""
    import yaml

    options: dict[str, Any] = yaml.safe_load((conf_dir() / file).read_text())
    return options


def bind(cls: type[T], values: object, *, where: str) -> T:
    """Return ``cls(**values)`` after checking every key and type; ``where`` names the section in refusals.

    ``cls`` is a dataclass. Understood types: None, bool, int, float (an int is taken), str, Literal, unions,
    list[X], tuple[X, ...], dict[str, X] and nested dataclasses. Raises ConfigError.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(where, f"a section with {_keys(cls)}", _show(values), "write it as `key: value` lines")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            raise ConfigError(
                where=f"{where}.{key}" if where else str(key),
                expected=_keys(cls),
                found=f"unknown option {key!r}",
                fix=f"{did_you_mean(str(key), fields)}correct the name or remove it",
            )
    bound: dict[str, Any] = {}
    for name, field in fields.items():
        place = f"{where}.{name}" if where else name
        if name in values:
            bound[name] = _value(hints[name], values[name], place)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(place, f"a value ({_type_name(hints[name])})", "nothing", f"set `{place}`")
    return cls(**bound)


def _value(hint: Any, value: object, where: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _union(hint, value, where)
    if origin is Literal:
        choices = get_args(hint)
        if any(value == choice and type(value) is type(choice) for choice in choices):
            return value
        near = did_you_mean(str(value), [str(choice) for choice in choices])
        raise ConfigError(where, f"one of {', '.join(map(str, choices))}", _show(value), f"{near}choose one of those")
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return bind(typing.cast(type, hint), value, where=where)
    if origin in (list, tuple) and isinstance(value, list | tuple):
        item = get_args(hint)[0]
        items = [_value(item, entry, f"{where}[{index}]") for index, entry in enumerate(value)]
        return items if origin is list else tuple(items)
    if origin is dict and isinstance(value, Mapping):
        item = get_args(hint)[1]
        return {_value(str, key, where): _value(item, entry, f"{where}.{key}") for key, entry in value.items()}
    if hint is float and type(value) is int:
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    if hint is types.NoneType and value is None:
        return None
    raise ConfigError(where, _type_name(hint), _show(value), f"give `{where}` as {_type_name(hint)}")


def _union(hint: Any, value: object, where: str) -> Any:
    refusals = []
    for option in get_args(hint):
        try:
            return _value(option, value, where)
        except ConfigError as refusal:
            refusals.append(refusal)
    if value is not None and len(refusals) == 2 and types.NoneType in get_args(hint):
        raise next(r for o, r in zip(get_args(hint), refusals, strict=True) if o is not types.NoneType)
    raise ConfigError(where, _type_name(hint), _show(value), f"give `{where}` as {_type_name(hint)}")


def _keys(cls: type) -> str:
    return "options " + ", ".join(field.name for field in dataclasses.fields(cls))


def _type_name(hint: Any) -> str:
    if hint is types.NoneType or hint is None:
        return "null"
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_name(option) for option in get_args(hint))
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if origin in (list, tuple):
        return f"a list of {_type_name(get_args(hint)[0])}"
    if origin is dict:
        return f"a mapping to {_type_name(get_args(hint)[1])}"
    return getattr(hint, "__name__", str(hint))


def _show(value: object) -> str:
    return f"{value!r} ({type(value).__name__})" if value is not None else "null"
