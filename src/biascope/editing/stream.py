"""Task vectors of checkpoints on disk, slice by slice: from fine-tuned weights or from a saved vector."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor

from biascope.editing.adapters import ADAPTER
from biascope.editing.vectors import END, END_AT, KIND, WIDE, WIDE_AT, difference, widened
from biascope.families import weights
from biascope.families.checkpoint import Checkpoint
from biascope.runs.digest import Described, Fingerprint


def is_vector(model: Checkpoint) -> bool:
    """Whether a checkpoint is a saved task vector, or an adapter read as one."""
    return model.metadata.get("kind") == KIND


def knows_base(model: Checkpoint) -> bool:
    """Whether a checkpoint says by a hash which base it belongs to, as a saved task vector does and an adapter does not."""
    return is_vector(model) and ADAPTER not in model.metadata


class TaskStream:
    """The change of a base by fine-tuning, read slice by slice with the base.

    Args:
        base: θ₀.
        model: Fine-tuned weights, or a task vector for θ₀.
        skipped: Names that need not fit.

    Attributes:
        model: As given.
        names: The tensors that it holds, without a vector's own bookkeeping.
        is_base: Whether it is the base itself, in the same file.
        types: Where the model has another type than the base: that of the base, and its own.
        rounding: By types of the two: what rounding to them is expected to add to ``‖τ‖²``, as far as it was read.

    Raises:
        ValueError: If names, shapes or types do not fit, all listed, or the vector belongs to another θ₀.
    """

    def __init__(self, base: Checkpoint, model: Checkpoint, skipped: Collection[str] = ()) -> None:
        self.model = model
        self._is_vector = is_vector(model)
        self.names = {name for name in model.tensors if not (self._is_vector and "::" in name)}
        found: Mapping[str, Described] = {name: model.tensors[name] for name in self.names if name not in skipped}
        wanted = {name: tensor for name, tensor in base.tensors.items() if name not in skipped}
        if self._is_vector:
            wanted = {name: tensor for name, tensor in wanted.items() if weights.is_edited(name, tensor)}
        if listed := weights.misfits(found, wanted, types=not self._is_vector, converted=True):
            raise ValueError(f"{model.name} must fit {base.name}: {listed}. Pass states of one model.")
        self.rounding = [0.0, 0.0]
        self.types = (
            set()
            if self._is_vector
            else {
                (base.tensors[name].dtype, found[name].dtype)
                for name in found.keys() & wanted.keys()
                if found[name].dtype != wanted[name].dtype
            }
        )
        if knows_base(model) and (lacking := sorted(self.names - base.tensors.keys())):
            raise ValueError(
                f"{model.name} must be a task vector of {base.name}, which has no {lacking[0]}. Pass the base that it was made from."
            )
        if knows_base(model) and (hashed := base.fingerprint(self.names)) != model.metadata.get("base"):
            raise ValueError(
                f"{model.name} must be a task vector of {base.name}, but was made from other weights (hash "
                f"{model.metadata.get('base')} instead of {hashed}). Pass the base that it was made from."
            )
        self.is_base = not self._is_vector and model.tensors == base.tensors
        self._hashed = Fingerprint()
        self._wide = self._ends = _Patch(model, "", "", "")

    @property
    def is_vector(self) -> bool:
        """Whether it reads a saved vector."""
        return self._is_vector

    @property
    def fingerprint(self) -> str:
        """The hash of the model, once all of its names were read in order; of a saved vector, at any time; not of the base itself."""
        if self._is_vector:
            return self.model.metadata.get(ADAPTER) or self.model.fingerprint()
        return self._hashed.value

    def slices(self, name: str, *, hashed: bool = True) -> Iterator[Tensor]:
        """The values of a tensor as they are in the file.

        Args:
            name: The tensor.
            hashed: Whether they count for the hash, as they must once; a look before that does not.
        """
        if self._is_vector:
            self._wide = _Patch(self.model, name, WIDE_AT, WIDE)
            self._ends = _Patch(self.model, name, END_AT, END)
        elif hashed:
            self._hashed.begin(name, self.model.tensors[name])
        for part in self.model.slices(name):
            if hashed and not self._is_vector:
                self._hashed.add(part)
            yield part

    def pass_over(self, name: str) -> None:
        """Read a tensor for the hash only, if the model has it."""
        if name in self.names and not self._is_vector and not self.is_base:
            for _ in self.slices(name):
                pass

    def delta(self, start: Tensor, part: Tensor, begin: int, *, counted: bool = True) -> Tensor:
        """τ on a slice.

        Args:
            start: θ₀ there.
            part: What :meth:`slices` gave.
            begin: Where the slice begins in the flat tensor.
            counted: Whether it counts for what was rounded, as it must once.
        """
        if not self._is_vector:
            delta = difference(start, part)
            if counted and start.dtype != part.dtype:
                moved = delta != 0
                for side, values in enumerate((start, part)):
                    self.rounding[side] += rounding_error(values[moved])
            return delta
        delta = widened(part)
        self._wide.put(delta, begin)
        return delta

    def end(self, start: Tensor, part: Tensor, begin: int) -> Tensor:
        """θ₀ + τ on a slice, the fine-tuned weights bit for bit."""
        if not self._is_vector:
            return part
        delta = self.delta(start, part, begin)
        result = (start.to(delta.dtype) + delta).to(start.dtype)
        self._ends.put(result, begin)
        return result


def rounding_error(values: Tensor) -> float:
    """The sum of squared errors to expect of numbers that were rounded to the type they have: a twelfth of a squared step each.

    Example:
        >>> round(12 * rounding_error(torch.tensor([1.0, 3.0], dtype=torch.bfloat16)) / torch.finfo(torch.bfloat16).eps ** 2)
        5
    """
    limits = torch.finfo(values.dtype)
    below = values.double().abs().clamp_min(limits.smallest_normal).log2().floor()  # numbers have this power of two
    return float((limits.eps * below.exp2()).square().sum()) / 12


class _Patch:
    """Values at given places of a flat tensor, in order."""

    def __init__(self, model: Checkpoint, name: str, at: str, values: str) -> None:
        there = {name + at, name + values} <= model.tensors.keys()
        self._places = model.read(name + at).long() if there else torch.zeros(0, dtype=torch.long)
        self._values = model.read(name + values) if there else torch.zeros(0)

    def put(self, flat: Tensor, begin: int) -> None:
        """Put those that belong into a slice."""
        if len(self._places):
            first, last = torch.searchsorted(self._places, torch.tensor([begin, begin + len(flat)])).tolist()
            flat[self._places[first:last] - begin] = self._values[first:last].to(flat.dtype)
