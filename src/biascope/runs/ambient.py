"""The settings of torch that a caller has set, such as ``torch.autocast`` around a call: no number may depend on them.

Every function and class that users call runs under torch's defaults and leaves the settings as they were. Some of them belong to
the whole process, and a network lends its layers to one call at a time, so calls from several threads take turns.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.backends import cudnn, mkldnn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves, tree_map

T = TypeVar("T", bound=Callable[..., Any])
S = TypeVar("S")


class Switch(Generic[S]):
    """A setting of the whole process, which threads set and leave in any order: the last to leave puts back what it was.

    Example:
        >>> setting = ["as it was"]
        >>> switch = Switch(lambda: setting[0], lambda value: setting.__setitem__(0, value))
        >>> with switch.at("first"), switch.at("second"):
        ...     print(setting)
        ['second']
        >>> setting
        ['as it was']
    """

    def __init__(self, read: Callable[[], S], write: Callable[[S], None]) -> None:
        self.read, self.write = read, write
        self._lock, self._wishes = threading.Lock(), list[list[S]]()
        self._before: S | None = None

    @contextlib.contextmanager
    def at(self, value: S) -> Iterator[None]:
        """Set it for the duration."""
        wish = [value]  # compared by identity: another thread may want the same value
        with self._lock:
            if not self._wishes:
                self._before = self.read()
            self._wishes.append(wish)
            self._set(value)
        try:
            yield
        finally:
            with self._lock:
                self._wishes = [other for other in self._wishes if other is not wish]
                self._set(self._wishes[-1][0] if self._wishes else cast(S, self._before))

    def put_back(self, value: S) -> None:
        """Undo what foreign code did: what those who hold it want, or else a value read before."""
        with self._lock:
            self._set(self._wishes[-1][0] if self._wishes else value)

    def _set(self, value: S) -> None:
        if self.read() != value:  # writing some of them takes a millisecond
            self.write(value)


def _set_determinism(state: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(state[0], warn_only=state[1])


_ATTENTION: tuple[tuple[Callable[[], bool], Callable[[bool], None]], ...] = (
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
)


PLAIN_ATTENTION = (True, False, False, False, False)


def _set_attention(states: tuple[bool, ...]) -> None:
    for (_, enable), state in zip(_ATTENTION, states, strict=True):
        enable(state)


_CONVOLUTIONS = ("enabled", "benchmark", "deterministic")


def _set_convolutions(states: tuple[bool, ...]) -> None:
    for name, state in zip(_CONVOLUTIONS, states, strict=True):
        setattr(cudnn, name, state)


class _Computed:
    """Cached weights, compared by identity alone, since tensors in dictionaries cannot be compared."""

    def __init__(self) -> None:
        self.weights = parametrize._cache


def _set_cache(state: tuple[int, _Computed | None]) -> None:
    # A dictionary of its own each time: what a forward pass leaves in one must not be read by the next.
    parametrize._cache_enabled, parametrize._cache = state[0], {} if state[1] is None else state[1].weights


# torch has two interfaces to the precision of float32 products. Where a caller has mixed them, the older one cannot be read.
_OF_OPERATORS: tuple[Any, ...] = (
    torch.backends.cuda.matmul,
    *(getattr(cudnn, name) for name in ("conv", "rnn")),
    *(getattr(mkldnn, name) for name in ("matmul", "conv", "rnn")),
)
_ON_GPU = 3  # the first of them

Precision = tuple[str, bool, tuple[str, ...]]


def _read_precision() -> Precision:
    products, convolutions = "", False
    with contextlib.suppress(RuntimeError):
        products, convolutions = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    return products, convolutions, tuple(owner.fp32_precision for owner in _OF_OPERATORS)


def _set_precision(state: Precision | bool) -> None:
    """Set what was read, or whether TF32 may be used on a GPU. On a CPU, products then have the precision of float32."""
    products, convolutions, words = _read_precision()
    if isinstance(state, bool):
        if products and (state or (products, convolutions) != ("highest", False)):
            if products != "highest":
                torch.set_float32_matmul_precision("highest")
            if state:
                torch.backends.cuda.matmul.allow_tf32 = True
            cudnn.allow_tf32 = state
            words = tuple(owner.fp32_precision for owner in _OF_OPERATORS)
        full = tuple(word if word == "none" else "ieee" for word in words)
        words = ("tf32",) * _ON_GPU + full[_ON_GPU:] if state else full
    else:
        wanted, allowed, words = state
        if wanted and (products, convolutions) != (wanted, allowed):
            torch.set_float32_matmul_precision(wanted)
            cudnn.allow_tf32 = allowed
    for owner, word in zip(_OF_OPERATORS, words, strict=True):
        if owner.fp32_precision != word:
            owner.fp32_precision = word


DTYPE = Switch(torch.get_default_dtype, torch.set_default_dtype)
DETERMINISM = Switch(
    lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
    _set_determinism,
)
ATTENTION = Switch(lambda: tuple(enabled() for enabled, _ in _ATTENTION), _set_attention)
CONVOLUTIONS = Switch(lambda: tuple(getattr(cudnn, name) for name in _CONVOLUTIONS), _set_convolutions)
PRECISION: Switch[Precision | bool] = Switch(_read_precision, _set_precision)
CACHE: Switch[tuple[int, _Computed | None]] = Switch(
    lambda: (parametrize._cache_enabled, _Computed()), _set_cache
)  # of parametrised weights

_DEFAULTS: tuple[tuple[Switch[Any], Any], ...] = (
    (DTYPE, torch.float32),
    (DETERMINISM, (False, False)),
    (ATTENTION, (True,) * len(_ATTENTION)),
    (CONVOLUTIONS, (True, False, False)),
    (PRECISION, False),
    (CACHE, (0, None)),
)


class _Here(threading.local):
    """What this thread works for: a call that has set the defaults, or as one of several such a call has started."""

    inside = False
    working = False


_here = _Here()
_turn = threading.RLock()


def _new_turn() -> None:
    global _turn
    _turn = threading.RLock()
    _here.inside = _here.working = False


os.register_at_fork(after_in_child=_new_turn)  # the thread that held it is not in the child


@contextlib.contextmanager
def torch_defaults() -> Iterator[None]:
    """Run under torch's defaults, one thread at a time, and leave all settings as they were.

    Covers ``torch.autocast``, ``no_grad`` and ``inference_mode``, the default device and number type, deterministic algorithms, the
    precision of products, the ways of attention and convolutions, cached parametrisations, and NumPy's treatment of errors.

    Example:
        >>> with torch.inference_mode(), torch.device("meta"), torch.autocast("cpu"), torch_defaults():
        ...     (torch.ones(1, 1, requires_grad=True) @ torch.ones(1, 1)).dtype
        torch.float32
    """
    with _turn, contextlib.ExitStack() as stack:
        for switch, value in _DEFAULTS:
            stack.enter_context(switch.at(value))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        before, _here.inside = _here.inside, True
        try:
            yield
        finally:
            _here.inside = before


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    """Leave the settings of torch as they are, whatever foreign code inside does to them.

    Example:
        >>> with settings_kept():
        ...     torch.set_default_dtype(torch.float64)
        >>> torch.get_default_dtype()
        torch.float32
    """
    gradients, device = torch.is_grad_enabled(), torch.get_default_device()
    states = [(switch, switch.read()) for switch, _ in _DEFAULTS if switch is not CACHE]
    try:
        yield
    finally:
        for switch, state in states:
            if switch.read() != state:
                switch.put_back(state)
        torch.set_grad_enabled(gradients)
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)


def under_torch_defaults(target: T) -> T:
    """A function or a class that users call: whatever they have set in torch, it does the same, and leaves their settings alone.

    Of a class, it is all that has a public name, and its construction and call.

    Example:
        >>> @under_torch_defaults
        ... def half():
        ...     return torch.tensor(0.5).device
        >>> with torch.device("meta"):
        ...     half()
        device(type='cpu')
    """
    if not isinstance(target, type):
        return cast(T, _undisturbed(target))
    for name, member in list(vars(target).items()):
        if name.startswith("_") and name not in ("__init__", "__call__", "__getitem__"):
            continue
        if isinstance(member, staticmethod | classmethod):
            setattr(target, name, type(member)(_undisturbed(member.__func__)))
        elif isinstance(member, property):
            setattr(target, name, property(_undisturbed(member.fget)))
        elif isinstance(member, functools.cached_property):
            member.func = _undisturbed(member.func)
        elif inspect.isfunction(member):
            setattr(target, name, _undisturbed(member))
    return target


def _undisturbed(function: Any) -> Any:
    @functools.wraps(function)
    def undisturbed(*args: Any, **settings: Any) -> Any:
        if _here.inside:
            return function(*args, **settings)
        with torch_defaults():
            if any(map(_is_inferred, tree_leaves((args, settings)))):
                args, settings = tree_map(_usable, (args, settings))
            return function(*args, **settings)

    return undisturbed


def _is_inferred(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_inference()


def _usable(leaf: Any) -> Any:
    """A tensor of ``inference_mode``, which cannot be differentiated by, as a plain one."""
    return leaf.clone() if _is_inferred(leaf) else leaf


class OneAtATime:
    """A call of a network, whose layers hold its weights for as long as it takes; other threads wait."""

    def __enter__(self) -> None:
        """Wait for the other threads, except those that a call has started: they have networks of their own."""
        if not _here.working:
            _turn.acquire()

    def __exit__(self, *error: object) -> None:
        """Let the next one in."""
        if not _here.working:
            _turn.release()


@contextlib.contextmanager
def one_on_each_core(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that work for the call that starts them, one core for each."""

    def begin() -> None:
        _here.inside = _here.working = True
        torch.set_num_threads(1)

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(count, initializer=begin) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)  # part of the setting is shared with this thread
