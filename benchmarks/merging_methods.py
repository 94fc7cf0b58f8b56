"""Merging methods against mergekit and PEFT: equal numbers, where they leave their papers, time and memory.

    python benchmarks/merging_methods.py equal --mergekit PYTHON --peft PYTHON
    python benchmarks/merging_methods.py departures --mergekit PYTHON --peft PYTHON
    python benchmarks/merging_methods.py recipes --mergekit PYTHON
    python benchmarks/merging_methods.py time --mergekit PYTHON --numbers 1e9

Each option names the interpreter of an environment of its own, made by

    python3 -m venv ENV && ENV/bin/pip install -c constraints.txt mergekit==0.1.5     # or peft==0.21.2

equal        every dialect on a small model in float32: the largest difference from the released code, in units of the last digit
             of the largest weight. Random methods get the same uniform numbers on both sides. Asked: at most 4, and at most 32
             after a decomposition into singular values.
departures   small cases in which the released code gives another number than its paper, each run on the released code and here.
recipes      whole recipes, with filters and gradients over layers, by `merge apply --recipe` and by `mergekit-yaml`, on a small
             Llama in float32: the largest difference in the same units. Asked: at most 4, for SLERP at most 32. Numbers of
             equal magnitude at a cut may be swapped, one of 100,000 at most.
time         the same recipe by `biascope merge apply --recipe` and by `mergekit-yaml`, each in a fresh process, in turns: seconds
             of the wall and of the processor, and the largest anonymous memory. Weights are random, in bfloat16 and in the shape
             of a Llama. Asked: at most 500 MiB, and at most 1.2 times mergekit's time.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

MIB = 2**20
SHAPES = {"model.layers.0.mlp.weight": (48, 64), "model.layers.1.mlp.weight": (48, 64), "model.norm.weight": (64,)}

# What is compared: our name, mergekit's, its parameters.
OF_MERGEKIT = [
    ("linear", "linear", {"weight": [0.7, 0.3]}),
    ("task_arithmetic", "task_arithmetic", {"weight": [0.7, -0.3]}),
    ("task_arithmetic", "task_arithmetic", {"weight": [0.7, 0.3], "normalize": True, "lambda": 0.5}),
    ("slerp:mergekit", "slerp", {"t": 0.3}),
    ("nuslerp:mergekit", "nuslerp", {"weight": [0.7, 0.3]}),
    ("nuslerp:mergekit", "nuslerp", {"weight": [0.7, 0.3], "nuslerp_flatten": False}),
    ("nuslerp:mergekit", "nuslerp", {"weight": [0.7, 0.3], "nuslerp_flatten": False, "nuslerp_row_wise": True}),
    ("ties:mergekit", "ties", {"weight": [0.7, 0.3], "density": [0.2, 0.5]}),
    ("ties:mergekit", "ties", {"weight": [0.7, 0.3], "density": 0.5, "normalize": False, "lambda": 0.5}),
    ("dare:mergekit", "dare_linear", {"weight": [0.7, 0.3], "density": 0.4}),
    ("dare:mergekit", "dare_linear", {"weight": [0.7, 0.3], "density": 0.4, "rescale": False}),
    ("dare_ties:mergekit", "dare_ties", {"weight": [0.7, 0.3], "density": 0.4}),
    ("della:mergekit", "della", {"weight": [0.7, 0.3], "density": 0.4, "epsilon": 0.2}),
    ("della_linear:mergekit", "della_linear", {"weight": [0.7, 0.3], "density": 0.4, "epsilon": 0.2}),
    ("breadcrumbs:mergekit", "breadcrumbs", {"weight": [0.7, 0.3], "density": 0.6, "gamma": 0.05}),
    ("breadcrumbs_ties:mergekit", "breadcrumbs_ties", {"weight": [0.7, 0.3], "density": 0.6, "gamma": 0.0}),
    ("model_stock:mergekit", "model_stock", {}),
    ("sce:mergekit", "sce", {"select_topk": 0.3}),
    ("sce:mergekit", "sce", {}),
]
OF_PEFT = [
    ("linear:peft", "linear", {}),
    ("ties:peft", "ties", {"density": 0.4}),
    ("ties:peft", "ties", {"density": 0.4, "frequency": True}),
    ("ties_svd:peft", "ties_svd", {"density": 0.4}),
    ("dare:peft", "dare_linear", {"density": 0.4}),
    ("dare_ties:peft", "dare_ties", {"density": 0.4}),
    ("dare_svd:peft", "dare_linear_svd", {"density": 0.4}),
]


# What runs in the environments of the others ------------------------------------------------------------------------


def given_masks(uniforms):
    """A Bernoulli draw whose uniform numbers are given, one tensor for each call."""
    queue = iter(uniforms)
    return lambda chances: (next(queue).view(chances.shape) < chances).to(chances.dtype)


def by_mergekit(job):
    """The merged tensors of released mergekit."""
    from mergekit.merge_methods import registry
    from mergekit.merge_methods.base import TensorEntry, TensorGroup

    merged, drawn = {}, torch.bernoulli
    for name, start in job["base"].items():
        models = [TensorEntry(f"m{k}", model[name]) for k, model in enumerate(job["models"])]
        base = [] if job["method"] == "linear" else [TensorEntry("base", start, is_base=True)]
        entries = [*base, *models[1:]] if job["method"] == "slerp" else [*base, *models]
        if "uniforms" in job:
            torch.bernoulli = given_masks(job["uniforms"][name])
        elif "seed" in job:
            torch.manual_seed(job["seed"])
        group = TensorGroup(tuple(entries))
        (merged[name],) = registry.get(job["method"])([group], parameters=job["parameters"])
    torch.bernoulli = drawn
    return merged


def by_peft(job):
    """The updates of released PEFT's combined adapter, by layer."""
    import warnings

    from peft import LoraConfig, get_peft_model

    warnings.simplefilter("ignore")
    layers = {name: torch.nn.Linear(a.shape[1], b.shape[0], bias=False) for name, (a, b) in job["adapters"][0].items()}
    model = torch.nn.ModuleDict(layers)
    names = [f"a{k}" for k in range(len(job["adapters"]))]
    for k, (name, adapter) in enumerate(zip(names, job["adapters"], strict=True)):
        rank = len(next(iter(adapter.values()))[0])
        config = LoraConfig(
            r=rank, lora_alpha=job["alphas"][k], target_modules=list(layers), use_rslora=job.get("rslora", False)
        )
        model = get_peft_model(model, config, adapter_name=name) if not k else model
        if k:
            model.add_adapter(name, config)
        for layer, (a, b) in adapter.items():
            place = model.base_model.model[layer]
            place.lora_A[name].weight.data, place.lora_B[name].weight.data = a.clone(), b.clone()
    drawn = torch.bernoulli
    if "uniforms" in job:
        torch.bernoulli = given_masks(job["uniforms"])
    parameters = dict(job["parameters"])
    if parameters.pop("frequency", False):
        parameters["majority_sign_method"] = "frequency"
    model.base_model.add_weighted_adapter(names, job["weights"], "merged", combination_type=job["method"], **parameters)
    torch.bernoulli = drawn
    return {layer: model.base_model.model[layer].get_delta_weight("merged").detach() for layer in layers}


