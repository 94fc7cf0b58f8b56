"""Thirty models of today by name: what a dry run says, a scan, a selftest and a tangent kernel, each in a process of its own.

    python benchmarks/models.py --rows rows.jsonl                   # all; finished commands are not repeated
    python benchmarks/models.py --rows rows.jsonl --only resnet18   # those whose name has this in it
    python benchmarks/models.py --rows rows.jsonl --table           # the rows as a table

Every model is measured at the input size of its library and with default options. Seconds are those of the whole process; "CPU" are the
seconds of all its threads, which other programs on the machine disturb less. The kernel is that of 8 training and 4 test samples.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TIMM = (
    "resnet18", "resnet50", "convnext_atto", "vit_tiny_patch16_224", "deit_tiny_patch16_224", "mobilenetv3_small_100", "mixer_s32_224",
    "swin_tiny_patch4_window7_224", "regnetx_002", "densenet121", "mobilevit_xxs", "poolformer_s12",
)  # fmt: skip
TRANSFORMERS = (
    "bert", "distilbert", "roberta", "deberta-v2", "gpt2", "llama", "qwen3", "mamba", "t5", "vit", "clip_vision_model", "whisper",
)  # fmt: skip
#: Networks whose head starts at zero are read before it.
ZERO_HEADS = {"mixer_s32_224": ["--readout", "features"]}
OWN = '''
import torch
from torch import nn

class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(16, 64, num_layers=2, batch_first=True), nn.Linear(64, 5)
    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])

class Graph(nn.Module):
    """Two rounds of messages on a ring of 20 nodes."""
    def __init__(self):
        super().__init__()
        ring = torch.eye(20).roll(1, 0)
        self.register_buffer("edges", (torch.eye(20) + ring + ring.T) / 3)
        self.one, self.two, self.head = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 3)
    def forward(self, x):
        x = torch.relu(self.edges @ self.one(x))
        return self.head(torch.relu(self.edges @ self.two(x)).mean(1))

def table():
    return nn.Sequential(nn.Linear(30, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 2))

def compiled():
    return torch.compile(nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
                                       nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)))
'''  # fmt: skip
LIMIT = 900  # seconds of one command
COMMANDS = ("dry run", "scan", "selftest", "kernel")


def models(folder):
    """Name in the table, name for the command and further options."""
    own = folder / "own.py"
    return [
        *((name, [f"timm:{name}", *ZERO_HEADS.get(name, ())]) for name in TIMM),
        ("torchvision resnet18", ["torchvision:resnet18"]),
        *((f"transformers {name}", [f"hf-config:{name}"]) for name in TRANSFORMERS),
        ("transformers wav2vec2", ["hf-config:wav2vec2", "--input", "4000"]),
        ("LoRA on BERT", [f"peft:{folder / 'lora'}"]),
        ("LSTM", [f"{own}:LSTM", "--input", "24x16"]),
        ("table MLP", [f"{own}:table", "--input", "30"]),
        ("graph network", [f"{own}:Graph", "--input", "20x8"]),
        ("compiled CNN", [f"{own}:compiled", "--input", "3x64x64"]),
    ]


def make(folder):
    """The models that no library has by name."""
    (folder / "own.py").write_text(OWN)
    if (folder / "lora").exists():
        return
    from biascope.families.libraries.packages import imported

    transformers, peft = imported("transformers", "this benchmark"), imported("peft", "this benchmark")
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
    base = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=1000, num_labels=2, **sizes))
    base.save_pretrained(folder / "bert")
    adapter = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"], init_lora_weights=False)
    adapted = peft.get_peft_model(type(base).from_pretrained(folder / "bert"), adapter)
    adapted.save_pretrained(folder / "lora")


def kernel(source, shape):
    """A tangent kernel of few samples, for inputs of any kind."""
    import torch

    import biascope
    from biascope.families.source import parse_shape, usual_shape
    from biascope.tasks.task import Arrays

    shape = parse_shape(shape) if shape else usual_shape(source)
    noise = torch.Generator().manual_seed(0)
    splits = {
        name: (torch.randn(count, *shape, generator=noise), torch.arange(count) % 2)
        for name, count in (("train", 8), ("test", 4))
    }
    family = biascope.family_of(source, shape=shape)
    result = biascope.measure("tangent_kernel", family, Arrays(splits))
    print(json.dumps({"headline": {key: repr(number) for key, number in result.headline().items()}}))


def run(command):
    """What a command printed, and what it took."""
    begin = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    script = (
        "import resource, sys, runpy; sys.argv = sys.argv[1:]\ntry: runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    script += "finally: print('PEAK', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    program = [sys.executable, "-c", script, str(Path(__file__).resolve()), *command]
    try:
        done = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT, env=os.environ)
        rc, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        rc, out, err = None, "", f"more than {LIMIT} seconds"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak = [int(line.split()[1]) / 1024 for line in err.splitlines() if line.startswith("PEAK ")]
    told = [
        line
        for line in err.splitlines()
        if line.strip() and not line.startswith("PEAK ") and "torchvision does not fit" not in line
    ]
    return {
        "rc": rc, "seconds": round(time.perf_counter() - begin, 1), "cpu": round(cpu, 1), "peak": round(max(peak, default=0.0)),
        "out": out, "error": told[-1] if rc != 0 and told else "",
    }  # fmt: skip


def found_in(text):
    """The numbers of a scan: each with its interval, and those that are known within a factor of 2."""
    document = json.loads(text)
    return [
        f"{'effective rank' if number['key'] == 'effective_rank' else 'mean square'} of the {result['measurement'].replace('_', ' ')} "
        f"{number['value']:.3g} ({number['interval'][0]:.3g} to {number['interval'][1]:.3g})"
        for result in document["results"]
        for number in result["numbers"]
        if number["key"] in ("effective_rank", "trace") and 0 < number["interval"][1] <= 2 * number["interval"][0]
    ]


def measure(rows, only, commands):
    folder = Path(tempfile.gettempdir()) / "biascope-models"
    folder.mkdir(exist_ok=True)
    make(folder)
    done = {(row["model"], row["command"]) for row in read(rows)}
    for command in commands:
        for name, words in models(folder):
            if only not in name or (name, command) in done:
                continue
            with tempfile.TemporaryDirectory() as out:
                load = os.getloadavg()[0]
                row = {"model": name, "command": command, **run(words_of(command, words, out))}
                row["load"] = round(max(load, os.getloadavg()[0]), 1)
            with rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            told = f"{row['seconds']:7.1f} s {row['cpu']:7.1f} s CPU {row['peak']:6} MB  {row['error'][:150]}"
            print(f"{name:32} {command:9} {row['rc']} {told}", flush=True)


def words_of(command, words, out):
    if command == "kernel":
        return ["--kernel", words[0], words[words.index("--input") + 1] if "--input" in words else ""]
    more = {"dry run": ["--dry-run"], "scan": ["--out", f"{out}/run", "--quiet"], "selftest": ["--quiet"]}[command]
    words = words[:1] if command == "selftest" and "--readout" in words else words
    return ["selftest" if command == "selftest" else "scan", *words, *more, "--json"]


def read(rows):
    return [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()] if rows.exists() else []


def print_table(rows):
    by_name = {}
    for row in read(rows):
        by_name.setdefault(row["model"], {})[row["command"]] = row
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    print(
        "| model | weights | dry run | foretold | scan | CPU | peak | found within a factor of 2 | selftest | kernel |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, row in by_name.items():
        dry, scan, selftest, kernel = (row.get(command) for command in ("dry run", "scan", "selftest", "kernel"))
        known = json.loads(dry["out"]) if dry and dry["rc"] == 0 else {}
        foretold = sum(each["seconds"] or 0 for each in known.get("costs", ()))
        most = max((each["bytes"] for each in known.get("costs", ())), default=0) / 2**20
        weights = known.get("parameters")
        said = (found_in(scan["out"]) or ["none"])[0] if scan and scan["rc"] == 0 else (scan or {}).get("error", "")
        cells = [
            name,
            f"{weights / 1e6:.2g} M" if weights else "",
            f"{dry['seconds']} s" if dry else "",
            f"{foretold:.0f} s, {most:.0f} MB",
            f"{scan['seconds']} s" if scan else "",
            f"{scan['cpu']} s" if scan else "",
            f"{scan['peak']} MB" if scan else "",
            said,
            *(("works" if each["rc"] == 0 else each["error"]) if each else "" for each in (selftest, kernel)),
        ]
        print(f"| {' | '.join(cells)} |")


def main():
    if len(sys.argv) > 1 and sys.argv[1] in ("scan", "selftest"):
        from biascope.cli import main as command

        command()
        return
    if len(sys.argv) > 2 and sys.argv[1] == "--kernel":
        kernel(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=Path, default=Path("models.jsonl"))
    parser.add_argument("--only", default="")
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if not given.table:
        measure(given.rows, given.only, given.commands.split(","))
    print_table(given.rows)


if __name__ == "__main__":
    main()
