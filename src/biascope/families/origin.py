"""Where a network comes from, and the proof that it is the user's own module.

A network is called with weights that are handed to a copy of the user's module. That is the user's function only if the copy reads
all of them, and nothing that was computed from others. Some modules keep a product of their weights, change in ``eval()``, hold
closures over the layers of the module that was copied, or set their weights at the first call. So each network is compared with a
module as the user makes it, which is given other weights before it is put into evaluation mode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from biascope.families.acceptance import copied, shape_of
from biascope.families.attention import allow_stacked_masks, attention_of, replace_fused_attention, use_eager_experts
from biascope.families.gradient_hooks import remove_gradient_hooks
from biascope.families.inputs import cloned, on_tensors, taken
from biascope.families.plain_layers import use_plain_layers
from biascope.families.tape import as_copies_are
from biascope.families.unregistered import changed, differences, settings_of
from biascope.families.weights import Params, state_of
from biascope.runs.code import AS_MADE, code_as_made, forget_as_made
from biascope.runs.failures import FOREIGN, forward_pass, reason_of
from biascope.runs.memory import is_of_the_device
from biascope.runs.randomness import forked_rng, seed_of

if TYPE_CHECKING:
    from biascope.families.network import Network

BATCHNORM_MODES = ("eval", "train")
# Of outputs, by the bytes of a number: the same operations on the same numbers. Where eval() rearranges them, rounding is coarser.
_TOLERANCES = {2: 3e-2, 4: 1e-5, 8: 1e-10}
_REARRANGED = 1e-4
_OF_GRADIENTS = 100.0  # times the tolerance of outputs, of the largest entry of a gradient …
_OF_ALL_GRADIENTS = 0.1  # … or this times the tolerance, of the largest of all: some gradients are rounding alone
_SHARE, _FROM_ZERO = 0.1, 0.02  # by how much weights are moved: of their size, and those that are all zero
_NOISE = 2**16  # numbers drawn to move weights, repeated in larger tensors
_CALLS, _SECONDS = 64, 1.0  # in which what calls leave behind must come to nothing; fewer of large networks
_MORE = 16  # inputs at which a weight must have no influence before it is called unused


R = TypeVar("R")


class UnlikeError(ValueError):
    """A network is not the user's module; the message says why, and is empty where the cause is unknown.

    Attributes:
        member: The member of a family that differs from the network, counted from 0.
    """

    def __init__(self, cause: str, member: int) -> None:
        super().__init__(cause)
        self.member = member


class Origin:
    """The user's module behind a copy of it that serves for forward passes.

    Args:
        module: A module as the user makes it. It is copied, and neither called nor written.
        name: Name of the network in errors.
        batchnorm: The mode of BatchNorm.
        fresh: Makes the module anew, with other weights; by default the module is copied again.

    Attributes:
        recipe: The copy for forward passes. Dropout is off.
        params: The parameters that the module came with.
        buffers: Its buffers, likewise.
        couples_inputs: Whether inputs of one batch influence one another.
        attention: How the module itself computes attention; see :func:`biascope.families.attention.attention_of`.
        rearranged: What its ``eval()`` changes beside the mode.
        copies: Whether the module is copied, and not made anew.
    """

    def __init__(
        self, module: nn.Module, name: str, batchnorm: str, fresh: Callable[[], nn.Module] | None = None
    ) -> None:
        if batchnorm not in BATCHNORM_MODES:
            raise ValueError(f"batchnorm must be 'eval' or 'train', got {batchnorm!r}. Pass batchnorm='eval'.")
        self.name, self._batchnorm = name, batchnorm
        self.attention = attention_of(module)
        self._given = {key: weakref.ref(tensor) for key, tensor in state_of(module).items()}
        came = copied(module, name)  # never called: a call may leave behind what it computed
        forget_as_made(came)
        as_made = code_as_made(came)
        self.copies = fresh is None
        self._fresh = fresh or (lambda: copied(came, name))
        held = _copies(came)
        self.rearranged: list[str] = []
        self._modes: list[Callable[[nn.Module], nn.Module]] = [_without_its_eval]
        if not _only_flags(came):
            try:
                evaluated = _evaluated(copied(came, name))
            except FOREIGN as error:
                raise ValueError(
                    f"{name} must go into evaluation mode, but its eval() failed with: {reason_of(error)}. Let eval() work twice."
                ) from error
            self.rearranged = differences(came, evaluated) + _unequal(held, state_of(evaluated))
            self._modes.append(_with_own_modes_in_training)
        if self.rearranged:
            # What its eval() computes belongs to the weights of that moment, so eval() is tried last.
            self._modes = [_without_its_eval, _as_in_training, _evaluated]
        self.recipe = self._modes[0](came if fresh else copied(came, name))
        vars(self.recipe)[AS_MADE] = as_made
        self.couples_inputs = _prepared(self.recipe, batchnorm)
        self.params = {key: held[key] for key, _ in self.recipe.named_parameters()}
        self.buffers = {key: held[key] for key, _ in self.recipe.named_buffers() if key in held}
        self._proven: set[object] = set()
        self._doubt = ""  # of the last comparison

    def __reduce__(self) -> tuple[Any, ...]:
        """A network is proven before it is sent to a worker, and leaves the user's module behind."""
        return type(None), ()

    def leave_weights(self) -> None:
        """Keep no weights, where the recipe of another member is the one that is called."""
        self.params, self.buffers, self.recipe = {}, {}, nn.Module()

    @property
    def proven(self) -> bool:
        """Whether the recipe was compared with the user's module on any inputs."""
        return bool(self._proven)

    def prove(self, network: Network, x: Any, others: Sequence[Origin] = ()) -> None:
        """Check that the recipe is the user's module, once for inputs of one shape.

        Args:
            network: A network with this recipe, or one that was made of it; on the device and in the type of the proof.
            x: Inputs ``(n, …)`` on the same device, any pytree.
            others: The modules of other members, which must be the same function of their weights.

        Raises:
            UnlikeError: If it is not, with the cause.
        """
        like = next(iter(network.params.values()))
        shapes = tuple(tuple(leaf.shape[1:]) for leaf in tree_leaves(x) if isinstance(leaf, Tensor))
        if (known := (shapes, like.device, like.dtype)) in self._proven:
            return
        for member, origin in enumerate((self, *others)):
            if (cause := self._compared(origin, network, x)) is not None:
                raise UnlikeError(cause, member)
        self._proven.add(known)

    def _compared(self, other: Origin, network: Network, x: Any) -> str | None:
        """The cause of a difference, ``None`` if there is none; a recipe that does not fit is replaced by one that does."""
        causes: list[str] = []
        failure: ValueError | None = None
        doubted: tuple[Callable[[nn.Module], nn.Module], str] | None = None
        for number, mode in enumerate(self._modes):
            if number:
                self._enter(mode)
            self._doubt = ""
            try:
                cause = self._difference(other, network, x, own_mode=number == 0)
            except ValueError as error:  # its forward pass fails in this mode
                failure = error
                continue
            if cause is None and self._doubt:
                doubted = doubted or (mode, self._doubt)
            elif cause is None:
                self._modes = [mode]
                return None
            else:
                causes.append(cause)
        if doubted is not None:  # in no other mode was there less doubt
            mode, doubt = doubted
            if len(self._modes) > 1:
                self._enter(mode)
            self._modes = [mode]
            warnings.warn(doubt, stacklevel=2)
            return None
        if not causes and failure is not None:
            raise failure
        cause = next(filter(None, causes), "")
        if not cause and self.rearranged:
            return (
                f"{self.name} must be the same function of its weights in evaluation mode, but its eval() changes "
                f"{self.rearranged[0]}. Compute it in forward, and let eval() change nothing else."
            )
        return cause

    def _enter(self, mode: Callable[[nn.Module], nn.Module]) -> None:
        """Let the recipe be in a mode, in place: networks share it."""
        vars(self.recipe).update(vars(mode(self._made())))
        _prepared(self.recipe, self._batchnorm)

    def _made(self) -> nn.Module:
        """The module anew: never an object that the user holds, since it will be given other weights.

        Raises:
            ValueError: If its copies share weights with it.
        """
        with forked_rng(seed_of(0, "proof")):
            module = as_copies_are(self._fresh())
        if self._shares(module) and self._shares(module := copied(module, self.name)):
            raise ValueError(f"{self.name} must be copyable, but its copies share weights. Remove its __deepcopy__.")
        return module

    def _shares(self, module: nn.Module) -> bool:
        alive = {_memory(tensor) for tensor in self._alive().values()}
        return any(tensor.numel() and _memory(tensor) in alive for tensor in state_of(module).values())

    def _alive(self) -> Params:
        """The user's own weights, where they still exist."""
        return {key: tensor for key, reference in self._given.items() if (tensor := reference()) is not None}

    def _difference(self, other: Origin, network: Network, x: Any, *, own_mode: bool) -> str | None:
        """The cause why the recipe differs from a module at equal weights: empty if unknown, ``None`` if they do not differ.

        A network that is random in its own mode is accepted here, for others to refuse; one that another mode made random is not. The
        recipe is called with other weights first, which are then replaced in the same memory. So what it keeps is stale, by
        whatever it knows its weights: their names, addresses or versions.
        """
        truth = _Truth(other, network, x)
        if self.params.keys() - truth.before.keys():
            return (
                f"{self.name} must have the same layers under every seed, but two builds differ. Fix its architecture."
            )
        handed = {key: tensor.clone() for key, tensor in truth.before.items()}
        mine = self._at(network, self.recipe, handed)
        held = settings_of(self.recipe)
        with forward_pass(f"{self.name} must accept inputs of shape {shape_of(x)}", "Check its forward pass."):
            first, reads = _foreign_reads(self._alive(), self.recipe, lambda: _outputs(mine, truth.x))
            _called_with_gradients_on(mine, truth.x, _leaves(handed))
            if written := _unequal(truth.before, handed):
                elsewhere = _varied(truth.x, 1, 2.0)
                left = {key: handed[key].clone() for key in written}
                trained = truth.before | {
                    key: truth.after[key] for key in self.params
                }  # buffers stay as a call left them
                for state in (truth.before, trained):
                    _write(handed, state | {key: left[key] for key in written if state[key] is truth.before[key]})
                    after_a_call = _outputs(mine, elsewhere)
                    _write(handed, state)
                    if _alike(after_a_call, _outputs(mine, elsewhere), 0.0):
                        continue
                    return (
                        f"{self.name} must leave its weights as they are, but a call changes {written[0]}. Call the network on "
                        "data before: in its builder, or before its weights are saved."
                    )
            _write(handed, truth.after)
            found = _outputs(mine, truth.x)
        coarse = _REARRANGED if self.rearranged else 0.0
        if not _alike(found, _outputs(mine, truth.x), 0.0):
            return None if own_mode else ""  # no function of its inputs, which is for others to say
        if reads or not _alike(found, truth.outputs, coarse):
            return self._cause(network, truth, reads)
        constant = all(
            bool((leaf == leaf[:1]).all()) or not bool(leaf.isfinite().all()) for leaf in found
        )  # which is for others to say
        if not constant and all(map(torch.equal, found, first)) and _unequal(truth.before, truth.after):
            return (
                f"{self.name} must depend on its weights, but its outputs stay the same where all of them move. Compute what "
                "depends on weights in forward, and keep nothing of an earlier call."
            )
        slope = _Slope.of(mine, truth.x, _leaves(handed))
        if truth.slope is None or slope is None:
            return None
        if not _alike(slope.outputs, truth.slope.outputs, coarse):
            return self._cause(network, truth, reads)
        # What eval() computes of weights is no function of them for autograd, but it is one here.
        if not self.rearranged and (key := slope.differs(truth.slope)):
            return (
                f"{self.name} must have the same gradients in a copy with the same weights, but they differ at {key}. Compute what "
                "depends on weights in forward, and hold no other reference to them."
            )
        if settings_of(self.recipe) != held:
            new = self._at(network, self._untouched(self._made()), truth.after)
            wide = _varied(truth.x, _MORE)  # what is left may depend on the number of inputs, and of calls
            _write(handed, truth.before)
            soon = time.monotonic() + _SECONDS
            for _ in range(_CALLS):
                _outputs(mine, wide)
                if time.monotonic() > soon:
                    break
            _write(handed, truth.after)
            if not _alike(_outputs(mine, wide), _outputs(new, wide), coarse):
                return self._keeps(changed(held, settings_of(self.recipe))[0])
        # By the recipe: a gradient that the module has and the recipe lacks may be too small to differ.
        gradients = {key: slope.gradients[key] for key in truth.slope.gradients if key in slope.gradients}
        idle = [key for key, tensor in gradients.items() if tensor.numel() and not bool(tensor.any())]
        if idle and not constant:
            wide = _varied(truth.x, _MORE, 2.0)  # a layer may be off at few inputs
            first = _outputs(mine, wide)
            for key in idle:
                handed[key].data.normal_(std=float(truth.after[key].square().mean().sqrt()) or 1.0)
            if _alike(_outputs(mine, wide), first, 0.0):
                return self._without_influence(idle, other, truth)
        return None

    def _without_influence(self, idle: Sequence[str], other: Origin, truth: _Truth) -> str | None:
        """Doubt weights that do nothing; the sentence on what stands for them if the user's module kept it of a call before."""
        shapes = [tuple(truth.before[key].shape) for key in idle]
        now = settings_of(self.recipe)
        for name, value in settings_of(other._made()).items() if other.copies else ():
            shape = getattr(value, "shape", None)
            anew = now.get(name) != value  # the calls of the proof have replaced it
            if not anew and shape is not None and _may_stand_for(tuple(shape), shapes):
                key = idle[shapes.index(tuple(shape))] if tuple(shape) in shapes else idle[0]
                return (
                    f"{self.name} must depend on its weights, but {key} has no influence on the outputs, while {name} is kept outside "
                    "of parameters and buffers. Pass a module that was not called yet, or compute it in forward."
                )
        sizes = {key: self.params[key].numel() for key in self.params}
        count = sum(sizes[key] for key in idle if key in sizes)
        self._doubt = (
            f"{self.name} does not use {count:,} of its {sum(sizes.values()):,} weights on the inputs tried "
            f"({', '.join(idle[:3])}). Results are wrong if forward keeps what it computed from them in an earlier call. "
            "Compute it anew in each call."
        )
        return None

    def _at(self, network: Network, recipe: nn.Module, state: Params) -> Network:
        params, buffers = ({key: state[key] for key in held if key in state} for held in (self.params, self.buffers))
        return dataclasses.replace(
            network,
            module=recipe,
            params=params,
            buffers=buffers,
            members=None,
            readout=None,
            couples_inputs=self.couples_inputs,
        )

    def _cause(self, network: Network, truth: _Truth, reads: Sequence[str]) -> str:
        """What explains a difference: looked for at a copy of which nothing was called yet."""
        module = self._made()
        recipe = self._untouched(module)
        untouched = copied(recipe, self.name)
        called = self._at(network, recipe, truth.after)
        if reads := reads or _foreign_reads(state_of(module), recipe, lambda: _outputs(called, truth.x))[1]:
            return (
                f"{self.name} must reach its layers through self, but its forward pass reads {reads[0]} of the module that it "
                "was copied from, or under another name. Look for a closure, a hook, a list of parameters or a weak reference."
            )
        _called_with_gradients_on(called, truth.x, _leaves(truth.after))
        kept = differences(untouched, recipe)
        return self._keeps(kept[0]) if kept else ""

    def _keeps(self, what: str) -> str:
        return (
            f"{self.name} must compute what it needs of its weights anew in each call, but keeps {what} from an earlier "
            "call. Compute it in forward, and do not store it."
        )

    def _untouched(self, module: nn.Module) -> nn.Module:
        """The recipe of a module, of which nothing was called yet."""
        recipe = self._modes[0](copied(module, self.name))
        _prepared(recipe, self._batchnorm)
        return recipe


