"""Pre-training of the small ViT: what it sees, and that it learns."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from biascope.editing.encoder_source import encoder_of
from biascope.families.checkpoint import Checkpoint
from biascope.papers.task_arithmetic2023.glyphs import glyph_characters, rendered_glyphs
from biascope.papers.task_arithmetic2023.views import Sources, random_views
from biascope.papers.task_arithmetic2023.vit_pretraining import (
    Pretraining,
    pretrained_vit,
    pretraining_sources,
    save_glyphs,
    save_vit,
    write_vit,
)
from biascope.runs.run import Run

CPU = torch.device("cpu")
TINY = {"depth": 1, "width": 32, "heads": 2, "mlp": 64, "image_size": 16, "patch": 8}


def two_letters() -> Sources:
    generator = torch.Generator().manual_seed(0)
    photographs = torch.randint(0, 256, (6, 3, 16, 16), generator=generator, dtype=torch.uint8)
    return Sources(torch.from_numpy(rendered_glyphs("OI", side=24)), photographs, torch.arange(6) // 2, "two letters")


def data_folder(root: Path) -> Path:
    rng = np.random.default_rng(0)
    np.savez(root / "celeba_gray64.npz", x=rng.integers(0, 256, (5, 64, 64), np.uint8))
    np.savez(root / "olivetti.npz", x=rng.integers(0, 256, (6, 64, 64), np.uint8), y=np.arange(6) // 2)
    np.savez(root / "kodak.npz", x=np.arange(2, dtype=np.uint8).repeat(128 * 192 * 3).reshape(2, 128, 192, 3))
    return root


def test_no_character_is_a_digit_and_all_look_like_something() -> None:
    characters = glyph_characters(300, seed=0)
    assert len(set(characters)) == 300
    assert characters.startswith("ABCDEFGHIJKLMNOPQRSTUVWXYZabc")
    assert not any(each.isnumeric() for each in characters)
    images = rendered_glyphs(characters[:60], side=24)
    assert images.shape == (60, 5, 24, 24)
    assert (images.max((2, 3)) > 128).all()
    margin = np.ones((24, 24), bool)
    margin[2:-2, 2:-2] = False
    assert not images[:, :, margin].any()


def test_views_show_what_their_class_says_and_depend_on_the_seed_alone() -> None:
    sources, before = two_letters(), torch.get_rng_state()
    views, classes = random_views(sources, 400, size=16, seed=0, device=CPU)
    again, other = (random_views(sources, 400, size=16, seed=seed, device=CPU)[0] for seed in (0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(views, again)
    assert not torch.equal(views, other)
    assert views.shape == (400, 3, 16, 16)
    assert (float(views.min()), float(views.max())) == (0.0, 1.0)
    assert sources.num_classes == 5
    assert sorted(classes.unique().tolist()) == [0, 1, 2, 3, 4]
    assert 150 < int((classes < 2).sum()) < 250
    letters = views[classes < 2].float()
    # The middle of an O is paper and of an I is ink, so that the one is like its corners and the other is not.
    contrast = (
        letters[..., 7:9, 7:9].mean((1, 2, 3)) - letters[..., (0, 0, -1, -1), (0, -1, 0, -1)].mean((1, 2))
    ).abs()
    assert contrast[classes[classes < 2] == 1].mean() > 1.3 * contrast[classes[classes < 2] == 0].mean()


def test_sources_are_faces_persons_and_squares_each_with_classes_of_their_own(tmp_path: Path) -> None:
    sources = pretraining_sources(Pretraining(characters=4, faces=3), root=data_folder(tmp_path))
    squares = 2 * (2 * 3 + 1)  # of 128 × 192 pixels, and of 64 × 96
    assert sources.glyphs.shape == (4, 5, 48, 48)
    assert sources.photographs.shape == (3 + 6 + squares, 3, 64, 64)
    assert sources.labels.tolist() == [0, 1, 2, 3, 3, 4, 4, 5, 5, *range(6, 6 + squares)]
    assert sources.num_classes == 4 + 6 + squares
    assert sources.name.startswith("4 characters, 3 faces of CelebA, 3 Olivetti persons, 14 squares")


def test_characters_that_were_rendered_before_are_read(tmp_path: Path) -> None:
    rendered = pretraining_sources(Pretraining(characters=4, faces=3), root=data_folder(tmp_path)).glyphs
    save_glyphs(6, tmp_path)
    assert torch.equal(pretraining_sources(Pretraining(characters=4, faces=3), root=tmp_path).glyphs, rendered)
    with pytest.raises(ValueError, match="must hold 9 characters, got 6"):
        pretraining_sources(Pretraining(characters=9, faces=3), root=tmp_path)
    (tmp_path / "kodak.npz").unlink()
    with pytest.raises(ValueError, match="must hold photographs of the Kodak set"):
        pretraining_sources(Pretraining(characters=4, faces=3), root=tmp_path)


def test_it_learns_and_is_read_back_by_name(tmp_path: Path) -> None:
    plan = Pretraining(views=400, steps=120, batch=40, rate=3e-3)
    encoder, trained = pretrained_vit(two_letters(), plan, settings=TINY, run=Run(device="cpu"))
    assert float(trained.losses[-20:].mean()) < 0.75 * float(trained.losses[:20].mean())
    path = tmp_path / "encoders" / "vit.safetensors"
    path.parent.mkdir()
    save_vit(encoder, path, settings=TINY, source="two letters")
    images = np.random.default_rng(1).integers(0, 256, (3, 1, 20, 20), np.uint8)
    for found in (encoder_of("vit", root=tmp_path), encoder_of("vit", weights_file=path)):
        assert torch.equal(found.network(found.prepare(images)), encoder.network(encoder.prepare(images)))
    assert encoder.network(encoder.prepare(images)).shape == (3, 32)
    save_vit(encoder, path, settings=TINY, half=True)
    halved = encoder_of("vit", root=tmp_path).network.params
    assert all(torch.equal(halved[name], tensor.half().float()) for name, tensor in encoder.network.params.items())
    assert "head.weight" not in encoder.network.params


def test_its_file_says_how_to_make_it_again(tmp_path: Path) -> None:
    root, run = data_folder(tmp_path), Run(device="cpu", progress=False)
    plan = Pretraining(characters=4, faces=3, views=40, steps=2, batch=8)
    made = []
    for _ in range(2):
        path = write_vit(root, plan=plan, settings=TINY, seed=3, run=run)
        made.append(
            (encoder_of("vit", root=root).network.params, json.loads(Checkpoint.open(path).metadata["trained_on"]))
        )
    (first, facts), (again, others) = made
    assert facts == others
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert facts["seed"] == 3
    assert facts["plan"]["steps"] == 2
    assert facts["sources"].startswith("4 characters, 3 faces")
    assert len(facts["digest of the sources"]) == 16
