"""From a configuration to frozen dataclasses and back: the dataclass is what the yaml builds.

Every problem of a configuration is found before anything runs, and all are told at once.
Numbers in any notation are numbers. Only dataclasses of this package are ever built, since a
configuration can come from another machine.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_TARGET = "_target_"
_PACKAGE = "dpfed_kan."
_MISSING = "???"


class ConfigError(ValueError):
    """What is wrong with a configuration, one line a problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def build(config: Mapping[str, Any]) -> Any:
    """Build the object that a configuration describes.

    Args:
        config: Plain data; each node with a `_target_` becomes that dataclass.

    Raises:
        ConfigError: With every missing value, unknown key (and the nearest known one), value of
            a wrong type or out of range.
    """
    problems: list[str] = []
    built = _build_node(config, "", problems)
    if problems:
        raise ConfigError(problems)
    return built


def build_as(cls: type[Any], config: Mapping[str, Any]) -> Any:
    """Build an object whose class is known, so that its configuration need not name it.

    Raises:
        ConfigError: As `build`.
    """
    return build({**config, _TARGET: f"{cls.__module__}.{cls.__qualname__}"})


def to_config(value: Any) -> Any:
    """Return the configuration that builds an equal object."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        cls = type(value)
        members = {f.name: to_config(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {_TARGET: f"{cls.__module__}.{cls.__qualname__}", **members}
    if isinstance(value, tuple):
        return [to_config(item) for item in value]
    return value


def drop_interpolated(settings: dict[str, Any]) -> None:
    """Drop what of a resolved configuration builds nothing: partition, data.root, stop_at_failure.

    The first two serve interpolation only, the last a sweep.
    """
    settings.pop("partition", None)
    settings.pop("stop_at_failure", None)
    if isinstance(settings.get("data"), dict):
        settings["data"].pop("root", None)


def nearest(name: str, names: list[str]) -> str:
    """Return ' (did you mean ...?)' or the list of what there is."""
    match = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {match[0]}?" if match else f"; there are {', '.join(sorted(names))}"


def _build_node(config: Mapping[str, Any], path: str, problems: list[str]) -> Any:
    cls = _target_class(config)
    if cls is None:
        problems.append(
            f"{path or 'the configuration'}: expected {_TARGET} to name a dataclass of "
            f"{_PACKAGE.rstrip('.')}, got {config.get(_TARGET)!r}"
        )
        return None
    hints = get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    before = len(problems)
    arguments = {}
    for key, value in config.items():
        where = f"{path}.{key}" if path else str(key)
        if key == _TARGET:
            continue
        if key not in fields:
            names = [f"{path}.{name}" if path else name for name in fields]
            problems.append(f"{where}: unknown setting{nearest(where, names)}")
        elif value == _MISSING:
            problems.append(f"{where}: a value is required")
        else:
            arguments[key] = _convert(value, hints[key], where, problems)
    for name, field in fields.items():
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and name not in config:
            problems.append(f"{path}.{name}: a value is required".lstrip("."))
    if len(problems) > before:
        return None
    try:
        return cls(**arguments)
    except (ValueError, TypeError) as error:
        problems.append(f"{path}: {error}".lstrip(": "))
        return None


def _target_class(config: Mapping[str, Any]) -> type[Any] | None:
    target = config.get(_TARGET)
    if not isinstance(target, str) or not target.startswith(_PACKAGE):
        return None
    module, _, name = target.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError:
        return None
    return cls if isinstance(cls, type) and dataclasses.is_dataclass(cls) else None


def _convert(value: Any, hint: Any, where: str, problems: list[str]) -> Any:
    """Return the value as the field's type, or note the problem."""
    options = _options(hint)
    if isinstance(value, Mapping):
        before = len(problems)
        named = _named(value, options, where, problems)
        if named is None:
            return None
        built = _build_node(named, where, problems)
        classes = tuple(o for o in options if isinstance(o, type) and dataclasses.is_dataclass(o))
        if len(problems) == before and classes and not isinstance(built, classes):
            wanted = " or ".join(cls.__name__ for cls in classes)
            problems.append(f"{where}: expected {wanted}, got {type(built).__name__}")
        return built
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        inner = [get_args(o)[0] for o in options if get_origin(o) is tuple]
        if inner:
            return tuple(
                _convert(item, inner[0], f"{where}[{place}]", problems)
                for place, item in enumerate(value)
            )
    converted, fits = _as_any(value, options)
    if fits:
        return converted
    wanted = " or ".join(_name(option) for option in options)
    lists = any(get_origin(option) is tuple for option in options)
    hint = f"; a list is written in brackets, as [{value}]" if lists and _scalar(value) else ""
    problems.append(f"{where}: expected {wanted}, got {value!r}{hint}")
    return None


def _named(
    config: Mapping[str, Any], options: tuple[Any, ...], where: str, problems: list[str]
) -> Mapping[str, Any] | None:
    """Return a node with the `_target_` that its field implies, or note the problem.

    A field of one dataclass needs no name; one of several takes `type`, the class's name.
    """
    classes = [o for o in options if isinstance(o, type) and dataclasses.is_dataclass(o)]
    if _TARGET in config or not classes:
        return config
    names = {cls.__name__.lower(): cls for cls in classes}
    if len(classes) == 1:
        (cls,) = classes
    elif str(config.get("type")).lower() in names:
        cls = names[str(config["type"]).lower()]
    else:
        problems.append(f"{where}: expected type to be one of {', '.join(names)}")
        return None
    members = {key: value for key, value in config.items() if len(classes) == 1 or key != "type"}
    return {**members, _TARGET: f"{cls.__module__}.{cls.__qualname__}"}


def _options(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(option for part in get_args(hint) for option in _options(part))
    return (hint,)


def _as(value: Any, option: Any) -> tuple[Any, bool]:
    """Return (value as `option`, whether that works); nothing is guessed across types."""
    if option is type(None):
        return None, value is None
    if get_origin(option) is Literal:
        return value, value in get_args(option)
    if option is bool or isinstance(value, bool):
        return value, option is bool and isinstance(value, bool)
    if option in (int, float):
        number = _number(value)
        if number is None or (option is int and not float(number).is_integer()):
            return None, False
        return (int(number) if option is int else float(number)), True
    if option is str:
        return value, isinstance(value, str)
    if get_origin(option) is tuple and isinstance(value, list | tuple):
        items = [_as_any(item, _options(get_args(option)[0])) for item in value]
        return tuple(item for item, _ in items), all(fits for _, fits in items)
    return None, False


def _as_any(value: Any, options: tuple[Any, ...]) -> tuple[Any, bool]:
    for option in options:
        converted, fits = _as(value, option)
        if fits:
            return converted, True
    return None, False


def _number(value: Any) -> int | float | None:
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _scalar(value: Any) -> bool:
    return isinstance(value, int | float | str)


def _name(option: Any) -> str:
    if get_origin(option) is Literal:
        return "one of " + ", ".join(map(str, get_args(option)))
    if dataclasses.is_dataclass(option) or getattr(option, "_is_protocol", False):
        return f"a {option.__name__} (a node with {_TARGET})"
    if get_origin(option) is tuple:
        items = " or ".join(_name(item) for item in _options(get_args(option)[0]))
        return f"a list of {items}"
    text = "text (in quotes if it is yes, no, null or a date)"
    return {
        str: text,
        int: "an integer",
        float: "a number",
        type(None): "null",
        bool: "true or false",
    }.get(option, getattr(option, "__name__", str(option)))