BY = {"mergekit": by_mergekit, "peft": by_peft}


def asked(python, who, jobs):
    """What the released code makes of some jobs, in its own environment."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(jobs, f"{folder}/jobs.pt")
        command = [python, str(Path(__file__).resolve()), "--child", who, folder]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        return torch.load(f"{folder}/found.pt", weights_only=True)


# Equal numbers ------------------------------------------------------------------------------------------------------


def random_models(shapes, count, size=0.02, seed=0):
    """A base and models near it."""
    stream = torch.Generator().manual_seed(seed)
    base = {name: torch.randn(shape, generator=stream) for name, shape in shapes.items()}
    shared = {name: size * torch.randn(shape, generator=stream) for name, shape in shapes.items()}
    return base, [
        {name: each + shared[name] + size * torch.randn(each.shape, generator=stream) for name, each in base.items()}
        for _ in range(count)
    ]


def uniforms_of(names, tensor, numbers, seed=0):
    """The uniform numbers that our masks are made of."""
    from biascope.editing.methods._masks import Chances

    return [Chances(seed, name, tensor).next(numbers) for name in names]


def assigned_of(parameters, names):
    """Our settings for mergekit's parameters."""
    from biascope.editing.methods._settings import Assigned

    found = []
    for key, value in parameters.items():
        if isinstance(value, list):
            found += [Assigned(key, (float(each),), name) for name, each in zip(names, value, strict=True)]
        else:
            found.append(Assigned(key, (float(value),)))
    return found


