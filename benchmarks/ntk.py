"""The empirical tangent kernel against its peers, all in one run.

    python benchmarks/ntk.py [--threads 2] [--samples lenet=1024,resnet18=32] [--precision float32] [--json FILE]
    python benchmarks/ntk.py --full --device cuda [--samples resnet18=60000,lenet=60000,mlp=60000] [--pairs 1000]

Peers: nngeometry, curvlinops and the recipe of PyTorch's tutorial on neural tangent kernels, each in every setting that
could be its fastest: all are checked against a float64 dense Jacobian, all are timed, the fastest one goes into the table.
Time is the best of several rounds, in which the contenders take turns; memory is the extra peak of a fresh process after
imports, model and inputs. BatchNorm is in eval mode, there is one output. On a machine that does other work at the same
time, set OMP_WAIT_POLICY=PASSIVE: threads that spin while they wait for one another take many times longer there.

``--full`` times our own kernel matrix of a whole data set of random images, and its leading eigenpairs.
"""

# n samples · p parameters

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap

import biascope
from biascope.runs.run import Run

Kernel = Callable[[], Tensor]
LIBRARIES = {"nngeometry": "nngeometry", "curvlinops": "curvlinops-for-pytorch"}
SQUARE = ("J (Jᵀ I)", "vector products")  # settings with a pass for each pair, first tried on a part of the samples,
PILOT = 16  # this part
HOPELESS = 3.0  # a setting so much slower than its contender's best is not run again
TOLERANCE = 1e-3  # a larger relative error is no rounding


# ---- contenders: each gives its settings, by name, for a module and inputs -----------------------------------------------


def ours(module: nn.Module, x: Tensor, run: Run) -> dict[str, Kernel]:
    from biascope.kernels.gram import tangent_gram

    network = biascope.Network.of(module).read("first")
    return {"": lambda: tangent_gram(network, x, run=run).matrix}


