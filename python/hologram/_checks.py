"""Checks of arguments by the annotations of public functions: a wrong one is an error that names the parameter."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable
from typing import Any

from ._native import Tensor


def _tensor(value: Any) -> str | None:
    return None if isinstance(value, Tensor) else "a tensor (hologram.asarray makes one)"


def _truth(value: Any) -> str | None:
    # NumPy's type is called bool or bool_.
    return None if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_") else "True or False"


def _whole(value: Any) -> str | None:
    try:
        operator.index(value)
    except TypeError:
        return "a whole number"
    return None


def _number(value: Any) -> str | None:
    if isinstance(value, (int, float)) or (hasattr(value, "__float__") and not getattr(value, "ndim", 0)):
        return None
    return "a number"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "a string"


def _device(value: Any) -> str | None:
    known = value is None or isinstance(value, str) or type(value).__name__ == "Device"
    return None if known else 'a name such as "cpu"'


_BY_TYPE: dict[str, Callable[[Any], str | None]] = {
    "Tensor": _tensor,
    "bool": _truth,
    "builtins.bool": _truth,
    "int": _whole,
    "float": _number,
    "str": _text,
}


def _check_of(parameter: str, annotation: str) -> tuple[str, Callable[[Any], str | None], bool] | None:
    """The check of a parameter, and whether None passes; None where the function itself checks it."""
    if parameter == "device":
        return parameter, _device, True
    kinds = annotation.split(" | ")
    rest = [one for one in kinds if one != "None"]
    check = _BY_TYPE.get(rest[0]) if len(rest) == 1 else None
    return None if check is None else (parameter, check, "None" in kinds)


def _checked(function: types.FunctionType, name: str) -> Callable[..., Any]:
    code, annotations = function.__code__, function.__annotations__
    count = code.co_argcount + code.co_kwonlyargcount
    checks = [_check_of(one, annotations.get(one, "")) for one in code.co_varnames[:count]]
    others = None
    if code.co_flags & 4:  # *arguments
        one = code.co_varnames[count]
        others = _check_of(one, annotations.get(one, ""))
    named = {check[0]: check for check in checks if check is not None}
    if not named and others is None:
        return function
    positional = checks[: code.co_argcount]
    # The usual case has a shorter way: of the arguments by place, only the first one is checked, as a tensor.
    only_first = others is None and [check and check[1] for check in positional] == [_tensor] + [None] * (
        len(positional) - 1
    )

    def verify(check: tuple[str, Callable[[Any], str | None], bool] | None, value: Any) -> None:
        if check is not None:
            parameter, find, is_optional = check
            wanted = find(value)
            if wanted is not None and not (value is None and is_optional):
                raise TypeError(f"{name}: {parameter} must be {wanted}, not {type(value).__name__}")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not (only_first and args and type(args[0]) is Tensor):
            for check, value in zip(positional, args):
                verify(check, value)
            if others is not None:
                for value in args[len(positional) :]:
                    verify(others, value)
        for key in kwargs:
            if key in named:
                verify(named[key], kwargs[key])
        return function(*args, **kwargs)

    return call


def check_all(module: dict[str, Any]) -> None:
    """Checks the arguments of the public functions and classes that a module defines."""
    for name, value in list(module.items()):
        if name.startswith("_") or getattr(value, "__module__", None) != module["__name__"]:
            continue
        if isinstance(value, types.FunctionType):
            # Those that a factory made have its name.
            is_native = value.__qualname__.startswith(("_unary.", "_binary."))
            value.__name__ = value.__qualname__ = name
            # Native operations check their operands.
            module[name] = value if is_native else _checked(value, name)
        elif isinstance(value, type):
            for method in ("__init__", "__call__"):
                function = vars(value).get(method)
                if isinstance(function, types.FunctionType):
                    setattr(value, method, _checked(function, name))