class _Truth:
    """A module as its user would run it: made anew, given weights in place, put into evaluation mode, and called.

    Attributes:
        before: Its parameters and buffers as it was made.
        after: Those that it was given: moved at random, as long as it can be called with them.
        x: The inputs of the call.
        outputs: Its outputs.
        slope: Its outputs and gradients where gradients are on, ``None`` if it has none.
    """

    def __init__(self, origin: Origin, network: Network, x: Any) -> None:
        # Inputs may be zeros, where much is not seen; they may also be all that the network takes. So may its weights.
        for moved, self.x in ((True, _varied(x)), (True, taken(x, slice(2))), (False, _varied(x))):
            try:
                self._call(origin, network, moved)
            except FOREIGN as error:
                if is_of_the_device(error):
                    raise
                continue
            if all(bool(leaf.isfinite().all()) for leaf in self.outputs):
                return
        self.x = taken(x, slice(2))
        with forward_pass(f"{origin.name} must accept inputs of shape {shape_of(x)}", "Check its forward pass."):
            self._call(origin, network, False)

    def _call(self, origin: Origin, network: Network, moved: bool) -> None:
        like = next(iter(network.params.values()))
        module = origin._made().to(like.device, like.dtype)
        self.before = _copies(module)
        if moved:
            _move(module)
        self.after = _copies(module)
        _evaluated(module)
        couples = _prepared(module, origin._batchnorm)
        alone = dataclasses.replace(
            network, module=module, params={}, buffers={}, members=None, readout=None, couples_inputs=couples
        )
        remove_gradient_hooks(module)
        own = {key: tensor for key, tensor in module.named_parameters() if tensor.is_floating_point()}
        # Before a call without gradients, which may leave numbers behind that have none.
        self.slope = _Slope.of(alone, self.x, {key: tensor.requires_grad_() for key, tensor in own.items()})
        self.outputs = _outputs(alone, self.x)


