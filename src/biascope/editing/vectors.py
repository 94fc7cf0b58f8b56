"""Task vectors: the change of weights by fine-tuning, to be added, scaled, negated, compared and saved."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from biascope.families import weights
from biascope.families.weights import Params
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.digest import fingerprint

KIND = "task_vector"  # what the metadata of a file say
# Of a tensor's parts in a file: differences too wide for the type the others are kept in, and weights that adding would miss.
WIDE_AT, WIDE, END_AT, END = "::wide_at", "::wide", "::end_at", "::end"
_FEW = 1 / 16  # share of differences that may be kept apart, so that the others take half of the room
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

Patch = tuple[Tensor, Tensor]  # places in a flattened tensor, and what stands there


@under_torch_defaults
@dataclass(frozen=True, eq=False)
class TaskVector:
    """The change by fine-tuning: ``τ = θ* − θ₀`` by parameter name, for one θ₀.

    A vector made by :meth:`between` knows the fine-tuned weights: applied with weight 1 it gives them back bit for bit, because
    the few entries that ``θ₀ + τ`` would round elsewhere (far smaller ones than θ₀, negative zeros) are kept as they are. Sums,
    multiples and negatives are exact to rounding. Differences of float16 and bfloat16 weights are held in float32; one beyond the
    range of its type is cut to the largest number of it.

    Integers, booleans and BatchNorm's running statistics are never edited: a vector does not hold them, and where it is applied
    they stay those of θ₀.

    Attributes:
        deltas: τ by parameter name.
        base: Hash of θ₀: :func:`biascope.families.fingerprint` of the parameters that τ edits.
        source: Its origin, in words.
        ends: By name, places in the flattened tensor and the fine-tuned weights there, where adding would miss them.

    Example:
        >>> start, end = {"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([3.0, 1e-12])}
        >>> task = TaskVector.between(start, end, source="digits")
        >>> task.applied(start)["w"].tolist() == end["w"].tolist(), (-task).applied(start)["w"].tolist()
        (True, [-1.0, 2.0])
    """

    deltas: Params
    base: str
    source: str = ""
    ends: Mapping[str, Patch] = field(default_factory=dict)

    @staticmethod
    def between(start: Params, end: Params, *, source: str = "") -> TaskVector:
        """The task vector from pre-trained to fine-tuned weights.

        Args:
            start: θ₀.
            end: θ*, with the names, shapes and types of θ₀.
            source: What was fine-tuned on, in words.

        Raises:
            ValueError: If names, shapes or types differ, all of them listed; or if weights are not finite.
        """
        if listed := weights.misfits(end, start):
            raise ValueError(
                f"The fine-tuned weights must fit the pre-trained ones: {listed}. Pass two states of the same model."
            )
        edited = [name for name, tensor in start.items() if weights.is_edited(name, tensor)]
        _check_finite({name: start[name] for name in edited}, "pre-trained")
        _check_finite({name: end[name] for name in edited}, "fine-tuned")
        deltas, ends = {}, {}
        for name in edited:
            first = start[name].detach()
            last = end[name].detach().to(first.device)
            deltas[name] = difference(first, last)
            missed = _places(_bits(_sum(first, deltas[name])) != _bits(last))
            if len(missed):
                ends[name] = missed, last.flatten()[missed]
        return TaskVector(deltas, fingerprint({name: start[name] for name in edited}), source, ends)

    def applied(self, start: Params, weight: float = 1.0, *, verify: bool = True) -> Params:
        """The edited weights ``θ₀ + weight · τ``, in the types of θ₀; tensors that are not edited are those of θ₀.

        Args:
            start: The θ₀ that the vector was made from.
            weight: The coefficient; 1 restores the fine-tuned weights.
            verify: Whether to compare the hash of ``start``; turn it off in a loop over weights, after the first.

        Raises:
            ValueError: If ``start`` is another θ₀, or its names or shapes differ; if the result is beyond the range of its type.
        """
        if not math.isfinite(weight):
            raise ValueError(f"weight must be finite, got {weight}. Pass weight=0.4.")
        edited = {name: tensor for name, tensor in start.items() if weights.is_edited(name, tensor)}
        if listed := weights.misfits(edited, self.deltas, types=False):
            raise ValueError(f"The weights must be those that {self} was made from: {listed}. Pass its θ₀.")
        if verify and (found := fingerprint(edited)) != self.base:
            raise ValueError(
                f"The weights must be those that {self} was made from (hash {self.base}), got others (hash {found}). Pass its θ₀."
            )
        result = dict(start)
        for name, tensor in edited.items():
            first, delta = tensor.detach(), self.deltas[name].to(tensor.device)
            result[name] = _sum(first, delta if weight == 1 else weight * delta)
            if weight == 1 and name in self.ends:
                places, values = (part.to(tensor.device) for part in self.ends[name])
                result[name].put_(places, values)  # counts row by row in every memory format
        _check_finite({name: result[name] for name in edited}, "edited")
        return result

    def __add__(self, other: TaskVector) -> TaskVector:
        return self._joined(other, torch.add, "+")

    def __sub__(self, other: TaskVector) -> TaskVector:
        return self._joined(other, torch.sub, "−")

    def __neg__(self) -> TaskVector:
        return dataclasses.replace(self * -1.0, source=f"−{_in_brackets(self.source)}")

    def __mul__(self, weight: float) -> TaskVector:
        if not isinstance(weight, Real):
            return NotImplemented
        deltas = {name: float(weight) * delta for name, delta in self.deltas.items()}
        return TaskVector(deltas, self.base, f"{weight:g}·{_in_brackets(self.source)}")

    __rmul__ = __mul__

    def dot(self, other: TaskVector) -> float:
        """The inner product, summed in float64."""
        return sum(self._dots(other).values())

    @property
    def norm(self) -> float:
        """The Euclidean norm."""
        return math.sqrt(self.dot(self))

    def cosine(self, other: TaskVector) -> float:
        """The cosine of the angle between two vectors; nan if one is zero."""
        lengths = self.norm * other.norm
        return self.dot(other) / lengths if lengths else math.nan

    def norms(self) -> dict[str, float]:
        """The norm of each layer's part."""
        return {layer: math.sqrt(square) for layer, square in self._dots(self).items()}

    def cosines(self, other: TaskVector) -> dict[str, float]:
        """The cosine of each layer's parts, weights and biases together; nan where one is zero.

        Example:
            >>> start = {"first.weight": torch.zeros(2), "last.weight": torch.zeros(1), "last.bias": torch.zeros(1)}
            >>> a, b = ({"first.weight": torch.tensor([3.0, 4.0]), "last.weight": torch.ones(1), "last.bias": each} for each in
            ...         (torch.ones(1), -torch.ones(1)))
            >>> TaskVector.between(start, a).cosines(TaskVector.between(start, b))
            {'first': 1.0, 'last': 0.0}
        """
        own, others = self.norms(), other.norms()
        lengths = {layer: own[layer] * others.get(layer, 0.0) for layer in own}
        return {layer: dot / lengths[layer] if lengths[layer] else math.nan for layer, dot in self._dots(other).items()}

    def save(self, path: Path | str) -> None:
        """Write the vector as safetensors with the hash of θ₀, whole or not at all.

        Args:
            path: A file name that ends in ``.safetensors``.
        """
        from biascope import __version__

        if odd := [name for name in self.deltas if "::" in name]:
            raise ValueError(f"Names of parameters must not contain '::' to be saved, got {odd[0]!r}. Rename it.")
        tensors: Params = {}
        for name, delta in self.deltas.items():
            tensors |= {name + part: tensor for part, tensor in _stored(delta).items()}
        for name, (places, values) in self.ends.items():
            tensors |= {name + END_AT: _short(places, self.deltas[name]), name + END: values}
        about = {"kind": KIND, "format": "pt", "base": self.base, "source": self.source, "biascope": __version__}
        weights.save(tensors, _checked(path), about)

    @staticmethod
    def load(path: Path | str) -> TaskVector:
        """Read what :meth:`save` wrote; no code in a file is ever run.

        Raises:
            ValueError: If the file is missing, damaged, or holds something else.

        Example:
            >>> import tempfile
            >>> task = TaskVector.between({"w": torch.tensor(1.0)}, {"w": torch.tensor(3.0)}, source="digits")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     task.save(f"{folder}/digits.safetensors")
            ...     TaskVector.load(f"{folder}/digits.safetensors")
            the task vector 'digits'
        """
        stored = weights.load(_checked(path))
        with safetensors.safe_open(str(path), "pt") as file:
            about = file.metadata() or {}
        if about.get("kind") != KIND:
            raise ValueError(
                f"{path} must hold a task vector, but its metadata does not say so. "
                "Make one with TaskVector.between(start, end).save(…)."
            )
        try:
            names = [name for name in stored if "::" not in name]
            deltas = {
                name: _restored({part: stored.get(name + part) for part in ("", WIDE_AT, WIDE)}) for name in names
            }
            ends = {
                name: (stored[name + END_AT].long(), stored[name + END]) for name in names if name + END_AT in stored
            }
            return TaskVector(deltas, about["base"], about.get("source", ""), ends)
        except KeyError as error:
            raise ValueError(f"{path} must be a complete task vector, but lacks {error}. Save it again.") from error

    def __repr__(self) -> str:
        return f"the task vector {self.source!r}" if self.source else "the task vector"

    def _joined(self, other: TaskVector, operation: Callable[[Tensor, Tensor], Tensor], sign: str) -> TaskVector:
        self._check_mate(other)
        deltas = {name: operation(delta, other.deltas[name].to(delta.device)) for name, delta in self.deltas.items()}
        return TaskVector(deltas, self.base, f"{self.source} {sign} {_in_brackets(other.source)}")

    def _dots(self, other: TaskVector) -> dict[str, float]:
        """Inner products by layer."""
        self._check_mate(other)
        sums: dict[str, float] = {}
        for name, delta in self.deltas.items():
            dot = torch.dot(delta.flatten().double(), other.deltas[name].to(delta.device).flatten().double())
            sums[weights.layer_of(name)] = sums.get(weights.layer_of(name), 0.0) + float(dot)
        return sums

    def _check_mate(self, other: TaskVector) -> None:
        if listed := weights.misfits(other.deltas, self.deltas):
            raise ValueError(
                f"Two task vectors must belong to one model, but {other} does not fit {self}: {listed}. Pass vectors of one model."
            )
        if other.base != self.base:
            raise ValueError(
                f"Two task vectors must start from the same weights, got hashes {self.base} and {other.base}. "
                "Fine-tune both from one θ₀."
            )


def difference(start: Tensor, end: Tensor) -> Tensor:
    """What two tensors of weights differ by, in the type that they are edited in and finite.

    Example:
        >>> difference(torch.tensor(1.0), torch.tensor(3.0)), difference(torch.tensor(-3e38), torch.tensor(3e38))
        (tensor(2.), tensor(3.4028e+38))
    """
    wide = weights.working_type(start.dtype)
    most = torch.finfo(wide).max
    return (end.to(wide) - start.to(wide)).clamp_(-most, most)


def widened(stored: Tensor) -> Tensor:
    """Differences read from a file, in the type that weights are edited in."""
    return stored.to(weights.working_type(stored.dtype))


def _in_brackets(source: str) -> str:
    return f"({source})" if " " in source else source


def _sum(start: Tensor, edit: Tensor) -> Tensor:
    return (start.to(edit.dtype) + edit).to(start.dtype)


def _bits(tensor: Tensor) -> Tensor:
    """Numbers as integers: −0 is not 0."""
    return tensor.contiguous().flatten().view(_BITS[tensor.element_size()])


def _places(mask: Tensor) -> Tensor:
    return mask.nonzero().squeeze(1)


def _stored(delta: Tensor) -> dict[str, Tensor]:
    """Differences without loss in half of the room, where nearly all fit a type of half the width; else as they are.

    Those of half-precision weights do: two such weights within a factor of 2 have a difference of that type.
    """
    if delta.dtype != torch.float32:
        return {"": delta}
    flat = delta.detach().contiguous().flatten()
    tried = []
    for half in (torch.bfloat16, torch.float16):
        narrow = flat.to(half)
        wrong = _places(_bits(narrow.float()) != _bits(flat))
        tried.append((len(wrong), narrow, wrong))
    count, narrow, wrong = min(tried, key=lambda each: each[0])
    if count > _FEW * flat.numel():
        return {"": delta}
    narrow[wrong] = 0  # not infinity, where a number is too large
    rest = {WIDE_AT: _short(wrong, delta), WIDE: flat[wrong]} if count else {}
    return {"": narrow.view(delta.shape), **rest}


def _restored(parts: Mapping[str, Tensor | None]) -> Tensor:
    narrow, places, values = parts[""], parts[WIDE_AT], parts[WIDE]
    assert narrow is not None
    delta = widened(narrow)
    if places is not None:
        if values is None:
            raise KeyError(WIDE)
        delta.view(-1)[places.long()] = values
    return delta


def _short(places: Tensor, tensor: Tensor) -> Tensor:
    return places.int() if tensor.numel() < 2**31 else places


def _check_finite(params: Params, which: str) -> None:
    if bad := [name for name, tensor in params.items() if not bool(tensor.isfinite().all())]:
        few = f"{', '.join(bad[:4])}{' …' if len(bad) > 4 else ''}"
        advice = "Use a smaller weight or a wider type" if which == "edited" else "Check where training diverged"
        raise ValueError(f"The {which} weights must be finite, but {len(bad)} tensors are not ({few}). {advice}.")


def _checked(path: Path | str) -> Path:
    if Path(path).suffix != ".safetensors":
        raise ValueError(
            f"A task vector must be in a .safetensors file, got {path}. Pass 'task.safetensors'; other formats can hold code."
        )
    return Path(path)