def by_us(base, models, method, settings, configs=None, seed=0):
    """What `merge` writes for the same tensors; of adapters, the update."""
    from biascope.editing.merge import merge
    from biascope.families import weights
    from biascope.families.checkpoint import Checkpoint

    with tempfile.TemporaryDirectory() as folder:
        weights.save(base, f"{folder}/base.safetensors")
        opened = []
        for k, model in enumerate(models):
            place = Path(folder) / (f"a{k}" if configs else f"m{k}.safetensors")
            if configs:
                place.mkdir()
                (place / "adapter_config.json").write_text(json.dumps(configs[k]))
                weights.save(model, place / "adapter_model.safetensors")
            else:
                weights.save(model, place)
            opened.append((Checkpoint.open(place), None))
        merge(
            Checkpoint.open(f"{folder}/base.safetensors"), opened, f"{folder}/out.safetensors", method=method,
            settings=settings, seed=seed, unrelated=True,
        )  # fmt: skip
        return weights.load(f"{folder}/out.safetensors")


def apart(ours, theirs):
    """The largest difference, in units of the last digit of the largest number."""
    unit = torch.finfo(torch.float32).eps * max(float(each.abs().max()) for each in theirs.values())
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) / unit


def row(ours, released, parameters, gap, moved):
    words = ", ".join(f"{key} {value}" for key, value in parameters.items()) or "usual settings"
    print(f"| `{ours}` | {released} | {words} | {moved:.0f} | {gap:.2g} |", flush=True)
    assert gap <= (32 if "svd" in ours else 4), "both must give the same numbers"


def measure_equal(options):
    base, models = random_models(SHAPES, 2)
    names = ["m0", "m1"]
    jobs = []
    for _, method, parameters in OF_MERGEKIT:
        job = {"method": method, "base": base, "models": models, "parameters": parameters}
        if method.startswith(("dare", "della")):
            job["uniforms"] = {name: uniforms_of(names, name, each.numel()) for name, each in base.items()}
        if method == "slerp":  # between the base and the other model
            job["models"] = [base, models[1]]
        jobs.append(job)
    print("| ours | released | settings | numbers that move | largest difference, units |\n|---|---|---|---|---|")
    for (ours, method, parameters), theirs in zip(OF_MERGEKIT, asked(options.mergekit, "mergekit", jobs), strict=True):
        mine = models[1:] if method == "slerp" else models
        found = by_us(base, mine, ours, assigned_of(parameters, names))
        moved = sum(int((theirs[name] != base[name]).sum()) for name in base)
        row(ours, f"mergekit `{method}`", parameters, apart(found, theirs), moved)
    adapters, scales, files, configs = random_adapters()
    jobs, given = [], [0.7, -0.4]
    for _, method, parameters in OF_PEFT:
        job = {"method": method, "adapters": adapters, "alphas": scales, "weights": given, "parameters": parameters}
        if method.startswith("dare"):
            job["uniforms"] = peft_uniforms(adapters, svd=method.endswith("svd"))
        jobs.append(job)
    start = {f"{layer}.weight": torch.zeros(len(b), a.shape[1]) for layer, (a, b) in adapters[0].items()}
    for (ours, method, parameters), theirs in zip(OF_PEFT, asked(options.peft, "peft", jobs), strict=True):
        settings = assigned_of({"weight": given, **parameters}, ["a0", "a1"])
        found = by_us(start, files, ours, settings, configs)
        theirs = {f"{layer}.weight": update for layer, update in theirs.items()}
        moved = sum(int(each.count_nonzero()) for each in theirs.values())
        row(ours, f"PEFT `{method}`", parameters, apart(found, theirs), moved)


