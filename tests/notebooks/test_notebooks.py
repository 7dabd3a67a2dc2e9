"""Each notebook runs from an empty folder, cell after cell, in a kernel of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebooks are run with the extra `dev`: make install")
nbclient = pytest.importorskip("nbclient", reason="the notebooks are run with the extra `dev`: make install")

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"
MOST_CHARACTERS = 12_000


def read(name: str) -> Any:
    return nbformat.read(NOTEBOOKS / name, as_version=nbformat.NO_CONVERT)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a notebook in an empty folder; returns what its cells displayed, as Markdown, else as text.

    `changed`: code of a cell, and what runs in its place.
    """
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    folder = tmp_path / "empty"
    folder.mkdir()

    async def run_one(name: str, changed: dict[str, str] | None = None) -> list[str]:
        book = read(name)
        for shown, run in (changed or {}).items():
            (cell,) = [cell for cell in book.cells if cell.cell_type == "code" and shown in cell.source]
            cell.source = cell.source.replace(shown, run)
        # `iopub_timeout`: what a cell shows travels on a way of its own, and is dropped where it comes later than that.
        where = {"metadata": {"path": str(folder)}}
        client = nbclient.NotebookClient(book, timeout=None, iopub_timeout=60, resources=where)
        await client.async_execute()
        shown = []
        for cell in book.cells:
            for output in cell.get("outputs", ()):
                data = output.get("data", {})
                shown.append(data.get("text/markdown") or data.get("text/plain") or output.get("text", ""))
        return shown

    return run_one


@pytest.mark.parametrize("name", sorted(path.name for path in NOTEBOOKS.glob("*.ipynb")))
def test_a_notebook_is_small_and_holds_no_outputs(name: str) -> None:
    book = read(name)
    assert (book.nbformat, book.metadata.kernelspec.name) == (4, "python3")
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.id for cell in code if cell.outputs or cell.execution_count is not None] == []
    assert len((NOTEBOOKS / name).read_text()) <= MOST_CHARACTERS


async def test_tools_are_connected_called_and_shown(run: Any) -> None:
    shown = "\n".join(await run("1_connect_and_look.ipynb"))
    assert "| days_between(first: integer, second: integer) |" in shown
    assert "| get_repair(repair: string) " in shown
    assert "tool_error | Error executing tool get_repair: there is no repair 'R-99'" in shown


async def test_a_verifier_is_checked_and_two_policies_are_measured(run: Any) -> None:
    shown = "\n".join(await run("2_verify_and_evaluate.ipynb"))
    assert "3 tasks hold" in shown
    assert "| looks it up " in shown
    assert "verdict: 1 (" in shown
    assert "verdict: 0 (" in shown


@pytest.mark.timeout(300)
async def test_a_model_is_trained_served_and_asked(run: Any, tiny_model_folder: Path) -> None:
    # What a random model learns does not matter here; the quickstart trains the embedded one.
    smaller = {
        "as_expected(), output_dir": f"as_expected(), {str(tiny_model_folder)!r}, output_dir",
        '"evaluation.max_heldout": 8': '"evaluation.max_heldout": 2, "warm_start.max_steps": 2, "probes.tasks": 1',
    }
    shown = "\n".join(await run("3_train_and_serve.ipynb", smaller))
    assert "| untrained " in shown
    assert "| after GRPO " in shown
    assert "runs/workshop/report.md" in shown
