"""Task vectors: exact where they must be, linear to rounding, and refused where they do not belong."""

import itertools

import pytest
import torch
from checkpoint_files import BITS, Trap, same_bits
from networks_under_test import batchnorm_convnet, normal
from torch import nn

from biascope.editing.vectors import END, WIDE, TaskVector, difference
from biascope.families import weights
from biascope.runs.randomness import forked_rng

TYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def extremes(dtype: torch.dtype) -> torch.Tensor:
    """Numbers at every end of a type: zeros of both signs, subnormal, tiny, about 1, the largest."""
    info = torch.finfo(dtype)
    least = torch.tensor([1], dtype=BITS[info.bits // 8]).view(dtype).item()
    plain = [0.0, least, 7 * least, info.tiny, 3 * info.tiny, 1e-12, 1e-3, 0.3, 1 - info.eps, 1.0, 1 + info.eps, 1.7, 3e4, info.max / 3,
             info.max]  # fmt: skip
    numbers = torch.tensor(plain, dtype=dtype)
    return torch.cat([numbers, -numbers])


def random_bits(count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Numbers of every magnitude alike: random bits, without those that are not finite."""
    info = torch.finfo(dtype)
    limit = 2 ** (info.bits - 1)
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-limit, limit - 1, (count,), generator=generator, dtype=torch.int64).to(BITS[info.bits // 8])
    numbers = bits.view(dtype)
    return torch.where(numbers.isfinite(), numbers, torch.ones((), dtype=dtype))


@pytest.mark.parametrize("dtype", TYPES)
def test_weight_one_restores_every_pair_of_extreme_numbers_bit_for_bit(dtype, tmp_path):
    pairs = torch.tensor(list(itertools.product(range(30), repeat=2)))
    numbers = extremes(dtype)
    start, end = {"w": numbers[pairs[:, 0]]}, {"w": numbers[pairs[:, 1]]}
    task = TaskVector.between(start, end)
    assert task.deltas["w"].isfinite().all()
    assert same_bits(task.applied(start)["w"], end["w"])
    task.save(tmp_path / "task.safetensors")
    assert same_bits(TaskVector.load(tmp_path / "task.safetensors").applied(start)["w"], end["w"])


@pytest.mark.parametrize("dtype", TYPES)
def test_weight_one_restores_random_weights_bit_for_bit(dtype, tmp_path):
    wild = [{"w": random_bits(4096, dtype, seed).reshape(64, 64)} for seed in (1, 2)]
    start = normal(64, 64)
    tuned = [{"w": each.to(dtype)} for each in (start, start + 0.05 * normal(64, 64, seed=1))]
    for first, last in (wild, tuned):
        task = TaskVector.between(first, last)
        assert same_bits(task.applied(first)["w"], last["w"])
        task.save(tmp_path / "task.safetensors")
        loaded = TaskVector.load(tmp_path / "task.safetensors")
        assert same_bits(loaded.deltas["w"], task.deltas["w"])
        assert same_bits(loaded.applied(first)["w"], last["w"])


def test_whole_models_are_restored_from_random_weights():
    for build in (batchnorm_convnet, lambda: nn.TransformerEncoderLayer(8, 2, 16)):
        with forked_rng(0):
            start, end = dict(build().state_dict()), dict(build().state_dict())
        restored = TaskVector.between(start, end).applied(start)
        assert list(restored) == list(start)
        assert all(torch.equal(restored[name], end[name]) for name in start)


def test_other_memory_formats_are_restored():
    start = {"w": normal(3, 4, 2, 2, dtype=torch.float32).to(memory_format=torch.channels_last)}
    end = {"w": 1e-9 * normal(3, 4, 2, 2, seed=1, dtype=torch.float32)}
    task = TaskVector.between(start, end)
    assert task.ends
    assert same_bits(task.applied(start)["w"], end["w"])
    assert start["w"].is_contiguous(memory_format=torch.channels_last)


def test_files_are_as_large_as_the_model_and_a_little(tmp_path):
    for dtype, width in ((torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 2)):
        start = 0.02 * normal(200, 200)
        first, last = ({"w": each.to(dtype)} for each in (start, start + 1e-4 * normal(200, 200, seed=1)))
        TaskVector.between(first, last).save(tmp_path / "task.safetensors")
        size = (tmp_path / "task.safetensors").stat().st_size
        assert size < 1.1 * 200 * 200 * width
        parts = weights.load(tmp_path / "task.safetensors")
        assert parts["w"].element_size() == width
        assert "w" + WIDE not in parts or width == 2
        assert "w" + END in parts or dtype != torch.float32


def tasks(seeds: range, dtype: torch.dtype = torch.float32) -> tuple[weights.Params, list[TaskVector]]:
    def model(seed: int) -> weights.Params:
        shapes = {"first.weight": (5, 3), "first.bias": (5,), "last.weight": (2, 5)}
        return {name: normal(*shape, seed=seed + 10 * k, dtype=dtype) for k, (name, shape) in enumerate(shapes.items())}

    start = model(100)
    return start, [TaskVector.between(start, model(seed), source=f"task {seed}") for seed in seeds]


def apart(one: TaskVector, two: TaskVector) -> float:
    return (one - two).norm / max(one.norm, two.norm)


def test_the_vector_space_axioms_hold_to_rounding():
    start, (a, b, c) = tasks(range(3))
    assert apart(a + b - b, a) < 1e-7
    assert apart((a + b) + c, a + (b + c)) < 1e-7
    assert apart(a + b, b + a) == 0
    assert apart(0.4 * (a + b), 0.4 * a + 0.4 * b) < 1e-7
    assert apart(a - b, a + (-b)) == 0
    assert apart(-1 * -a, a) == 0
    assert (a - a).norm == 0
    for (name, one), two in zip(a.applied(start, 0.3).items(), (0.3 * a).applied(start).values(), strict=True):
        assert torch.allclose(one, two), name
    added = (0.5 * a + 0.25 * b).applied(start)
    for name, tensor in start.items():
        assert torch.allclose(added[name], tensor + 0.5 * a.deltas[name] + 0.25 * b.deltas[name])


def test_minus_one_is_not_plus_one():
    start, (a,) = tasks(range(1))
    minus, plus = a.applied(start, -1.0), a.applied(start)
    for name, tensor in start.items():
        assert torch.allclose(minus[name] + plus[name], 2 * tensor, atol=1e-6)
        assert not torch.allclose(minus[name], plus[name], atol=0.1)
    assert all(torch.equal(one, two) for one, two in zip(minus.values(), (-a).applied(start).values(), strict=True))


def test_lengths_and_angles_are_those_of_the_flat_vectors():
    _, (a, b) = tasks(range(2), torch.float64)
    one, two = (torch.cat([delta.flatten() for delta in each.deltas.values()]) for each in (a, b))
    assert a.dot(b) == pytest.approx(float(one @ two), rel=1e-12)
    assert a.norm == pytest.approx(float(one.norm()), rel=1e-12)
    assert a.cosine(b) == pytest.approx(float(one @ two / one.norm() / two.norm()), rel=1e-12)
    assert a.cosine(-a) == pytest.approx(-1, rel=1e-12)
    assert sum(norm**2 for norm in a.norms().values()) == pytest.approx(a.norm**2, rel=1e-12)
    first = [torch.cat([each.deltas["first.weight"].flatten(), each.deltas["first.bias"]]) for each in (a, b)]
    assert a.cosines(b)["first"] == pytest.approx(float(torch.cosine_similarity(*first, dim=0)), rel=1e-12)
    assert a.cosine(0 * b) != a.cosine(0 * b)  # nan


def test_counters_and_running_statistics_stay_those_of_the_start():
    with forked_rng(0):
        module = batchnorm_convnet()
    start = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    end = {name: tensor + 1 for name, tensor in start.items()}
    task = TaskVector.between(start, end)
    assert sorted(task.deltas) == sorted(name for name, _ in module.named_parameters())
    edited = task.applied(start)
    kept = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert {name for name in start if torch.equal(edited[name], start[name])} == kept
    # θ₀ is what is edited: statistics may have moved on.
    assert task.applied({**start, "1.num_batches_tracked": torch.tensor(99)})["1.num_batches_tracked"] == 99


def test_half_precision_states_are_edited_in_float32():
    start, end = {"w": torch.ones(3, dtype=torch.bfloat16)}, {"w": torch.full((3,), 1.5, dtype=torch.bfloat16)}
    task = TaskVector.between(start, end)
    assert task.deltas["w"].dtype == torch.float32
    assert task.applied(start, 0.5)["w"].tolist() == [1.25] * 3
    assert task.applied(start)["w"].dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"^The edited weights must be finite, but 1 tensors are not \(w\)"):
        task.applied(start, 1e39)


def test_what_does_not_fit_is_listed():
    start = {"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1), "n": torch.tensor(3)}
    end = {"b": torch.zeros(4), "c": torch.zeros(1).half(), "d": torch.zeros(1), "n": torch.tensor(3)}
    with pytest.raises(ValueError) as caught:
        TaskVector.between(start, end)
    assert str(caught.value) == (
        "The fine-tuned weights must fit the pre-trained ones: 1 missing (a); 1 extra (d); 1 of another shape (b (4,) instead of "
        "(3,)); 1 of another type (c float16 instead of float32). Pass two states of the same model."
    )


def test_another_base_is_refused():
    start, (a,) = tasks(range(1))
    moved = {**start, "last.weight": start["last.weight"] + 1e-6}
    with pytest.raises(
        ValueError, match=r"must be those that the task vector 'task 0' was made from \(hash .* Pass its θ₀\."
    ):
        a.applied(moved)
    assert a.applied(moved, verify=False)
    with pytest.raises(ValueError, match=r"1 missing \(last\.weight\)"):
        a.applied({name: tensor for name, tensor in start.items() if name != "last.weight"})
    other = TaskVector.between(moved, start)
    for operation in (lambda: a + other, lambda: a - other, lambda: a.dot(other), lambda: a.cosines(other)):
        with pytest.raises(ValueError, match=r"^Two task vectors must start from the same weights, got hashes"):
            operation()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value):
    fine, broken = {"w": torch.zeros(3)}, {"w": torch.tensor([0.0, value, 0.0])}
    with pytest.raises(
        ValueError, match=r"^The fine-tuned weights must be finite, but 1 tensors are not \(w\)\. Check where"
    ):
        TaskVector.between(fine, broken)
    with pytest.raises(ValueError, match="pre-trained weights must be finite"):
        TaskVector.between(broken, fine)
    with pytest.raises(ValueError, match="weight must be finite"):
        TaskVector.between(fine, fine).applied(fine, value)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn])
def test_types_without_arithmetic_are_refused(dtype):
    state = {"w": torch.zeros(2, dtype=dtype)}
    with pytest.raises(ValueError, match=r"must be float32, float64, float16 or bfloat16 to be edited, but w is"):
        TaskVector.between(state, state)


def test_files_of_other_kinds_are_refused_and_code_never_runs(tmp_path):
    trap = {"w": torch.zeros(1), "trap": Trap(str(tmp_path / "sprung"))}
    for name in ("task.pt", "task.safetensors"):
        torch.save(trap, tmp_path / name)
        with pytest.raises(ValueError, match=r"task\.(pt|safetensors)"):
            TaskVector.load(tmp_path / name)
    assert not (tmp_path / "sprung").exists()
    weights.save({"w": torch.zeros(1)}, tmp_path / "plain.safetensors")
    with pytest.raises(ValueError, match="must hold a task vector, but its metadata does not say so"):
        TaskVector.load(tmp_path / "plain.safetensors")
    about = {"kind": "task_vector"}
    weights.save({"w": torch.zeros(1), "w::wide_at": torch.zeros(1).int()}, tmp_path / "part.safetensors", about)
    with pytest.raises(ValueError, match="must be a complete task vector, but lacks"):
        TaskVector.load(tmp_path / "part.safetensors")


def test_nothing_is_left_when_saving_fails(tmp_path):
    task = TaskVector({"a::b": torch.zeros(1)}, "0")
    with pytest.raises(ValueError, match="must not contain '::'"):
        task.save(tmp_path / "task.safetensors")
    with pytest.raises(ValueError, match=r"must be in a \.safetensors file"):
        TaskVector({}, "0").save(tmp_path / "task.pt")
    assert not list(tmp_path.iterdir())


def test_sources_are_told_and_products_of_vectors_are_no_vectors():
    _, (a, b) = tasks(range(2))
    assert (a - 0.5 * b).source == "task 0 − (0.5·(task 1))"
    with pytest.raises(TypeError):
        a * b
    assert difference(torch.tensor(2.0).half(), torch.tensor(3.0).half()).dtype == torch.float32
