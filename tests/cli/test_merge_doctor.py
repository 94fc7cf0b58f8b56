"""`biascope merge doctor`: what a user types, what is printed, and the exit status."""

import functools
import json

import asking
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from biascope.cli.merge import app

refused = functools.partial(asking.refused, app)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A base, an adapter of it that is merged, and one that was not trained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    torch.manual_seed(0)
    base, down, up = torch.randn(8, 6), torch.randn(2, 6), torch.randn(8, 2)
    for name, scale in (("base", 0), ("out", 0.5), ("strange", 8)):
        (tmp_path / name).mkdir()
        save_file({"model.q.weight": base + scale * up @ down}, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text('{"tie_word_embeddings": false}')
    for name, kept in (("lora", up), ("new", 0 * up)):
        (tmp_path / name).mkdir()
        factors = {"base_model.model.model.q.lora_A.weight": down, "base_model.model.model.q.lora_B.weight": kept}
        save_file(factors, tmp_path / name / "adapter_model.safetensors")
        settings = {
            "peft_type": "LORA",
            "r": 2,
            "lora_alpha": 1,
            "target_modules": ["q"],
            "base_model_name_or_path": "x/base",
        }
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(settings))
    return tmp_path


def told(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["doctor", *words], catch_exceptions=False)
    return done.exit_code, done.output


def test_a_table_and_a_line_for_each_finding(folder):
    status, text = told("base", "lora", "--merged", "out")
    assert status == 0
    assert text.startswith("base     base\nadapter  lora\nmerged   out\n")
    assert "  1  scale applied twice                         clean\n" in text
    assert "  9  shapes of a mixture of experts              cannot be seen from these files\n" in text
    assert text.endswith("0 faults and 0 warnings. 12 of 16 cases are clean, 4 cannot be seen.\n")
    assert max(map(len, text.splitlines())) <= 80
    status, text = told("new", "--base", "base")
    assert status == 1
    assert " 11  output equals the base, or B = 0            FAULT\n" in text
    (line,) = (" ".join(part.split()) for part in text.split("\n\n") if part.startswith("FAULT"))
    assert line == (
        "FAULT 11: All 1 updates of new are 0, since B is: it was not trained, or an untrained state was saved. "
        "[new/adapter_model.safetensors: base_model.model.model.q.lora_B.weight] Save the adapter after training, from the model that "
        "was trained."
    )


def test_weights_of_the_merge_and_json(folder):
    words = ("lora=1", "--base", "base", "--merged", "strange", "--json", "--quiet")
    status, text = told(*words)
    found = json.loads(text)
    assert status == 1
    assert found["version"] == 1
    assert found["failed"]
    (finding,) = found["findings"]
    assert (finding["case"], finding["level"], finding["number"]) == ("alpha_lost", "fault", 3)
    assert len(found["cases"]) == 16
    assert found["folders"][0] == {"role": "base", "path": "base"}
    assert told("lora=16", *words[1:])[0] == 0
    assert told(*words, "--fail-on", "never")[0] == 0


def test_what_counts_as_failure(folder):
    (folder / "lora" / "adapter_config.json").write_text(
        (folder / "lora" / "adapter_config.json").read_text().replace("x/base", "x/base-bnb-4bit")
    )
    assert [told("lora", "--fail-on", level)[0] for level in ("fault", "warning", "never")] == [0, 1, 0]
    assert told("new", "--headers")[0] == 0
    words = ("doctor", "lora", "--fail-on", "all")
    refused(folder, r"^--fail-on must be fault, warning or never, got 'all'\. Pass --fail-on warning\.$", *words)
    refused(folder, r"^The weight of a source must be finite, got nan\. Pass A=0\.4\.$", "doctor", "lora=nan")
    refused(folder, r"^The doctor needs at least one folder", "doctor")
    refused(folder, r"^The folder must exist, but none does not", "doctor", "none")
