"""The notebook runs from top to bottom, with fewer images and epochs."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")  # of Jupyter's own libraries
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells[0].source.startswith("count, epochs, size = ")
    cells[0].source += "\ncount, epochs, size = 80, 1, 16\nscenes = {'count': count, 'size': size}"
    NotebookClient(
        notebook, timeout=300, startup_timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert (tmp_path / "runs" / "quickstart" / "encoder.safetensors").is_file()
    assert list(tmp_path.glob("exported*"))


def test_its_outputs_are_committed_and_small() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    assert sum("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs) == 3
    assert NOTEBOOK.stat().st_size < 400_000
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert str(Path.home()) not in text
    assert str(ROOT) not in text