def random_adapters(rank=4, count=2, seed=1, rslora=False):
    """Adapters of two layers, and what they are as files of PEFT."""
    stream = torch.Generator().manual_seed(seed)
    adapters = [
        {
            layer: (torch.randn(rank, 24, generator=stream), torch.randn(16, rank, generator=stream))
            for layer in ("first", "second")
        }
        for _ in range(count)
    ]
    scales = [8, 2, 4][:count]
    files = [
        {
            f"base_model.model.{layer}.lora_{side}.weight": factor
            for layer, pair in adapter.items()
            for side, factor in zip("AB", pair, strict=True)
        }
        for adapter in adapters
    ]
    configs = [{"peft_type": "LORA", "lora_alpha": alpha, "r": rank, "use_rslora": rslora} for alpha in scales]
    return adapters, scales, files, configs


def peft_uniforms(adapters, svd):
    """Our uniform numbers in the order in which PEFT draws."""
    found = []
    for layer, (a, b) in adapters[0].items():
        names, tensor = [f"a{k}" for k in range(len(adapters))], f"{layer}.weight"
        if svd:
            found += uniforms_of(names, tensor, len(b) * a.shape[1])
        else:
            found += uniforms_of([f"{name}/A" for name in names], tensor, a.numel())
            found += uniforms_of([f"{name}/B" for name in names], tensor, b.numel())
    return found


# Where released code leaves its paper -------------------------------------------------------------------------------


def column(*values):
    return torch.tensor([float(each) for each in values])


def measure_departures(options):
    """Each case: a job for the released code, and a function from what it gives to a line."""
    cases = [*cases_of_mergekit(), *cases_of_peft()]
    found = {
        "mergekit": iter(asked(options.mergekit, "mergekit", [job for who, job, _ in cases if who == "mergekit"])),
        "peft": iter(asked(options.peft, "peft", [job for who, job, _ in cases if who == "peft"])),
    }
    print("| case | paper | released |\n|---|---|---|")
    for who, _, told in cases:
        if line := told(next(found[who])):
            print("| " + " | ".join(line) + " |", flush=True)


def mergekit_job(method, base, models, parameters, **more):
    named = [model if isinstance(model, dict) else {"w": model} for model in models]
    return {
        "method": method,
        "base": base if isinstance(base, dict) else {"w": base},
        "models": named,
        "parameters": parameters,
        **more,
    }


