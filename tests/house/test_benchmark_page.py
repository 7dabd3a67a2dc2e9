"""The page of benchmarks: sections are replaced one by one, and all of them can be made again."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


def program(name: str = "run") -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_section_takes_the_place_of_its_last_one_and_leaves_the_others() -> None:
    placed = program().placed
    page = "# Benchmarks\n\nWords.\n\n## A\n\nold a\n\n## B\n\nold b\n\n## C\n\nold c\n"
    assert placed(page, "## B\n\nnew\n\n### More of B\n") == page.replace("old b\n", "new\n\n### More of B\n")
    # A program may have two sections; a title that is new comes last.
    both = placed(page, "## A\n\nnew a\n\n## D\n\nnew d\n")
    assert [line for line in both.splitlines() if line] == [
        "# Benchmarks", "Words.", "## A", "new a", "## D", "new d", "## B", "old b", "## C", "old c",
    ]  # fmt: skip
    assert placed(page, "## E\n\nnew e\n").endswith("old c\n\n## E\n\nnew e\n")
    assert placed(placed(page, "## A\n\nnew\n"), "## A\n\nold a\n") == page


def test_every_benchmark_is_one_that_make_bench_runs() -> None:
    programs = {path.stem for path in FOLDER.glob("*.py") if "\ndef section(" in path.read_text()}
    assert programs == set(program().NAMES)


def test_the_table_of_published_documents_has_what_became_of_each_and_why() -> None:
    usable = {"kind": "source", "cpu_s": 0.1, "peak_mb": 70, "tools": 3, "left_out": []}
    refused = {"kind": "source", "cpu_s": 0.3, "peak_mb": 90, "error": "api (a/b.json): #/paths/x: 'it' is no path"}
    twin = {"kind": "twin", "cpu_s": 2, "peak_mb": 80, "tools": 1, "left_out": ["#/a: no 'b'", "#/c: no 'd'"]}
    made = program("published_documents").section(
        results=[*({**usable, "document": str(number)} for number in range(3)), {**refused, "document": "3"}, twin]
    )
    assert "4 were read as sources, and 1 of them" in made
    rows = [line for line in made.splitlines() if line.startswith("|")]
    assert "| sources | 4 | 3 (75.0 %) | 9 of 9 (100.0 %) | 0.10 | 0.30 | 0.30 | 70 | 90 | 90 |" in rows
    assert "| twins | 1 | 1 (100.0 %) | 1 of 3 (33.3 %) | 2.00 | 2.00 | 2.00 | 80 | 80 | 80 |" in rows
    assert [row for row in rows if "…" in row] == [
        "| document | … is no path | 1 | 0 |",
        "| operation | no … | 0 | 1 |",
    ]


def test_the_bridge_is_measured_as_its_users_call_it() -> None:
    found = re.findall(r"(?:from|import) (mcp_bridge[\w.]*)", (FOLDER / "tool_calls.py").read_text())
    assert set(found) == {"mcp_bridge"}


@pytest.fixture(scope="module")
def beside() -> subprocess.CompletedProcess[str]:
    """In a process of its own: the program of the second test sets how memory is kept before torch is loaded."""
    return subprocess.run(
        [sys.executable, "-c", _SIDES + _KEPT], capture_output=True, text=True, cwd=FOLDER, timeout=250, check=False
    )


@pytest.mark.timeout(300)
def test_generate_with_its_cache_kept_samples_what_it_samples_from_the_whole_conversations(
    beside: subprocess.CompletedProcess[str],
) -> None:
    assert beside.returncode == 0, beside.stderr


@pytest.mark.timeout(300)
def test_the_steps_beside_trl_have_the_quickstarts_tasks_and_options_that_fit_them(
    beside: subprocess.CompletedProcess[str],
) -> None:
    assert beside.stdout, beside.stderr
    *counts, schedule = beside.stdout.split()
    trained, validation, heldout = map(int, counts)
    assert trained > 100
    assert (validation, heldout) == (0, 1)
    assert schedule == "constant", "as TRL's"


_KEPT = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from engine_throughput import generate, padded
from rollout_sampling import Turn, run_generate_kept

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, eos_token_id=None
)
model = LlamaForCausalLM(config).eval()
greedy = {"do_sample": False, "top_k": None}
first, second = [5, 6, 7, 8, 9, 10], [11, 12, 13]
shapes = [
    [(first, 2), ([22, 23, 24], 3)],
    [(first, 4)],
    [(first, 1), ([35], 2), ([38, 39], 1)],
    [(second, 3), ([44, 45], 1), ([47], 2)],
]
rollouts = []  # with what the model says, since its own tokens are what it keeps
for shape in shapes:
    tokens, rollout = [], []
    for heard, length in shape:
        tokens += heard
        said = generate(model, *padded([tokens]), length, **greedy)[0, len(tokens):].tolist()
        rollout.append(Turn(heard, said, 0))
        tokens += said
    rollouts.append(rollout)
turns = []
run_generate_kept(model, rollouts, turns.append, **greedy)
compared = 0
for number, rows in enumerate(turns):
    going = [one for one in rollouts if number < len(one)]
    for kept, one in zip(rows.tolist(), going, strict=True):
        tokens = [token for turn in one[:number] for token in turn.heard + turn.said] + one[number].heard
        anew = generate(model, *padded([tokens]), len(kept), **greedy)[0, len(tokens):].tolist()
        assert kept == anew, (number, kept, anew)
        compared += 1
assert compared == 9, compared
"""

_SIDES = """
import sys
sys.path.insert(0, ".")
import end_to_end
from sdk.cli.quickstart_options import quickstart_tasks
from sdk.trainer.config import TrainConfig
from sdk.trainer.task_splits import split_for_training

config = TrainConfig.of(end_to_end.step_config(seed=0, steps=2, prompts=8, group_size=6))
print(*map(len, split_for_training(quickstart_tasks(), config)), config.grpo.lr_scheduler_type)
"""
