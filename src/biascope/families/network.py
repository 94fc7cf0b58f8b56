"""Network: a function of weights and input, for one network or a stack of networks of one architecture."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_leaves, tree_map

from biascope.families import weights
from biascope.families.acceptance import copied
from biascope.families.batch_of_one import RightGradientsOfOne, is_one
from biascope.families.gradient_hooks import leave_out_gradient_hooks
from biascope.families.inputs import cloned, is_real, on_tensors, placed, taken
from biascope.families.origin import Origin, UnlikeError
from biascope.families.readout import READOUTS, features, read_out, single_output
from biascope.families.recomputation import WithoutRecomputation
from biascope.families.weights import Params
from biascope.runs.ambient import OneAtATime, under_torch_defaults
from biascope.runs.code import code_of, forget_as_made
from biascope.runs.digest import fingerprint
from biascope.runs.randomness import forked_rng, seed_of

PROOF = slice(4)  # inputs that a proof looks at
_FAR = 100.0  # where differences look by default
_BENT = 1e-2  # of a gradient: units on a kink go one way or the other by rounding
_COLUMNS = 16  # outputs that have a group of their own


@dataclass(frozen=True)
class Network:
    """A function of weights and input, for one network or a stack of networks of the same architecture.

    The module only defines the forward pass. Its own weights are never read or changed.

    Attributes:
        module: The forward pass.
        params: Trainable weights by name; with a leading axis over members for a stack.
        buffers: The other state (BatchNorm statistics), likewise.
        members: Number of members of a stack, ``None`` for one network.
        readout: How several outputs become one scalar; ``None`` leaves them as they are.
        couples_inputs: Whether inputs of one batch influence one another (BatchNorm in train mode); they are then
            passed one at a time.
        origin: The user's module that the forward pass was copied from; ``None`` where it is proven, or not the user's.

    Example:
        >>> network = Network.of(nn.Linear(2, 1, bias=False))
        >>> network.with_params({"weight": torch.tensor([[1.0, 2.0]])})(torch.tensor([[3.0, 4.0]]))
        tensor([[11.]])
    """

    module: nn.Module
    params: Params
    buffers: Params
    members: int | None = None
    readout: str | None = None
    couples_inputs: bool = False
    origin: Origin | None = field(default=None, repr=False, compare=False)

    @staticmethod
    @under_torch_defaults
    def of(
        module: nn.Module, batchnorm: str = "eval", name: str = "", *, build: Callable[[], nn.Module] | None = None
    ) -> Network:
        """A network at a copy of the module's current weights; dropout is off.

        Args:
            module: Any module. It is left as it is.
            batchnorm: ``"eval"`` or ``"train"``; see :meth:`Family.initialised`.
            name: What to call it in errors.
            build: Makes the module anew, which :meth:`require_proven` then does instead of copying it.
        """
        origin = Origin(module, name or type(module).__name__, batchnorm, build)
        leave_out_gradient_hooks(module, origin.recipe)
        return Network(
            origin.recipe, origin.params, origin.buffers, couples_inputs=origin.couples_inputs, origin=origin
        )

    @under_torch_defaults
    def require_proven(self, x: Any) -> None:
        """Check that this is the user's module also at other weights than its own, where inputs are known for the first time.

        Args:
            x: Inputs ``(n, …)``, any pytree; the first few are used.

        Raises:
            ValueError: If it is another function, with the cause.
        """
        if self.origin is None or not self.params:
            return
        like = next(iter(self.params.values()))
        try:
            self.origin.prove(self, placed(taken(x, PROOF), like.device, like.dtype, copy=True))
        except UnlikeError as error:
            if str(error):
                raise
            raise ValueError(
                f"{self.origin.name} must be a function of its weights and inputs alone, but a copy with the same weights gives "
                "other outputs. Keep all that it needs in parameters and buffers."
            ) from None

    def __call__(self, x: Any, params: Params | None = None) -> Tensor:
        """Outputs for inputs ``(n, …)``; a stack answers with a leading axis over its members."""
        given = self.params if params is None else params
        if self.members is None:
            return self.apply(given, self.buffers, x)
        return vmap(self.apply, in_dims=(0, 0, None))(given, self.buffers, x)

    def apply(self, params: Params, buffers: Params, x: Any) -> Tensor:
        """Outputs of one network at given weights: the function for transformations (grad, vmap, jvp)."""

        def single(inputs: Any) -> Tensor:
            arguments = inputs if isinstance(inputs, tuple) else (inputs,)
            keywords: dict[str, Any] = {}
            if isinstance(inputs, dict):
                arguments, keywords = (), inputs

            def called() -> Any:
                return functional_call(self.module, (params, buffers), arguments, keywords)

            exactly = RightGradientsOfOne() if is_one(inputs) else contextlib.nullcontext()
            with OneAtATime(), WithoutRecomputation(), exactly:
                outputs = features(self.module, called) if self.readout == "features" else single_output(called())
            return outputs if self.readout is None else read_out(outputs, self.readout)

        if not self.couples_inputs:
            return single(x)
        alone = tree_map(lambda tensor: tensor.unsqueeze(1), x)
        return vmap(single)(alone).squeeze(1)

    def __repr__(self) -> str:
        like = next(iter(self.params.values()), None)
        count = weights.count(self.params) // (self.members or 1)
        parts = [type(self.module).__name__, f"{count:,} parameters{' each' if self.members else ''}"]
        parts += [] if self.members is None else [f"{self.members} member{'s' if self.members > 1 else ''}"]
        parts += [] if self.readout is None else [f"readout {self.readout!r}"]
        parts += [] if like is None else [f"{str(like.dtype).removeprefix('torch.')} on {like.device}"]
        return f"Network({', '.join(parts)})"

    @property
    def state(self) -> Params:
        """Parameters and buffers by name."""
        return {**self.params, **self.buffers}

    @property
    def identity(self) -> dict[str, object]:
        """The identity of this network: the code of its forward pass, its settings, weights and buffers."""
        return {
            "forward": code_of(self.module),
            "readout": self.readout,
            "apart": self.couples_inputs,
            "members": self.members,
            "weights": fingerprint(self.state),
        }

    @under_torch_defaults
    def witness(self, x: Any, device: torch.device) -> list[tuple[Tensor, float]] | None:
        """Outputs on a few inputs with their rounding tolerance; ``None`` if the forward pass fails.

        Each group has one scale. There is one for each output at the inputs, and one far from them, where differences with a large
        step are taken. There is one for the gradient with respect to the inputs, and one for each parameter.
        """
        like = next(iter(self.params.values()))
        if any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in self.module.modules()):
            # Made-up inputs may be no ids: an error on a CPU, but on a GPU the end of the process.
            device = torch.device("cpu")
        # In float64 a change shows that rounding would hide; some forward passes are written for one precision.
        for dtype, rounding in ((torch.float64, 1e-7), (like.dtype, 1e-3 if like.dtype.itemsize > 2 else 5e-2)):
            with contextlib.suppress(Exception), forked_rng(seed_of(0, "witness")):
                inputs = placed(x, device, dtype, copy=True)
                return _behaviour(self.to(device, dtype), inputs, rounding)
        return None

    def with_params(self, params: Params, buffers: Params | None = None) -> Network:
        """The same function at other weights."""
        return dataclasses.replace(self, params=params, buffers=self.buffers if buffers is None else buffers)

    def read(self, readout: str) -> Network:
        """The network with one scalar output per input.

        Raises:
            ValueError: If there is no such readout.
        """
        if readout not in READOUTS:
            known = ", ".join(repr(name) for name in READOUTS)
            raise ValueError(f"readout must be one of {known}, got {readout!r}. Pass readout='first'.")
        return dataclasses.replace(self, readout=readout)

    @under_torch_defaults
    def member(self, index: int) -> Network:
        """One network of a stack; raises ``ValueError`` if this is a single network."""
        if self.members is None:
            raise ValueError("member needs a stack, got one network. Leave member out.")
        return self._cut(lambda tensor: tensor[index], None)

    @under_torch_defaults
    def slice(self, start: int, stop: int) -> Network:
        """A part of a stack."""
        return self._cut(lambda tensor: tensor[start:stop], stop - start)

    def _cut(self, cut: Callable[[Tensor], Tensor], members: int | None) -> Network:
        params, buffers = ({name: cut(tensor) for name, tensor in each.items()} for each in (self.params, self.buffers))
        return dataclasses.replace(self, params=params, buffers=buffers, members=members)

    @under_torch_defaults
    def to(self, device: torch.device, dtype: torch.dtype) -> Network:
        """The same weights on a device and in a type."""
        return self.with_params(weights.moved(self.params, device, dtype), weights.moved(self.buffers, device, dtype))

    @under_torch_defaults
    def as_module(self) -> nn.Module:
        """An ordinary module with these weights (one network, without its readout)."""
        if self.members is not None:
            raise ValueError("as_module needs one network, got a stack. Pass network.member(0).")
        module = copied(self.module, type(self.module).__name__).requires_grad_()
        forget_as_made(module)
        for name, tensor in self.state.items():
            owner = module.get_submodule(name.rpartition(".")[0])
            getattr(owner, name.rpartition(".")[2]).data = tensor.detach().clone()
        return module


def _behaviour(network: Network, x: Any, rounding: float) -> list[tuple[Tensor, float]]:
    """Outputs at inputs and far from them, each by itself, and gradients by inputs and weights, with their tolerances."""
    generator = torch.Generator().manual_seed(0)

    def far(tensor: Tensor) -> Tensor:
        if not is_real(tensor):
            return tensor
        return tensor + _FAR * torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)

    groups: list[tuple[Tensor, float]] = []
    with torch.no_grad():
        for inputs in (x, on_tensors(far, x)):
            outputs = network(cloned(inputs))
            rows = outputs.detach().reshape(outputs.shape[0], -1).double().cpu()
            groups += [(part.clone(), rounding) for part in rows.T[:: max(1, rows.shape[1] // _COLUMNS)]]
    with contextlib.suppress(Exception), torch.enable_grad():  # not every network can be differentiated by everything
        groups += [(slope, max(rounding, _BENT)) for slope in _slopes(network, x, generator)]
    return groups


def _slopes(network: Network, x: Any, generator: torch.Generator) -> list[Tensor]:
    """Gradients of a random combination of the outputs: by each input, and by each parameter in short."""
    moving = {name: part.detach().clone().requires_grad_() for name, part in network.params.items()}
    places = tree_map(lambda leaf: leaf.clone().requires_grad_() if is_real(leaf) else leaf, x)
    outputs = network(tree_map(lambda leaf: leaf + 0 if is_real(leaf) else leaf, places), moving)
    mixture = torch.randn(outputs.shape, generator=generator, dtype=torch.float64).to(outputs)
    wanted = [*(leaf for leaf in tree_leaves(places) if is_real(leaf)), *moving.values()]
    found = torch.autograd.grad((outputs * mixture).sum(), wanted, allow_unused=True, materialize_grads=True)
    inputs = len(wanted) - len(moving)
    short = []
    for gradient in found[inputs:]:
        flat = gradient.detach().flatten().double().cpu()
        along = torch.randn(flat.shape, generator=generator, dtype=torch.float64)
        short.append(torch.stack([flat.norm(), flat @ along]))
    return [gradient.detach().double().cpu() for gradient in found[:inputs]] + short
