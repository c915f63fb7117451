"""Checks of arguments, whose errors begin with the name of the argument."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterable
from typing import Any

#: The largest number that is a rank. Greater ones stand for several ranks or none.
LAST_RANK = 2**32 - 3


def wrong_type(argument: str, expected: str, value: object) -> TypeError:
    return TypeError(f"{argument}: expected {expected}, not {type(value).__name__}")


def check(argument: str, value: Any, types: type | tuple[type, ...], expected: str) -> Any:
    """Returns a value if it has one of these types, and raises TypeError otherwise. A bool is not an int here."""
    if not isinstance(value, types) or isinstance(value, bool) and types is not bool:
        raise wrong_type(argument, expected, value)
    return value


def text(argument: str, value: object, errors: str = "strict") -> str:
    given: str = check(argument, value, str, "a str")
    try:
        given.encode(errors=errors)
    except UnicodeEncodeError as error:
        raise ValueError(f"{argument}: {error}") from None
    if "\0" in given:
        raise ValueError(f"{argument}: {given!r} has a NUL byte")
    return given


def word(argument: str, value: object, types: type | tuple[type, ...], expected: str) -> str:
    """Returns an argument, a variable or a path. Its surrogates stand for bytes that are not UTF-8."""
    return text(argument, os.fspath(check(argument, value, types, expected)), "surrogateescape")


def path(argument: str, value: object) -> str | None:
    return None if value is None else word(argument, value, (str, os.PathLike), "a path or None")


def descriptor(argument: str, file: Any) -> int:
    """Returns the descriptor of a file, or the one that is given."""
    if hasattr(file, "fileno"):
        try:
            file = file.fileno()
        except (OSError, ValueError) as error:
            raise ValueError(f"{argument}: expected a file with a descriptor: {error}") from None
    return number(argument, file, high=2**31 - 1)


def number(argument: str, value: object, low: int = 0, high: int = 2**63 - 1) -> int:
    given: int = check(argument, value, int, "an int")
    if not low <= given <= high:
        raise ValueError(f"{argument}: {value} is not in the range {low} to {high}")
    return given


def rank_list(ranks: int | Iterable[int] | None) -> list[int] | None:
    if ranks is None:
        return None
    if isinstance(ranks, (str, bytes)) or not isinstance(ranks, (int, Iterable)):
        raise wrong_type("ranks", "an int, several of them or None", ranks)
    return [number("ranks", rank, high=LAST_RANK) for rank in ([ranks] if isinstance(ranks, int) else ranks)]


def optional_text(argument: str, value: str | None) -> str | None:
    return None if value is None else text(argument, value)


def seconds(argument: str, value: object, expected: str = "a number of seconds") -> float:
    given: float = check(argument, value, (int, float), expected)
    if not 0 <= given < 2**63 / 1e9:
        raise ValueError(f"{argument}: {value} is not {expected}")
    return given


def nanoseconds(argument: str, value: object) -> int:
    """Returns a time in nanoseconds since 1970."""
    if isinstance(value, datetime.timedelta):
        value = max(0.0, time.time() - value.total_seconds())
    elif isinstance(value, datetime.datetime):
        try:
            value = value.timestamp()
        except (OverflowError, ValueError) as error:
            raise ValueError(f"{argument}: {error}") from None
    return int(seconds(argument, value, "seconds since 1970 or a datetime") * 1e9)