def cases_of_mergekit():
    zero = column(0, 0)
    large, small = torch.arange(1.0, 11.0), 0.01 * torch.arange(1.0, 11.0)

    def ours(method, models, settings=None, start=None):
        start = torch.zeros_like(models[0]) if start is None else start
        found = by_us({"w": start}, [{"w": start + each} for each in models], method, assigned_of(settings or {}, []))
        return found["w"] - start

    def numbers(values):
        return ", ".join(f"{float(each):.4g}" for each in values.flatten())

    def both_layers(theirs):
        kept = [int(each.count_nonzero()) for each in theirs.values()]
        mine = by_us(
            {"large": 0 * large, "small": 0 * small}, [{"large": large, "small": small}], "ties", {"density": 0.5}
        )
        paper = [int(each.count_nonzero()) for each in mine.values()]
        return (
            "TIES, density 0.5: two tensors of ten numbers, one 100 times as large",
            f"trims the whole vector: {paper[0]} and {paper[1]} numbers are kept",
            f"trims each tensor: {kept[0]} and {kept[1]} are kept",
        )

    yield (
        "mergekit",
        mergekit_job(
            "ties",
            {"large": 0 * large, "small": 0 * small},
            [{"large": large, "small": small}],
            {"weight": 1.0, "density": 0.5},
        ),
        both_layers,
    )
    a, b = column(1.0, 1.0), column(-0.9, -1.0)
    yield (
        "mergekit",
        mergekit_job("ties", zero, [a, b], {"weight": [1.0, 2.0]}),
        lambda t: (
            "TIES of 1 and −0.9, weights 1 and 2",
            f"elects by Σ τ: {ours('ties', [a, b], {'density': 1})[0]:.4g}",
            f"elects by Σ w τ: {float(t['w'][0]):.4g}",
        ),
    )
    yield (
        "mergekit",
        mergekit_job("ties", zero, [a, b], {"weight": 1.0}),
        lambda t: (
            "TIES of 1 and −1",
            f"sgn 0 elects nothing: {ours('ties', [a, b], {'density': 1})[1]:.4g}",
            f"a tie becomes +: {float(t['w'][1]):.4g}",
        ),
    )
    yield (
        "mergekit",
        mergekit_job("ties", zero, [column(1, 2)], {"weight": -0.5}),
        lambda t: (
            "TIES of one model (1, 2) with weight −0.5",
            "the paper has no weights; negation gives −0.5, −1",
            f"`normalize` divides the weight out again: {numbers(t['w'])}",
        ),
    )
    heavy = column(10, *[1] * 9)
    mask = [torch.tensor([1.0, *[0.0] * 5, *[1.0] * 4])]
    yield (
        "mergekit",
        mergekit_job("dare_linear", 0 * heavy, [heavy], {"weight": 1.0, "density": 0.5}, uniforms={"w": mask}),
        lambda t: (
            "DARE, density 0.5: one number of 10 and nine of 1, where the mask drops the 10",
            "multiplies what is kept by 1/0.5 = 2",
            f"multiplies it by ‖τ‖₁/‖m τ‖₁ = {float(t['w'].max()):.4g}",
        ),
    )
    start, (one, two) = random_models({"w": (40, 40)}, 2)
    swapped = []

    def order(theirs):
        swapped.append(theirs["w"])
        if len(swapped) == 2:
            gap = float((swapped[0] - swapped[1]).norm() / (swapped[0] - start["w"]).norm())
            return (
                "DARE of A and B against B and A, same seed",
                "a mask is drawn for each model",
                f"masks go by position: the edits differ by {gap:.0%}",
            )
        return None

    for pair in ([one, two], [two, one]):
        models = [each["w"] for each in pair]
        yield "mergekit", mergekit_job("dare_linear", start, models, {"weight": 1.0, "density": 0.5}, seed=0), order
    ramp, many = (
        torch.arange(1.0, 11.0).repeat(20000, 1),
        [torch.rand(200_000, generator=torch.Generator().manual_seed(0))],
    )

    def window(theirs):
        kept = (theirs["w"] != 0).double().mean(0)
        mine = (ours("della", [ramp], {"density": 0.5, "epsilon": 0.2}) != 0).double().mean(0)
        return (
            "DELLA, density 0.5, ε = 0.2: share kept of the smallest and the largest of ten",
            f"a window of ε: {mine[0]:.2f} and {mine[-1]:.2f}",
            f"a window of 2 ε: {kept[0]:.2f} and {kept[-1]:.2f}",
        )

    yield (
        "mergekit",
        mergekit_job("della", 0 * ramp, [ramp], {"weight": 1.0, "density": 0.5, "epsilon": 0.2}, uniforms={"w": many}),
        window,
    )
    a2, b2 = column(6e-4, 6e-4), column(2e-4, 2e-4)
    yield (
        "mergekit",
        mergekit_job("sce", zero, [a2, b2], {}),
        lambda t: (
            "SCE of changes 6e−4 and 2e−4",
            f"weights 0.9 and 0.1: {float(ours('sce', [a2, b2], {'select_topk': 1})[0]):.2g}",
            f"Σ mean(τ²) < 1e−6, so 0.5 and 0.5: {float(t['w'][0]):.2g}",
        ),
    )
    angle = math.radians(1.5)
    c, d = column(1, 0), column(math.cos(angle), math.sin(angle))
    yield (
        "mergekit",
        mergekit_job("slerp", c, [c, d], {"t": 0.5}),
        lambda t: (
            "SLERP halfway between unit vectors 1.5° apart",
            f"stays on the sphere: norm {float((c + ours('slerp', [c - c, d - c], {'t': 0.5}, c)).norm()):.6f}",
            f"a straight line, because cos > 0.9995: norm {float(t['w'].norm()):.6f}",
        ),
    )
    yield (
        "mergekit",
        mergekit_job("nuslerp", zero, [column(3, 4), zero], {"weight": 1.0}),
        lambda t: (
            "NuSLERP of a tensor that only one of two models changed, by norm 5",
            f"a mean of both: {float(ours('nuslerp', [column(3, 4), zero]).norm()):.4g}",
            f"{float(t['w'].norm()):.4g}, 0.707 of it",
        ),
    )
    e, f = 1e-4 * column(2, 0), 1e-4 * column(1, math.sqrt(3))
    yield (
        "mergekit",
        mergekit_job("model_stock", zero, [e, f], {}),
        lambda t: (
            "Model stock of two changes of norm 2e−4, 60° apart",
            f"t = 2/3 of the mean: norm {float(ours('model_stock', [e, f]).norm()):.3g}",
            f"a product of norms below 1e−6 counts as 1e−6, so t is small: norm {float(t['w'].norm()):.3g}",
        ),
    )


