"""A linearised network against the network itself: time of a forward pass and of a training step, in one process.

    python benchmarks/linearization.py                          # batches of 32 on a CPU, of 128 on a GPU
    python benchmarks/linearization.py --networks resnet18 --device cuda --precision bfloat16

First the linearised outputs and gradients are checked in float64 against the plain network's derivative. Then both sides
take turns on the same batch, layout and precision; each time is the best of many. A step is forward, loss, backward and an
SGD update. The plain network runs with BatchNorm in eval mode, as the linearised one always does; its step in train mode is
printed beside it. On a GPU everything is timed twice: called operation by operation, and replayed as a CUDA graph, which
is how ``fit`` trains. The forward pass of a linearised network has three products for each of the plain one's, so that 3
is what arithmetic alone would give a deep network; the step has five for three.
"""

import argparse
import functools
import json
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from biascope import Network, Run, network
from biascope.derivatives.linearize import linearize
from biascope.runs.randomness import forked_rng
from biascope.training.steps import half_precision

BUILDERS = {name: network(name) for name in ("lenet", "resnet18", "vit")}
BUILDERS["mlp"] = functools.partial(network("mlp"), hidden=(100, 100))
MOST_FORWARD, MOST_STEP = 3.0, 2.5  # targets


def moved(start, size=0.01):
    """Weights a little away from where the network was linearised."""
    draw = torch.Generator().manual_seed(1)
    noise = {name: torch.randn(tensor.shape, generator=draw) for name, tensor in start.params.items()}
    return {name: tensor + size * noise[name].to(tensor) for name, tensor in start.params.items()}


def check(build, device):
    """The largest relative errors of linearised outputs and gradients against plain derivatives, in float64."""
    with forked_rng(0):
        start = Network.of(build()).to(device, torch.float64)
    x = torch.randn(4, 1, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)
    params, line = moved(start), linearize(start)
    direction = {name: params[name] - start.params[name] for name in params}

    # By reverse mode twice, which shares no formula with the forward mode of the linearised network.
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in start.params.items()}
    outputs = start(x, leaves)
    dummy = torch.zeros_like(outputs, requires_grad=True)
    gradients = torch.autograd.grad(outputs, list(leaves.values()), dummy, create_graph=True)
    slope = torch.autograd.grad(gradients, dummy, [direction[name] for name in leaves], retain_graph=True)[0]
    wanted = (outputs + slope).detach()
    expected = torch.autograd.grad(outputs, list(leaves.values()), torch.ones_like(outputs))

    module = line.with_params(params).as_module()
    found = module(x)
    found.sum().backward()
    error = float((found - wanted).detach().abs().max() / wanted.abs().max())
    of_gradient = max(
        float((parameter.grad - right).abs().max() / right.abs().max().clamp(min=1e-30))
        for parameter, right in zip(module.parameters(), expected, strict=True)
    )
    return error, of_gradient


def task_of(module, x, y, run, *, training):
    """A forward pass and a training step of a module on a batch."""
    module.train(training)
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-4, foreach=True)

    def forward():
        with torch.no_grad(), half_precision(run):
            return module(x)

    def step():
        optimiser.zero_grad(set_to_none=True)
        with half_precision(run):
            outputs = module(x)
        F.softplus(-y * outputs.flatten().to(y.dtype)).mean().backward()
        optimiser.step()

    return forward, step


