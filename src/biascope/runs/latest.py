"""The answer to the last question about an object, for who asks the same again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Found = TypeVar("Found")


class Latest(Generic[Found]):
    """Keeps one answer, as long as the object lives that it is about.

    Example:
        >>> class Network: ...
        >>> network, latest = Network(), Latest()
        >>> [latest.get(network, question, lambda: question.upper()) for question in ("a", "a", "b")]
        ['A', 'A', 'B']
    """

    def __init__(self) -> None:
        self._held: tuple[Any, Any, Found] | None = None

    def get(self, about: object, asked: Any, find: Callable[[], Found]) -> Found:
        """What was found, if the last question was the same; else what is found now.

        Args:
            about: The object, of which only this very one is the same.
            asked: What is asked of it, to be compared.
            find: Answers.
        """
        held = self._held
        if held is not None and held[0]() is about and held[1] == asked:
            return held[2]
        self._held = None  # never two answers in memory
        found = find()
        self._held = weakref.ref(about, self._forget), asked, found
        return found

    def _forget(self, gone: Any) -> None:
        if self._held is not None and self._held[0] is gone:
            self._held = None