def cases_of_peft():
    adapters, scales, files, configs = random_adapters()
    start = {f"{layer}.weight": torch.zeros(len(b), a.shape[1]) for layer, (a, b) in adapters[0].items()}
    products = [
        {layer: alpha / len(a) * b @ a for layer, (a, b) in adapter.items()}
        for adapter, alpha in zip(adapters, scales, strict=True)
    ]

    def job(method, weights=(1.0, 1.0), **more):
        parameters = more.pop("parameters", {})
        return {
            "method": method,
            "adapters": adapters,
            "alphas": scales,
            "weights": list(weights),
            "parameters": parameters,
            **more,
        }

    def far(theirs, wanted):
        gap = sum(float((theirs[layer] - wanted[layer]).square().sum()) for layer in wanted)
        return math.sqrt(gap / sum(float(each.square().sum()) for each in wanted.values()))

    def summed(theirs):
        wanted = {layer: sum(each[layer] for each in products) for layer in products[0]}
        gap = far(theirs, wanted)
        return (
            "`linear` of two adapters with weight 1",
            "Σ s B A",
            f"(Σ √s B)(Σ √s A), which mixes adapters: differs by {gap:.0%}",
        )

    def ties(theirs):
        mine = by_us(start, files, "ties:mergekit", {"density": 0.4}, configs)
        gap = far(theirs, {layer: mine[f"{layer}.weight"] for layer in products[0]})
        return (
            "`ties` of two adapters, density 0.4",
            "acts on the changes of weights, s B A",
            f"acts on A and B separately: differs by {gap:.0%}",
        )

    def empty(theirs):
        share = torch.cat([each.isnan().flatten() for each in theirs.values()]).double().mean()
        return ("`dare_linear` at density 0", "keeps nothing: 0", f"divides by 0: {share:.0%} of the numbers are NaN")

    def stabilised(theirs):
        wanted = {layer: 2 * each for layer, each in products[0].items()}  # s = α/√r is twice α/r at rank 4
        ratio = sum(float(each.norm()) for each in theirs.values()) / sum(
            float(each.norm()) for each in wanted.values()
        )
        return (
            "`svd` of one adapter with `use_rslora`, rank 4",
            "the adapter itself",
            f"{ratio:.3g} times its update: scaled by √r once more",
        )

    def twice(theirs):
        ratio = sum(float(each.norm()) for each in theirs.values()) / sum(
            float(each.norm()) for each in products[0].values()
        )
        return (
            "`svd` of one adapter, scale 2 (reported: scaled twice)",
            "the adapter itself",
            f"{ratio:.3g} times its update: fixed in 0.21",
        )

    yield "peft", job("linear"), summed
    yield "peft", job("ties", parameters={"density": 0.4}), ties
    yield "peft", job("dare_linear", parameters={"density": 0.0}), empty
    yield (
        "peft",
        {**job("svd", weights=[1.0]), "adapters": adapters[:1], "alphas": scales[:1], "rslora": True},
        stabilised,
    )
    yield "peft", {**job("svd", weights=[1.0]), "adapters": adapters[:1], "alphas": scales[:1]}, twice


# Time and memory ----------------------------------------------------------------------------------------------------


def llama(numbers):
    """Shapes and settings of a Llama of about so many parameters."""
    width = 2048 if numbers > 1e8 else 256
    inner, words = 4 * width, 32000 if numbers > 1e8 else 1000
    block = {
        **{f"self_attn.{side}_proj.weight": (width, width) for side in "qkvo"},
        **{f"mlp.{side}_proj.weight": (inner, width) for side in ("gate", "up")},
        "mlp.down_proj.weight": (width, inner),
        **{f"{name}_layernorm.weight": (width,) for name in ("input", "post_attention")},
    }
    blocks = max(1, round((numbers - words * width) / sum(math.prod(shape) for shape in block.values())))
    shapes = {"model.embed_tokens.weight": (words, width), "model.norm.weight": (width,)}
    shapes |= {f"model.layers.{k}.{name}": shape for k in range(blocks) for name, shape in block.items()}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": inner,
        "num_hidden_layers": blocks, "num_attention_heads": width // 64, "num_key_value_heads": width // 64,
        "vocab_size": words, "tie_word_embeddings": True,
    }  # fmt: skip
    return shapes, config