def _may_stand_for(shape: tuple[int, ...], idle: Sequence[tuple[int, ...]]) -> bool:
    """Whether a tensor may be one of some weights in any shape, their product, or several of them end to end.

    Example:
        >>> idle = [(16, 8), (16,), (1, 16)]
        >>> _may_stand_for((1, 8), idle), _may_stand_for((32, 8), [(16, 8), (16, 8)]), _may_stand_for((4, 5), idle)
        (True, True, False)
    """
    tables = [each for each in idle if len(each) > 1]
    if len(shape) < 2 or math.prod(shape) in map(math.prod, idle):
        return len(shape) > 1
    pairs = itertools.permutations(tables, 2)
    together = [each[0] for each in tables if each[1:] == shape[1:]]
    return any(shape == (one[0], *other[1:]) for one, other in pairs) or max(together, default=0) < shape[0] <= sum(
        together
    )


def _only_flags(module: nn.Module) -> bool:
    """Whether eval() can change nothing but the mode of each layer, by the code of its classes."""
    return all(
        type(layer).train is nn.Module.train
        and type(layer).eval is nn.Module.eval
        and type(layer).__setattr__ is nn.Module.__setattr__
        and not any("training" in vars(kind) for kind in type(layer).__mro__ if kind is not nn.Module)
        and not {"train", "eval"} & vars(layer).keys()
        for layer in module.modules()
    )