def nngeometry(module: nn.Module, x: Tensor, run: Run) -> dict[str, Kernel]:
    """Its Gram matrix, layer by layer, or its whole Jacobian; two ways through a convolution; one batch or two."""
    from nngeometry import GramMatrix, Jacobian
    from nngeometry.backend.torch_hooks import grads_conv
    from torch.utils.data import DataLoader

    def through(convolutions: str, kernel: Callable[[DataLoader], Tensor], batches: int) -> Kernel:
        def once() -> Tensor:
            # Indexing batches at once spares it the time to collate them; its buffers have the default type.
            loader = DataLoader(range(len(x)), batch_size=-(-len(x) // batches), collate_fn=lambda rows: [x[rows]])
            before = torch.get_default_dtype()
            torch.set_default_dtype(x.dtype)
            try:
                with getattr(grads_conv, f"use_{convolutions}_impl_for_convs")():
                    return kernel(loader)
            finally:
                torch.set_default_dtype(before)

        return once

    def gram(loader: DataLoader) -> Tensor:
        return GramMatrix(module, loader).to_torch()[0, :, 0]

    def jacobian(loader: DataLoader) -> Tensor:
        return contracted([Jacobian(module, loader).to_torch()[0]])  # of (n, p)

    return {
        "Gram, unfold": through("unfold", gram, 1),
        "Gram, conv": through("conv", gram, 1),
        "Gram, conv, 2 batches": through("conv", gram, 2),
        "Jacobian, unfold": through("unfold", jacobian, 1),
        "Jacobian, conv": through("conv", jacobian, 1),
    }


def curvlinops(module: nn.Module, x: Tensor, run: Run) -> dict[str, Kernel]:
    """J Jᵀ by its operators on all samples; or Jᵀ I for a few samples at a time, contracted by one product a parameter."""
    from curvlinops import JacobianLinearOperator, TransposedJacobianLinearOperator

    params = list(module.parameters())

    def products() -> Tensor:
        jacobian = JacobianLinearOperator(module, params, [(x, x[:, :0])], check_deterministic=False, num_data=len(x))
        transposed = jacobian.adjoint()
        return torch.cat([jacobian @ (transposed @ columns) for columns in identity(x, len(x)).split(8, 1)], 1)

    def rows(chunk: int) -> Kernel:
        def once() -> Tensor:
            pieces: list[list[Tensor]] = []  # (chunk, size of a parameter)
            for part in x.split(chunk):
                transposed = TransposedJacobianLinearOperator(
                    module, params, [(part, part[:, :0])], check_deterministic=False, num_data=len(part)
                )
                columns = identity(x, len(part)).unsqueeze(1)  # (n, outputs, n)
                pieces.append([piece.flatten(0, -2).T for piece in transposed @ [columns]])
            return contracted(torch.cat(of_one) for of_one in zip(*pieces, strict=True))

        return once

    chunks = [chunk for chunk in (1, 2, 8, 16) if chunk <= len(x)]
    return {**{f"Jᵀ I, {chunk} at a time": rows(chunk) for chunk in chunks}, "J (Jᵀ I)": products}


def recipe(module: nn.Module, x: Tensor, run: Run) -> dict[str, Kernel]:
    """The tutorial's two ways: contraction of per-sample Jacobians, and one product Jᵀ then J for every pair."""
    params = {name: tensor.detach() for name, tensor in module.named_parameters()}
    buffers = dict(module.named_buffers())

    def output(weights: dict[str, Tensor], point: Tensor) -> Tensor:
        return functional_call(module, (weights, buffers), (point[None],))[0]  # (1,)

    def contraction(chunk: int | None) -> Kernel:
        @torch.no_grad()
        def once() -> Tensor:
            jacobians = vmap(jacrev(output), (None, 0), chunk_size=chunk)(params, x)
            return contracted(jacobian.flatten(1) for jacobian in jacobians.values())

        return once

    def entry(one: Tensor, two: Tensor) -> Tensor:
        def product(direction: Tensor) -> Tensor:
            (gradient,) = vjp(lambda weights: output(weights, one), params)[1](direction)
            tangent: Tensor = jvp(lambda weights: output(weights, two), (params,), (gradient,))[1]
            return tangent

        return vmap(product)(identity(x, 1))[0, 0]

    @torch.no_grad()
    def pairs() -> Tensor:
        return vmap(vmap(entry, (None, 0)), (0, None))(x, x)

    chunks = [chunk for chunk in (1, 4, 64, 256) if chunk < len(x)]
    return {
        "contraction, whole": contraction(None),
        **{f"contraction, {chunk} at a time": contraction(chunk) for chunk in chunks},
        "vector products": pairs,
    }


CONTENDERS = {"Biascope": ours, "nngeometry": nngeometry, "curvlinops": curvlinops, "torch.func recipe": recipe}


def identity(x: Tensor, size: int) -> Tensor:
    return torch.eye(size, dtype=x.dtype, device=x.device)


def contracted(jacobians: Iterable[Tensor]) -> Tensor:
    """Σ J Jᵀ over the columns' parts ``(n, size)``; shorter sums for the sake of float32."""
    parts = (part for jacobian in jacobians for part in jacobian.split(2**16, 1))
    first = next(parts)
    kernel = first @ first.T
    for part in parts:
        kernel.addmm_(part, part.T)
    return kernel


def settings_of(contender: str, module: nn.Module, x: Tensor, run: Run) -> dict[str, Kernel]:
    """The contender's settings, each with a module of its own: a peer that fails half way leaves its hooks behind."""
    names = CONTENDERS[contender](module, x, run)
    return {name: CONTENDERS[contender](copy.deepcopy(module), x, run)[name] for name in names}


def installed() -> list[str]:
    """The contenders of this environment; a sentence for each that is missing."""
    names = []
    for name in CONTENDERS:
        if name in LIBRARIES and importlib.util.find_spec(name) is None:
            print(f'{name} is not installed and is left out. Install it with: pip install "biascope[peers]"')
        elif name == "Biascope" and importlib.util.find_spec("biascope.kernels.gram") is None:
            print("This version of Biascope has no Gram engine, and is left out.")
        else:
            names.append(name)
    return names


# ---- what is measured ----------------------------------------------------------------------------------------------------


def module_and_inputs(name: str, samples: int, run: Run, channels: int = 1) -> tuple[nn.Module, Tensor]:
    """A network of the library and Gaussian images, the same in every process and precision."""
    settings = {"hidden": (100, 100)} if name == "mlp" else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = biascope.network(name)(channels=channels, **settings)
    x = torch.randn(samples, channels, 32, 32, generator=torch.Generator().manual_seed(1))
    return module.eval().to(run.torch_device, run.dtype), x.to(run.torch_device, run.dtype)


def dense_kernel(module: nn.Module, x: Tensor) -> Tensor:
    """The oracle: a float64 Jacobian, one sample at a time by plain autograd, times its transpose."""
    exact = copy.deepcopy(module).double()
    params = list(exact.parameters())
    rows = []
    for point in x.double().split(1):
        gradients = torch.autograd.grad(exact(point).reshape(()), params, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    jacobian = torch.stack(rows)
    return jacobian @ jacobian.T


def error_of(kernel: Tensor, exact: Tensor) -> float:
    """Largest deviation relative to ``√(K_ii K_jj)``."""
    scale = exact.diagonal().sqrt()
    return float(((kernel.double() - exact) / (scale[:, None] * scale)).abs().max())


def synchronised() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(kernel: Kernel) -> tuple[float, Tensor]:
    begin = synchronised()
    matrix = kernel()
    return synchronised() - begin, matrix


def memory(device: torch.device) -> int:
    """Peak memory so far, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError):
        # Of this program alone: what getrusage gives survives exec, and would be that of the process that started us.
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        if found is not None:
            return 1024 * int(found[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_alone(contender: str, setting: str, network: str, samples: int, run: Run) -> None:
    """Prints the extra peak memory of one computation in this process, which has done nothing else."""
    module, x = module_and_inputs(network, samples, run)
    kernel = CONTENDERS[contender](module, x, run)[setting]
    before = memory(run.torch_device)
    with run.products():
        kernel()
    print(memory(run.torch_device) - before)


def extra_memory(contender: str, setting: str, network: str, samples: int, run: Run) -> float:
    """Extra peak memory in MiB, from a process of its own."""
    job = json.dumps([contender, setting, network, samples])
    command = [sys.executable, __file__, "--alone", job, "--device", run.device, "--precision", run.precision]
    command += ["--threads", str(torch.get_num_threads())]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        print(f"{contender}: its memory could not be measured: {answer.stderr.strip().splitlines()[-1]}")
        return float("nan")
    return float(answer.stdout.split()[-1]) / 2**20


# ---- cases that a layer-by-layer method gets wrong if it is careless ------------------------------------------------------


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(64, 64), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.layer(x.flatten(1)).tanh()).tanh())


class RawParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(64, 64), nn.Parameter(torch.linspace(-0.2, 0.2, 64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x.flatten(1)).tanh() @ self.head)[:, None]


def convolutional(groups: int) -> nn.Module:
    layer = nn.Conv2d(4, 8, 3, padding=1, groups=groups)
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(8 * 16, 1))


CASES: dict[str, Callable[[], nn.Module]] = {
    "module called twice": CalledTwice,
    "grouped convolution": lambda: convolutional(2),
    "depthwise convolution": lambda: convolutional(4),
    "raw parameter": RawParameter,
}


def correctness(contenders: list[str], networks: list[str], run: Run) -> list[dict[str, object]]:
    """Every setting of every contender on small cases: its error, or the error it raises."""
    cases: dict[str, tuple[nn.Module, Tensor]] = {
        f"{name}, {precision}": module_and_inputs(name, 4, Run(device=run.device, precision=precision))
        for name in networks
        for precision in dict.fromkeys([run.precision, "float64"])
    }
    x = torch.randn(4, 4, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, build in CASES.items():
            cases[name] = build().eval().to(run.torch_device, torch.float64), x.to(run.torch_device)
    rows: dict[str, dict[str, object]] = {}
    for case, (module, inputs) in cases.items():
        precision = case.rpartition(", ")[2] if ", " in case else "float64"
        exact = dense_kernel(module, inputs)
        as_told = Run(device=run.device, precision=precision, progress=False)
        for contender in contenders:
            for setting, kernel in settings_of(contender, module, inputs, as_told).items():
                row = rows.setdefault(f"{contender} {setting}", {"contender": contender, "setting": setting})
                try:
                    with as_told.products():
                        error = error_of(kernel(), exact)
                    row[case] = ("right" if error < TOLERANCE else "**wrong**") + f" ({error:.0e})"
                except Exception as failure:  # a peer may raise anything
                    row[case] = f"raises {type(failure).__name__}"
    return list(rows.values())


# ---- the race ------------------------------------------------------------------------------------------------------------


def race(contenders: list[str], network: str, samples: int, rounds: int, run: Run) -> list[dict[str, object]]:
    """Time, memory and error of every contender in its fastest setting, after one turn to warm up."""
    module, x = module_and_inputs(network, samples, run)
    few = x[: max(2, samples // PILOT)]
    kernels = {(name, s): kernel for name in contenders for s, kernel in settings_of(name, module, x, run).items()}
    some = torch.randperm(samples, generator=torch.Generator().manual_seed(2))[:12].to(x.device)
    exact = dense_kernel(module, x[some])
    seconds = dict.fromkeys(kernels, float("inf"))
    errors = dict.fromkeys(kernels, float("nan"))
    print(f"\n{network}, n = {samples}, {run.precision}, all settings:", flush=True)

    def best(contender: str) -> float:
        return min(spent for (name, _), spent in seconds.items() if name == contender)

    for turn in range(rounds + 1):  # contenders take turns, so that a disturbance of the machine meets all alike
        for (name, setting), kernel in list(kernels.items()):
            try:
                with run.products():
                    if turn == 0 and setting in SQUARE:
                        pilot = timed(settings_of(name, module, few, run)[setting])[0]
                        seconds[name, setting] = pilot * (samples / len(few)) ** 2
                    if seconds[name, setting] <= HOPELESS * best(name) or (turn < 2 and setting not in SQUARE):
                        spent, matrix = timed(kernel)
                        seconds[name, setting] = spent if turn == 0 else min(spent, seconds[name, setting])
                        errors[name, setting] = error_of(matrix[some][:, some], exact)
            except RuntimeError as failure:  # too little memory, for one
                print(f"{name}, {setting} left out: {str(failure).splitlines()[0]}", flush=True)
                del kernels[name, setting], seconds[name, setting]
    for (name, setting), spent in seconds.items():
        far = " (from a few samples)" if errors[name, setting] != errors[name, setting] else ""
        print(f"- {name}{', ' * bool(setting)}{setting}: {spent:.3f} s{far}", flush=True)
    return [
        {
            "network": network,
            "n": samples,
            "contender": name,
            "setting": setting,
            "seconds": spent,
            "÷ ours": spent / best("Biascope") if "Biascope" in contenders else float("nan"),
            "extra MiB": extra_memory(name, setting, network, samples, run),
            "error": errors[name, setting],
        }
        for (name, setting), spent in seconds.items()
        if spent == best(name)
    ]


# ---- a whole data set, ours alone ----------------------------------------------------------------------------------------


def leading_pairs(matrix: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues of a kernel matrix, and ‖K v − λ v‖ of each relative to it."""
    pairs = biascope.eigenpairs(biascope.Matrix(matrix), num, iterate=True, each=True, tolerance=5e-4)
    return pairs.values, pairs.residuals * pairs.values[0] / pairs.values


def whole(network: str, samples: int, num: int, plan: bool, run: Run) -> dict[str, object]:
    """Our kernel matrix of a data set, its leading eigenpairs, memory, and its error on a random block."""
    from biascope.kernels.gram import tangent_gram

    module, x = module_and_inputs(network, samples, run, channels=3)
    scalar = biascope.Network.of(module).read("first")
    tangent_gram(scalar, x[: min(samples, 256)], run=run)  # libraries start, kernels are chosen
    if run.torch_device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = synchronised()
    gram = tangent_gram(scalar, x, run=run)
    middle = synchronised()
    peak = memory(run.torch_device)
    values, residuals = leading_pairs(gram.matrix, min(num, samples))
    end = synchronised()
    some = torch.randperm(samples, generator=torch.Generator().manual_seed(2))[:16]
    block = gram.matrix[some.to(gram.matrix.device)][:, some.to(gram.matrix.device)]
    if plan:
        print(f"\n{network}: {gram.plan}", flush=True)
    return {
        "network": network,
        "n": samples,
        "Gram s": middle - begin,
        "peak GiB": peak / 2**30,
        "error": error_of(block, dense_kernel(module, x[some.to(x.device)]).to(block.device)),
        "pairs": len(values),
        "pairs s": end - middle,
        "largest residual ÷ λ": float(residuals.max()),
        "λ first ÷ last": float(values[0] / values[-1]),
        "peak GiB, pairs": memory(run.torch_device) / 2**30,
    }


# ---- printing ------------------------------------------------------------------------------------------------------------


def machine(run: Run) -> str:
    versions = [f"torch {torch.__version__}", f"Python {platform.python_version()}", f"biascope {biascope.__version__}"]
    for library in LIBRARIES.values():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{library} {importlib.metadata.version(library)}")
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        cpu = found[1] if found else cpu
    where = torch.cuda.get_device_name() if run.torch_device.type == "cuda" else cpu
    load = f"{os.getloadavg()[0]:.1f} of {os.cpu_count()} cores busy at the start"
    today = datetime.datetime.now(datetime.UTC).date()
    return f"{where}, {torch.get_num_threads()} threads, {load}; {', '.join(versions)}; {run.precision}; {today}"


def cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_table(rows: list[dict[str, object]]) -> None:
    if rows:
        lines = [list(rows[0]), ["---"] * len(rows[0]), *([cell(row[key]) for key in rows[0]] for row in rows)]
        print("\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="", help="float32, or tf32 with --full, by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", default="", help="comma-separated network=n")
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender is timed, its best being kept")
    parser.add_argument("--full", action="store_true", help="our kernel of a whole data set, and its eigenpairs")
    parser.add_argument("--pairs", type=int, default=1000, help="eigenpairs with --full")
    parser.add_argument("--plan", action="store_true", help="with --full, the rule of each parameter")
    parser.add_argument("--json", default="")
    parser.add_argument("--alone", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")  # of the peers
    precision = options.precision or ("tf32" if options.full else "float32")
    run = Run(device=options.device, precision=precision, progress=False)
    if options.alone:
        peak_alone(*json.loads(options.alone), run)
        return
    usual = "resnet18=60000,lenet=60000,mlp=60000" if options.full else "lenet=1024,resnet18=32"
    samples = {name: int(num) for name, num in (part.split("=") for part in (options.samples or usual).split(","))}
    print(machine(run) + "\n", flush=True)
    tables: dict[str, list[dict[str, object]]] = {}
    if options.full:
        tables["whole"] = []
        for name, num in samples.items():
            tables["whole"].append(whole(name, num, options.pairs, options.plan, run))
            print_table(tables["whole"][-1:])
    else:
        contenders = installed()
        tables["correctness"] = correctness(contenders, list(samples), run)
        print_table(tables["correctness"])
        tables["race"] = []
        for name, num in samples.items():
            tables["race"] += race(contenders, name, num, options.rounds, run)
        print_table(tables["race"])
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": machine(run), **tables}, indent=1))


if __name__ == "__main__":
    main()