def write_llama(folder, numbers, seed, dtype=torch.bfloat16):
    """Random weights, near those of seed 0, in shards."""
    from biascope.families.checkpoint_writer import CheckpointWriter, Planned

    shapes, config = llama(numbers)
    config["torch_dtype"] = str(dtype).removeprefix("torch.")
    plan = {name: Planned(shape, dtype) for name, shape in sorted(shapes.items())}
    shared, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    with CheckpointWriter(folder, plan, shard_bytes=10**9) as writer:
        for name, (shape, _) in plan.items():
            total, most = math.prod(shape), 2**22
            for begin in range(0, total, most):
                count = min(most, total - begin)
                values = 0.02 * torch.randn(count, generator=shared)
                writer.write(name, values + (1e-3 * torch.randn(count, generator=own) if seed else 0))
    (folder / "config.json").write_text(json.dumps(config))


RECIPES = {
    "linear": ("linear", {}, {"weight": 0.5}),
    "task_arithmetic": ("task_arithmetic", {}, {"weight": 0.4}),
    "slerp": ("slerp", {"t": 0.4}, {}),
    "ties": ("ties", {"normalize": True}, {"weight": 0.5, "density": 0.2}),
    "dare": ("dare_linear", {}, {"weight": 0.5, "density": 0.5}),
    "model_stock": ("model_stock", {}, {}),
    "sce": ("sce", {"select_topk": 0.1}, {}),
}


def write_recipe(folder, name):
    method, shared, each = RECIPES[name]
    models = ["a"] if method == "slerp" else ["a", "b"]
    document = {
        "merge_method": method,
        "models": [{"model": str(folder / model), **({"parameters": each} if each else {})} for model in models],
        **({} if method == "linear" else {"base_model": str(folder / "base")}),
        **({"parameters": shared} if shared else {}),
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(document))  # JSON is YAML
    return path


FILTERED = [
    {"filter": "mlp", "value": [0.2, 0.9]},
    {"filter": "self_attn.q", "value": 0.0},
    {"value": 0.5},
]
WHOLE_RECIPES = {
    "linear": {"merge_method": "linear", "each": {"weight": [0.2, 0.8]}},
    "task_arithmetic": {"merge_method": "task_arithmetic", "each": {"weight": FILTERED}},
    "slerp": {"merge_method": "slerp", "parameters": {"t": FILTERED}},
    "ties": {
        "merge_method": "ties",
        "parameters": {"density": [0.3, 0.7], "lambda": 0.8},
        "each": {"weight": FILTERED},
    },
    "breadcrumbs": {"merge_method": "breadcrumbs", "each": {"weight": 0.5, "density": 0.8, "gamma": [0.01, 0.1]}},
    "model_stock": {"merge_method": "model_stock"},
    "sce": {"merge_method": "sce", "parameters": {"select_topk": 0.5}},
}