def _without_its_eval(module: nn.Module) -> nn.Module:
    """Evaluation mode by the flags of the layers alone."""
    for layer in module.modules():
        layer.training = False
    return module


def _evaluated(module: nn.Module) -> nn.Module:
    """Evaluation mode as the user sets it. A graph of torch.export has no other mode than that in which it was exported."""
    try:
        return module.eval()
    except NotImplementedError:
        return _without_its_eval(module)


def _with_own_modes_in_training(module: nn.Module) -> nn.Module:
    """Evaluation mode, but for layers with a ``train()`` of their own: some keep a product of their weights until they train again."""
    for layer in module.modules():
        layer.training = type(layer).train is not nn.Module.train
    return module


def _as_in_training(module: nn.Module) -> nn.Module:
    """The user's layers as in training, those of torch in evaluation mode: no dropout, BatchNorm by its statistics."""
    for layer in module.modules():
        layer.training = not type(layer).__module__.startswith("torch.")
    return module


def _prepared(module: nn.Module, batchnorm: str) -> bool:
    """Prepare a module in evaluation mode for forward passes, in place; whether the inputs of a batch influence one another."""
    use_plain_layers(module)
    replace_fused_attention(module)
    use_eager_experts(module)
    allow_stacked_masks(module)
    module.requires_grad_(False)
    layers = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    if batchnorm == "train":
        # Without running statistics BatchNorm normalises by the batch; each input is then a batch of its own.
        torch.func.replace_all_batch_norm_modules_(module)
    return any(not layer.track_running_stats for layer in layers)


