"""Settings of merging methods: their range and default, and values by model and by tensor."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_SPELLED = re.compile(r"(?P<name>[A-Za-z_]\w*)(?::(?P<model>[^@=]+))?(?:@(?P<pattern>[^=]+))?=(?P<value>.+)")
_WORDS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}


@dataclass(frozen=True)
class MethodSetting:
    """What a method can be told.

    Attributes:
        name: By this name.
        default: Its usual value, the paper's where it gives one; ``None`` if it must be given.
        says: What it does.
        low: Smallest value.
        high: Largest value.
        each: Whether every model has one of its own.
        flag: Whether it is on or off.
        whole: Whether it must be the same for all tensors.
    """

    name: str
    default: float | None
    says: str
    low: float = -math.inf
    high: float = math.inf
    each: bool = False
    flag: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Assigned:
    """A value for a setting.

    Attributes:
        name: The setting.
        value: One number; or several, from the first layer of a model to its last, with straight lines between.
        model: Of this model alone.
        pattern: In the tensors whose names match.
    """

    name: str
    value: tuple[float, ...]
    model: str | None = None
    pattern: str | None = None

    @staticmethod
    def read(words: str) -> Assigned:
        """A value as it is spelled on the command line: ``NAME[:MODEL][@PATTERN]=VALUE``.

        Example:
            >>> Assigned.read("density=0.2")
            Assigned(name='density', value=(0.2,), model=None, pattern=None)
            >>> Assigned.read("weight:maths@*.mlp.*=0,0.5,1").value
            (0.0, 0.5, 1.0)

        Raises:
            ValueError: If it is spelled otherwise, or the value is no finite number.
        """
        if not (found := _SPELLED.fullmatch(words)):
            raise ValueError(
                f"A setting must be spelled NAME=VALUE, NAME:MODEL=VALUE or NAME@PATTERN=VALUE, got {words!r}. Pass density=0.2."
            )
        try:
            value = tuple(
                _WORDS[each.strip().lower()] if each.strip().lower() in _WORDS else float(each)
                for each in found["value"].split(",")
            )
        except ValueError:
            value = (math.nan,)
        if not all(map(math.isfinite, value)):
            raise ValueError(
                f"The value of {found['name']} must be a finite number, or several with commas, got {found['value']!r}. "
                f"Pass {found['name']}=0.2."
            )
        return Assigned(found["name"], value, found["model"], found["pattern"])

    def __str__(self) -> str:
        model = f":{self.model}" if self.model else ""
        pattern = f"@{self.pattern}" if self.pattern else ""
        return f"{self.name}{model}{pattern}={','.join(f'{each:g}' for each in self.value)}"


class Values:
    """The settings of a method for some models, resolved tensor by tensor.

    A value of one model goes before one of all, a value with a pattern before one without, and the first of several before the
    others.

    Args:
        method: Name of the method.
        settings: What it can be told.
        assigned: Values; what is not among them has its default.
        models: Names of the models.
        tensors: Names of the tensors that are merged.

    Raises:
        ValueError: If a name is unknown, a value is out of its range, missing or given twice, or a pattern matches nothing.

    Example:
        >>> known = (MethodSetting("weight", 1.0, "", each=True),)
        >>> given = [Assigned("weight", (0.0, 1.0), "b"), Assigned("weight", (0.5,), None, "*.1.*")]
        >>> values = Values("linear", known, given, ["a", "b"], ["w.0.x", "w.1.x", "w.2.x", "head"])
        >>> [values.each("weight", name) for name in ("w.0.x", "w.1.x", "w.2.x", "head")]
        [[1.0, 0.0], [0.5, 0.5], [1.0, 1.0], [1.0, 0.0]]
    """

    def __init__(
        self,
        method: str,
        settings: Sequence[MethodSetting],
        assigned: Sequence[Assigned],
        models: Sequence[str],
        tensors: Iterable[str],
    ) -> None:
        self.method, self.models = method, tuple(models)
        self._known, self._tensors = {setting.name: setting for setting in settings}, list(tensors)
        tensors = self._tensors
        for each in assigned:
            self._check(each, tensors)
        for one, other in itertools.combinations(assigned, 2):
            if (one.name, one.model, one.pattern) == (
                other.name,
                other.model,
                other.pattern,
            ) and one.value != other.value:
                raise ValueError(
                    f"{one.name} must have one value, but {one} and {other} are given. Leave one of them out."
                )
        # A pattern is more special than none; the sort keeps the order of the others.
        self._assigned = sorted(assigned, key=lambda each: (each.model is None, each.pattern is None))
        self._deepest: dict[str, int] = {}
        for name in tensors:
            before, number = _layer(name)
            self._deepest[before] = max(number, self._deepest.get(before, 0))
        for setting in settings:
            if setting.default is None:
                for name in tensors:
                    self.each(setting.name, name)

    def _check(self, each: Assigned, tensors: Sequence[str]) -> None:
        if (setting := self._known.get(each.name)) is None:
            options = ", ".join(self._known) or "none"
            raise ValueError(f"{each.name} is no setting of {self.method}, which has {options}. Leave it out.")
        if each.model is not None and (not setting.each or each.model not in self.models):
            known = f"one of {', '.join(self.models)}" if setting.each else "left out, because all models share it"
            raise ValueError(f"The model of {each} must be {known}. Pass {each.name}={each.value[0]:g}.")
        if each.pattern is not None and not fnmatch.filter(tensors, each.pattern):
            raise ValueError(
                f"{each.pattern!r} must match names of merged tensors, but matches none of {len(tensors)}, such as {tensors[0]}. "
                "Fix the pattern."
            )
        if setting.whole and (each.pattern is not None or len(each.value) > 1):
            raise ValueError(
                f"{each.name} of {self.method} applies to the whole task vector, so it cannot differ between tensors, got {each}. "
                f"Pass {each.name}={each.value[0]:g}."
            )
        if setting.flag and any(value not in (0, 1) for value in each.value):
            raise ValueError(f"{each.name} must be true or false, got {each.value[0]:g}. Pass {each.name}=true.")
        if wrong := [value for value in each.value if not setting.low <= value <= setting.high]:
            usual = setting.default if setting.default is not None else max(setting.low, min(setting.high, 0.5))
            raise ValueError(
                f"{each.name} must lie between {setting.low:g} and {setting.high:g}, got {wrong[0]:g}. Pass {each.name}={usual:g}."
            )

    def each(self, name: str, tensor: str) -> list[float]:
        """The value of every model in a tensor."""
        return [self._value(name, tensor, model) for model in self.models]

    def one(self, name: str, tensor: str) -> float:
        """The value that all models share in a tensor."""
        return self._value(name, tensor, None)

    def largest(self, name: str) -> list[float]:
        """The largest value of every model in any tensor."""
        return [max(self._value(name, tensor, model) for tensor in self._tensors) for model in self.models]

    def _value(self, name: str, tensor: str, model: str | None) -> float:
        for each in self._assigned:
            if (
                each.name == name
                and each.model in (None, model)
                and (each.pattern is None or fnmatch.fnmatchcase(tensor, each.pattern))
            ):
                return self._along(each.value, tensor)
        if (default := self._known[name].default) is None:
            whose = f" of {model}" if model and self._known[name].each else ""
            raise ValueError(
                f"{self.method} needs {name}{whose}, which has no usual value, but none is given for {tensor}. Pass {name}=0.5."
            )
        return default

    def _along(self, value: tuple[float, ...], tensor: str) -> float:
        """A value at the depth of a tensor; tensors outside of the numbered layers count as the first."""
        before, number = _layer(tensor)
        place = max(number, 0) / max(self._deepest.get(before, 0), 1) * (len(value) - 1)
        low = min(int(place), len(value) - 1)
        high = min(low + 1, len(value) - 1)
        return value[low] + (place - low) * (value[high] - value[low])

    def idle(self) -> list[str]:
        """Which values for all models have no effect, because each model has its own; in words."""
        own = {(each.name, each.model) for each in self._assigned if each.pattern is None}
        found = []
        for each in self._assigned:
            if each.model is None and all((each.name, model) in own for model in self.models):
                instead = dataclasses.replace(each, model=self.models[0])
                remedy = f"Pass {instead}, and so on" if each.pattern else "Leave one of them out"
                found.append(f"{each} has no effect, because each model has a {each.name} of its own. {remedy}.")
        return found

    def told(self) -> str:
        """All values in words: those given, then the usual ones."""
        given = [self._word(each.name, str(each)) for each in self._assigned]
        usual = []
        for name, setting in self._known.items():
            of = {each.model for each in self._assigned if each.name == name and each.pattern is None}
            if setting.default is not None and None not in of and not of >= set(self.models):
                usual.append(self._word(name, f"{name}={setting.default:g}"))
        return ", ".join(given + usual)

    def _word(self, name: str, spelled: str) -> str:
        """A value as it is spelled, flags as true and false."""
        before, _, value = spelled.rpartition("=")
        return f"{before}={'true' if value == '1' else 'false'}" if self._known[name].flag else spelled


def _layer(name: str) -> tuple[str, int]:
    """What comes before the first number in a name, and the number; −1 if there is none."""
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return (name[: found.start()], int(found[1])) if found else (name, -1)