def measure_recipes(options):
    """Both programs from the recipe to the folder."""
    from biascope.families.checkpoint import Checkpoint

    program = str(Path(options.mergekit).parent / "mergekit-yaml")
    print("| recipe | largest difference, units | swapped for a number of equal magnitude |\n|---|---|---|")
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        folder = Path(root)
        for seed, name in enumerate(("base", "a", "b")):
            write_llama(folder / name, 4e6, seed, torch.float32)
        for name, document in WHOLE_RECIPES.items():
            document = dict(document)
            each = document.pop("each", {})
            models = ["a"] if name == "slerp" else ["a", "b"]
            document["models"] = [
                {"model": str(folder / model), **({"parameters": each} if each else {})} for model in models
            ]
            if name != "linear":
                document["base_model"] = str(folder / "base")
            recipe = folder / f"{name}.yaml"
            recipe.write_text(json.dumps(document))
            ours, theirs = folder / f"ours-{name}", folder / f"theirs-{name}"
            watched([sys.executable, "-m", "biascope", "merge", "apply", "--recipe", str(recipe), "--out", str(ours),
                     "--report-out", str(folder / f"report-{name}"), "--quiet"])  # fmt: skip
            watched([program, str(recipe), str(theirs), "--no-copy-tokenizer"])
            mine, released = (Checkpoint.open(each).params() for each in (ours, theirs))
            unit = torch.finfo(torch.float32).eps * max(float(each.abs().max()) for each in released.values())
            gaps = torch.cat([((mine[key] - released[key]).abs() / unit).flatten() for key in released])
            # mergekit's angle comes from a cosine near 1 in float32, ours from the distance in float64. Its sorts are not stable,
            # so that of equal magnitudes at a cut it keeps any, and we the first.
            far = gaps > (32 if name == "slerp" else 4)
            settings = json.dumps({**document.get("parameters", {}), **each})
            print(
                f"| {name}: {settings} | {float(gaps[~far].max()):.2g} | {int(far.sum())} of {len(far):,} |", flush=True
            )
            assert float(far.double().mean()) < 1e-5, "both must give the same numbers"


def watched(command):
    """Seconds of the wall and of the processor, and the peak of anonymous memory of a fresh process."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = 0
    while True:
        try:
            text = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
            peak = max(
                [peak, *(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("RssAnon"))]
            )
        except (OSError, ValueError):
            pass
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(0.01)
    if status:
        raise SystemExit(process.stderr.read().decode()[-2000:])
    return {"wall": time.perf_counter() - begin, "cpu": usage.ru_utime + usage.ru_stime, "peak": peak}


def measure_time(options):
    import shutil

    program = str(Path(options.mergekit).parent / "mergekit-yaml")
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        folder = Path(root)
        for seed, name in enumerate(("base", "a", "b")):
            write_llama(folder / name, options.numbers, seed)
        numbers = sum(math.prod(shape) for shape in llama(options.numbers)[0].values())
        print(f"{numbers / 1e9:.2f} billion parameters in bfloat16, two models and a base (SLERP: one and a base)\n")
        print(
            "| method | wall, s | mergekit | ratio | processor, s | mergekit | ratio | memory, MiB | mergekit |\n"
            + "|---" * 9
            + "|"
        )
        for name in options.methods or RECIPES:
            recipe, found = write_recipe(folder, name), {}
            ways = {
                "ours": [sys.executable, "-m", "biascope", "merge", "apply", "--recipe", str(recipe), "--out", str(folder / "ours"),
                         "--report-out", str(folder / "report"), "--quiet"],
                "theirs": [program, str(recipe), str(folder / "theirs"), "--no-copy-tokenizer"],
            }  # fmt: skip
            for way, command in ways.items():
                found[way] = watched(command)
                shutil.rmtree(folder / way)
            shutil.rmtree(folder / "report")
            ours, theirs = found["ours"], found["theirs"]
            cells = [name]
            for key in ("wall", "cpu"):
                cells += [f"{ours[key]:.1f}", f"{theirs[key]:.1f}", f"{ours[key] / theirs[key]:.2f}"]
            cells += [f"{each['peak'] / MIB:,.0f}" for each in (ours, theirs)]
            print("| " + " | ".join(cells) + " |", flush=True)
    print(f"\nload after: {os.getloadavg()[0]:.1f}")


PARTS = {"equal": measure_equal, "departures": measure_departures, "recipes": measure_recipes, "time": measure_time}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; all by default")
    parser.add_argument("--mergekit", default="", help="interpreter of an environment with mergekit 0.1.5")
    parser.add_argument("--peft", default="", help="interpreter of an environment with PEFT 0.21")
    parser.add_argument("--numbers", type=float, default=3e8, help="parameters of the models that are timed")
    parser.add_argument("--methods", nargs="*", choices=list(RECIPES), help="which are timed; all by default")
    parser.add_argument("--folder", default=None, help="on a disk with room for five models")
    parser.add_argument("--child", nargs=2, metavar=("WHO", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        who, folder = options.child
        jobs = torch.load(f"{folder}/jobs.pt", weights_only=True)
        torch.save([BY[who](job) for job in jobs], f"{folder}/found.pt")
        return
    for part in options.parts or PARTS:
        PARTS[part](options)


if __name__ == "__main__":
    main()