def _copies(module: nn.Module) -> Params:
    return {key: tensor.detach().clone() for key, tensor in state_of(module).items()}


def _write(state: Params, values: Params) -> None:
    """Replace numbers in the same memory: through ``.data``, which leaves the versions as they are."""
    for key, tensor in state.items():
        tensor.data.copy_(values[key])


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _unequal(one: Params, other: Params) -> list[str]:
    """Names of tensors that are not in both, or not the same."""
    both = one.keys() & other.keys()
    moved = [key for key in one if key in both and not torch.equal(one[key].nan_to_num(), other[key].nan_to_num())]
    return [key for key in (*one, *other) if key not in both] + moved


def _move(module: nn.Module) -> None:
    """Give a module other weights, in place and as loading does. Buffers keep their signs, for variances and masks."""
    draw = torch.Generator().manual_seed(0)
    parameters = {key for key, _ in module.named_parameters()}
    with torch.no_grad():
        for key, tensor in state_of(module).items():
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            noise = torch.randn(min(tensor.numel(), _NOISE), generator=draw).to(tensor)
            noise = noise.repeat(-(-tensor.numel() // len(noise)))[: tensor.numel()].reshape(tensor.shape)
            if key in parameters:
                size = float(tensor.square().mean().sqrt())
                tensor.add_(noise, alpha=_SHARE * size or _FROM_ZERO)
            elif not any(
                stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape, strict=True)
            ):
                tensor.mul_(1 + _SHARE * noise.abs())
        with contextlib.suppress(Exception):  # some modules compute from weights when these are loaded; some load none
            module.load_state_dict(module.state_dict())


def _varied(x: Any, count: int = 1, scale: float = 1.0) -> Any:
    """The first input, and the last one moved at random, as often and as far as is asked for."""
    generator = torch.Generator().manual_seed(0)

    def more(leaf: Tensor) -> Tensor:
        if not leaf.dim():
            return leaf
        last = leaf[-1:].expand(count, *leaf.shape[1:])
        if leaf.is_floating_point():
            spread = float(leaf.std()) if leaf.numel() > 1 else 0.0
            last = last + torch.randn(last.shape, generator=generator).to(leaf) * (spread or 1.0) * scale
        return torch.cat([leaf[:1], last])

    return on_tensors(more, x)


def _called(network: Network, x: Any) -> list[Tensor]:
    with forked_rng(seed_of(0, "same function")):
        return [leaf for leaf in tree_leaves(network(cloned(x))) if isinstance(leaf, Tensor)]


def _outputs(network: Network, x: Any) -> list[Tensor]:
    with torch.no_grad():
        return _called(network, x)


def _leaves(state: Params) -> Params:
    """Tensors in the same memory by which a derivative can be taken."""
    return {key: tensor.detach().requires_grad_() for key, tensor in state.items() if tensor.is_floating_point()}


def _called_with_gradients_on(network: Network, x: Any, by: Params) -> list[Tensor] | None:
    """Outputs where gradients are on, at parameters by which a derivative can be taken; ``None`` if the call fails there."""
    try:
        with torch.enable_grad():
            return _called(network.with_params({key: by.get(key, tensor) for key, tensor in network.params.items()}), x)
    except FOREIGN as error:
        if is_of_the_device(error):
            raise
        return None


@dataclasses.dataclass(frozen=True)
class _Slope:
    """A call where gradients are on.

    Attributes:
        outputs: Its outputs.
        gradients: The derivatives of a random combination of them by each parameter.
    """

    outputs: list[Tensor]
    gradients: Params

    @staticmethod
    def of(network: Network, x: Any, by: Params) -> _Slope | None:
        """Call and differentiate a network; ``None`` if it cannot be called where gradients are on.

        Args:
            network: Called at these parameters where it is handed its weights, and else holds them itself.
            x: Inputs ``(n, …)``, any pytree.
            by: Parameters by name.
        """
        if (outputs := _called_with_gradients_on(network, x, by)) is None:
            return None
        moving = [leaf for leaf in outputs if leaf.requires_grad]
        draw = torch.Generator().manual_seed(0)
        mixtures = [torch.randn(leaf.shape, generator=draw).to(leaf) for leaf in moving]
        found: Sequence[Tensor] = [torch.zeros_like(tensor) for tensor in by.values()]
        if moving:
            try:
                found = torch.autograd.grad(
                    moving, list(by.values()), mixtures, allow_unused=True, materialize_grads=True
                )
            except FOREIGN as error:
                if is_of_the_device(error):
                    raise
                return None
        return _Slope([leaf.detach() for leaf in outputs], dict(zip(by, found, strict=True)))

    def differs(self, truth: _Slope) -> str:
        """The first parameter by which the gradient is not the true one, none if it is."""
        sizes = {key: float(tensor.abs().max()) if tensor.numel() else 0.0 for key, tensor in truth.gradients.items()}
        for key, wanted in truth.gradients.items():
            if key not in self.gradients or not wanted.numel():
                continue
            tolerance = _TOLERANCES.get(wanted.dtype.itemsize, 0.0)
            allowed = tolerance * (_OF_GRADIENTS * sizes[key] + _OF_ALL_GRADIENTS * max(sizes.values()))
            mine = self.gradients[key]
            if bool(((mine - wanted).abs() > allowed).any() or (mine.isfinite() != wanted.isfinite()).any()):
                return key
        return ""


def _alike(one: Sequence[Tensor], other: Sequence[Tensor], coarse: float) -> bool:
    return len(one) == len(other) and all(_close(*pair, coarse) for pair in zip(one, other, strict=True))


def _close(one: Tensor, other: Tensor, coarse: float) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    tolerance = max(coarse, _TOLERANCES.get(one.dtype.itemsize, 0.0)) if one.is_floating_point() else 0.0
    both = torch.stack([one, other]).nan_to_num() if one.is_floating_point() else torch.stack([one, other])
    return bool((both[0] - both[1]).abs().max() <= tolerance * both.abs().max()) if both.numel() else True


def _foreign_reads(given: Params, recipe: nn.Module, call: Callable[[], R]) -> tuple[R, list[str]]:
    """Call a copy; what the call gives, and names of the weights that it reads elsewhere than where they were handed to it.

    Args:
        given: Weights of the module that it was copied from, where that is at hand.
        recipe: The copy, whose own weights are not to be read either.
        call: The call.
    """
    places = (*given.items(), *state_of(recipe).items())
    reads = _Reads({_memory(tensor): key for key, tensor in places if tensor.numel() and tensor.is_floating_point()})
    try:
        with reads:
            found = call()
    except FOREIGN as error:
        if is_of_the_device(error):
            raise
        found = call()  # not every forward pass can be watched
    return found, list(dict.fromkeys(reads.found))


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which of some places in memory are read or written."""

    def __init__(self, places: dict[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._places, self.found = places, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided and (name := self._places.get(_memory(leaf))):
                self.found.append(name)
        return func(*args, **kwargs)