def replayed(work):
    """The same work as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def best_times(works, device, seconds, clock):
    """The best time of each, in milliseconds, all taking turns; a GPU gets ten calls at a time."""
    calls = 10 if device.type == "cuda" else 1
    times = [[] for _ in works]
    for round_number in range(1_000_000):
        for work, taken in zip(works, times, strict=True):
            if device.type == "cuda":
                torch.cuda.synchronize()
            begin = clock()
            for _ in range(calls):
                work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            taken.append((clock() - begin) / calls)
        if round_number == 2:  # warm
            times, begun = [[] for _ in works], time.perf_counter()
        if round_number >= 5 and time.perf_counter() - begun > seconds:
            return [1000 * min(taken) for taken in times]


def measured(build, batch, run, seconds, clock, *, captured):
    """Milliseconds of forward and step for plain (eval), plain (train) and linearised."""
    device, last = run.torch_device, run.torch_device.type == "cuda"
    with forked_rng(0):
        start = Network.of(build()).to(device, torch.float64 if run.precision == "float64" else torch.float32)
    dtype = next(iter(start.params.values())).dtype
    x = torch.randn(batch, 1, 32, 32, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    y = 2.0 * torch.randint(2, (batch,), generator=torch.Generator().manual_seed(3)).to(device, dtype) - 1
    plain, trained = start.as_module(), start.as_module()
    line = linearize(start).with_params(moved(start)).as_module()
    if last:  # the layout in which a GPU's convolutions are fastest, for both sides
        x = x.contiguous(memory_format=torch.channels_last)
        plain, trained, line = (each.to(memory_format=torch.channels_last) for each in (plain, trained, line))
    pairs = [
        task_of(plain, x, y, run, training=False),
        task_of(trained, x, y, run, training=True),
        task_of(line, x, y, run, training=True),
    ]
    with run.products():
        works = [[replayed(work) if captured else work for work in pair] for pair in pairs]
        forwards = best_times([pair[0] for pair in works], device, seconds, clock)
        steps = best_times([pair[1] for pair in works], device, seconds, clock)
    return forwards, steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", nargs="+", default=["mlp", "lenet", "resnet18", "vit"], choices=sorted(BUILDERS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", nargs="+", default=None, help="float64, float32, tf32, bfloat16")
    parser.add_argument("--batch", type=int)
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="for the forward passes and for the steps of a network"
    )
    parser.add_argument("--threads", type=int, help="of a CPU")
    parser.add_argument(
        "--own-time", action="store_true", help="count what one thread works, on a machine that others use"
    )
    options = parser.parse_args()
    if options.own_time or options.threads:
        torch.set_num_threads(1 if options.own_time else options.threads)
    clock = time.thread_time if options.own_time else time.perf_counter
    device = Run(device=options.device).torch_device
    on_gpu = device.type == "cuda"
    precisions = options.precision or (["float32", "tf32", "bfloat16"] if on_gpu else ["float32"])
    batch = options.batch or (128 if on_gpu else 32)
    where = torch.cuda.get_device_name(device) if on_gpu else f"{torch.get_num_threads()} CPU threads"
    print(
        f"device: {where}, batch {batch}, torch {torch.__version__}; targets: forward {MOST_FORWARD}, step {MOST_STEP}"
    )
    for name in options.networks:
        outputs, gradients = check(BUILDERS[name], device)
        print(f"{name}: relative error in float64: outputs {outputs:.0e}, gradients {gradients:.0e}")
    columns = ("network", "precision", "called", "forward: plain", "linearised", "÷", "step: plain", "linearised", "÷")
    columns = (*columns, "step: plain, train mode", "÷")
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    rows = []
    for name in options.networks:
        for precision in precisions:
            run = Run(device=options.device, precision=precision, progress=False)
            for captured in (False, True) if on_gpu else (False,):
                (f, _, f_line), (s, s_train, s_line) = measured(
                    BUILDERS[name], batch, run, options.seconds, clock, captured=captured
                )
                how = "as a graph" if captured else "one by one"
                print(
                    f"| {name} | {precision} | {how} | {f:.3f} ms | {f_line:.3f} ms | {f_line / f:.2f} | {s:.3f} ms | "
                    f"{s_line:.3f} ms | {s_line / s:.2f} | {s_train:.3f} ms | {s_line / s_train:.2f} |",
                    flush=True,
                )
                rows.append([name, precision, how, f, f_line, s, s_line, s_train])
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "linearization.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
