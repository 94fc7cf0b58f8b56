"""The adapter of low rank that is nearest to a fine-tuned model: truncated singular value decompositions, layer by layer."""

# r rank · m × n shape of τ of a layer

from __future__ import annotations

import json
import math
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from biascope.editing.adapters import CONFIG, PREFIX, on_base, require_no_adapter, stores_inputs_first
from biascope.editing.extraction_result import Extraction
from biascope.editing.layer_sums import dot
from biascope.editing.merge import fits_of, require_related
from biascope.editing.merged_folder import TASKS
from biascope.editing.stream import TaskStream, is_vector
from biascope.editing.vocabulary import explained, is_table, resized
from biascope.families import weights
from biascope.families.checkpoint import Checkpoint, read_settings
from biascope.families.names import Fitted, told
from biascope.results.result import recorded
from biascope.results.wording import listed
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.files import make_writable, partial_name, put_in_place
from biascope.runs.run import Run

_BLOCK = 2**20  # numbers that are converted to float64 at once


@under_torch_defaults
def extracted(
    base: Checkpoint,
    model: Checkpoint,
    out: Path | str,
    *,
    rank: int | None = None,
    energy: float | None = None,
    unrelated: bool = False,
    overwrite: bool = False,
    run: Run = Run(),  # noqa: B008 - frozen
) -> Extraction:
    """Write a LoRA adapter whose updates are the best approximations of rank r of what fine-tuning changed.

    Covered are matrices of linear layers. The singular values and vectors of τ come from the eigenvalues of its smaller Gram matrix in
    float64. A head that only the model has is written whole.

    Args:
        base: θ₀.
        model: Fine-tuned weights, a saved task vector or an adapter.
        out: The folder of the adapter, as PEFT opens it.
        rank: Largest rank of a layer.
        energy: Share of ``‖τ‖²`` of each layer, for which the smallest rank is taken.
        unrelated: Whether to accept a model that does not seem to come from this base.
        overwrite: Whether to replace an adapter that is there.
        run: Shows progress.

    Raises:
        ValueError: If neither rank nor share is given or one is out of range, names or shapes do not fit, nothing changed in a matrix,
            or the folder exists. Nothing is written then.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> one = torch.outer(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0, 2.0]))
        >>> for name, change in (("base", 0.0), ("a", 0.1)):
        ...     weights.save({"q.weight": torch.eye(3)[:2] + change * one}, f"{folder.name}/{name}.safetensors")
        >>> base, a = (Checkpoint.open(f"{folder.name}/{name}.safetensors") for name in ("base", "a"))
        >>> found = extracted(base, a, f"{folder.name}/adapter", rank=1)
        >>> round(found.kept_share, 6), found.ranks.tolist()
        (1.0, [1])
        >>> folder.cleanup()
    """
    clock, out = time.perf_counter(), Path(out)
    _check_settings(rank, energy)
    require_free(out, overwrite)
    require_no_adapter(base, "Pass the model that it was trained on as BASE.")
    whole = on_base(model, base)
    if not is_vector(whole) and (tables := resized(base, whole)):
        raise ValueError(f"{explained(base, whole, tables)}. Resize the vocabulary of one of them and save it.")
    (fit,) = fits_of([whole], base)
    stream = TaskStream(base, fit.shared, fit.absent)
    names = [name for name, each in base.tensors.items() if weights.is_edited(name, each) and name not in fit.absent]
    prefix = fit.model.metadata.get(PREFIX, "")
    rows: list[tuple[str, int, float, float, np.ndarray]] = []
    left, turned, sums, tensors = {}, False, np.zeros(3), {}
    with run.tracked("extracting", sum(math.prod(base.tensors[name].shape) for name in names)) as advance:
        for name in names:
            change = _change(base, stream, name, sums)
            square = _square(change)
            if not math.isfinite(square):
                raise ValueError(f"The weights must be finite, but {name} is not. Check where training diverged.")
            if square and _is_linear(name, base):
                if stores_inputs_first(base, name):
                    change, turned = change.T, True
                down, up, energies = _factors(change, rank, energy)
                layer = f"{prefix}{fit.names[name]}".removesuffix(".weight")
                tensors[f"base_model.model.{layer}.lora_A.weight"] = down
                tensors[f"base_model.model.{layer}.lora_B.weight"] = up
                kept = 1 - _residual(change, down, up) / square
                rows.append((layer, len(down), math.sqrt(square), kept, energies))
            elif square:
                left[name] = math.sqrt(square)
            advance(math.prod(base.tensors[name].shape))
    if not rows:
        raise ValueError(
            f"{model.name} must differ from {base.name} in the matrix of a linear layer, but differs in "
            f"{', '.join(list(left)[:4]) or 'nothing'}. Pass the model that was fine-tuned."
        )
    if not unrelated and not stream.is_vector and sums[0] and sums[1]:
        require_related(model.name, base.name, float(sums[2] / math.sqrt(sums[0] * sums[1])))
    tensors |= {f"base_model.model.{own}": fit.model.read(own).contiguous() for own in fit.heads.values()}
    ranks = {layer: count for layer, count, *_ in rows}
    _write(out, tensors, _settings(base, fit, ranks, turned))
    steps = [
        2**k for k in range(max(map(len, (row[4] for row in rows))).bit_length()) if 2**k <= max(ranks.values()) * 4
    ]
    heads = sorted({weights.layer_of(own) for own in fit.heads.values()})
    return Extraction(
        base=base.label,
        model=model.label,
        layers=tuple(ranks),
        ranks=np.array(list(ranks.values())),
        task_norms=np.array([row[2] for row in rows]),
        kept=np.array([row[3] for row in rows]),
        at_rank=np.array(steps),
        energies=np.array([[row[4][min(step, len(row[4])) - 1] for step in steps] for row in rows]),
        left_out=tuple(left),
        left_norms=np.array(list(left.values())),
        remarks=(
            *told([replace(fit, heads={})]),
            *([f"Written whole into the adapter: {listed(heads)}."] if heads else []),
        ),
        file=str(out),
        provenance=recorded(
            "merge_extract",
            "task_arithmetic2023",
            settings={"rank": rank, "energy": energy},
            seconds=time.perf_counter() - clock,
        ),
    ).check()


def _check_settings(rank: int | None, energy: float | None) -> None:
    if rank is None and energy is None:
        raise ValueError(
            "An adapter needs a rank or a share of ‖τ‖² to keep, got neither. Pass --rank 16 or --energy 0.95."
        )
    if rank is not None and rank < 1:
        raise ValueError(f"--rank must be at least 1, got {rank}. Pass --rank 16.")
    if energy is not None and not 0 < energy < 1:
        raise ValueError(f"--energy must lie between 0 and 1, got {energy:g}. Pass --energy 0.95.")


def require_free(out: Path, overwrite: bool) -> None:
    """Refuse a place that cannot become the folder of an adapter.

    Raises:
        ValueError: If it is a file, or a folder that is not empty and may not be replaced.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"The output must be a folder, but {out} is a file. Pass another name.")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise ValueError(f"The output must not exist yet, but {out} does. Pass another name, or --overwrite.")
    make_writable(out.parent)


def _change(base: Checkpoint, stream: TaskStream, name: str, sums: np.ndarray) -> Tensor:
    """τ of a tensor, whole; ``‖θ₀‖²``, ``‖θ‖²`` and their inner product are added to sums."""
    parts, begin = [], 0
    for start, part in zip(base.slices(name), stream.slices(name), strict=True):
        delta = stream.delta(start, part, begin)
        wide = start.to(delta.dtype)
        sums += [dot(wide, wide), dot(wide + delta, wide + delta), dot(wide, wide + delta)]
        parts.append(delta)
        begin += len(start)
    shape = base.tensors[name].shape
    return torch.cat(parts).view(shape) if parts else torch.zeros(shape)


def _is_linear(name: str, base: Checkpoint) -> bool:
    """Whether a tensor is the matrix of a linear layer, as far as its name and shape tell; not a table of tokens or positions."""
    shape = base.tensors[name].shape
    return len(shape) == 2 and min(shape) > 0 and name.endswith(".weight") and not is_table(name)


def _blocks(change: Tensor) -> list[Tensor]:
    """A matrix as blocks of rows."""
    return list(torch.split(change, max(1, _BLOCK // max(1, change.shape[1]))))


def _square(change: Tensor) -> float:
    return float(sum(block.double().square().sum() for block in torch.split(change.flatten(), _BLOCK)))


def _factors(change: Tensor, rank: int | None, energy: float | None) -> tuple[Tensor, Tensor, np.ndarray]:
    """A and B of the best approximation, of equal norms, and the share of ``‖τ‖²`` that each rank can keep."""
    wide = change if change.shape[1] <= change.shape[0] else change.T  # (m, n) with n ≤ m
    gram = torch.zeros(wide.shape[1], wide.shape[1], dtype=torch.float64)
    for block in _blocks(wide):
        gram.addmm_(block.double().T, block.double())
    squares, vectors = torch.linalg.eigh(gram)
    del gram
    squares, vectors = squares.flip(0).clamp_min_(0), vectors.flip(1)
    energies = (squares.cumsum(0) / squares.sum()).numpy()
    count = len(energies) if energy is None else int(np.searchsorted(energies, energy)) + 1
    count = min(count, len(energies), len(energies) if rank is None else rank)
    right, roots = vectors[:, :count], squares[:count].clamp_min(1e-300).pow(0.25)
    first = torch.cat([block.double() @ right for block in _blocks(wide)]) / roots
    second = (right * roots).T
    up, down = (first, second) if wide is change else (second.T, first.T)
    return down.float().contiguous(), up.float().contiguous(), energies


def _residual(change: Tensor, down: Tensor, up: Tensor) -> float:
    """``‖τ − B A‖²`` of the factors as they are written."""
    pairs, total = zip(_blocks(change), torch.split(up, max(1, _BLOCK // max(1, change.shape[1]))), strict=True), 0.0
    for block, rows in pairs:
        total += float((block.double() - rows.double() @ down.double()).square().sum())
    return total


def _settings(base: Checkpoint, fit: Fitted, ranks: dict[str, int], turned: bool) -> dict[str, Any]:
    """The configuration of the adapter: alpha equals the rank of each layer, so that its scale is 1."""
    path = fit.model.beside("config.json")
    classes = (read_settings(path).get("architectures") or [""]) if path.is_file() and fit.model.path.name else [""]
    task = next((task for task, ending in TASKS.items() if str(classes[0]).endswith(ending)), None)
    usual = max(ranks.values())
    others = {layer: count for layer, count in ranks.items() if count != usual}
    heads = {own.removeprefix(fit.prefixes[0]).partition(".")[0] for own in fit.heads.values()}
    return {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": str(base.path),
        "inference_mode": True,
        "r": usual,
        "lora_alpha": usual,
        "rank_pattern": others,
        "alpha_pattern": others,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": turned,
        "init_lora_weights": True,
        "target_modules": list(ranks),
        "modules_to_save": sorted(heads) or None,
    }


def _write(out: Path, tensors: dict[str, Tensor], settings: dict[str, Any]) -> None:
    """Both files of an adapter, in a folder that appears when they are complete."""
    temporary = partial_name(out)
    temporary.mkdir()
    try:
        weights.save(tensors, temporary / "adapter_model.safetensors", {"format": "pt"})
        (temporary / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        if out.is_dir():
            for name in (CONFIG, "adapter_model.safetensors"):
                put_in_place(temporary / name, out / name)
        else:
            os.replace(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
