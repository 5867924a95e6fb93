"""What is installed is all that is needed: a wheel with its data, a version, types, completion."""

import os
import re
import shutil
import site
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
import yaml

import mixview
from mixview.cli import main
from tests.data.writing import REAL

ROOT = Path(__file__).parent.parent


def test_all_files_of_the_package_are_packed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packed = {path for pattern in settings["package-data"]["mixview"] for path in (ROOT / "mixview").glob(pattern)}
    there = {path for path in (ROOT / "mixview").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path for path in there if path.suffix != ".py"} == packed
    assert ROOT / "mixview" / "py.typed" in packed


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == mixview.__version__
    assert citation["cff-version"] == "1.2.0"
    assert {"title", "authors", "message", "preferred-citation"} <= citation.keys()


def test_the_program_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out.strip() == f"mixview {mixview.__version__}"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--print_completion", "bash"])
    script = tmp_path / "mixview.bash"
    script.write_text(capsys.readouterr().out)
    function = re.search(r"complete .*-F (\S+) mixview", script.read_text())
    assert function is not None
    for line, wanted in (("mixview emb", {"embed"}), ("mixview export --form", {"--format"})):
        words = line.split()
        ask = (
            f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
            f"{function[1]} mixview {words[-1]} {words[-2]}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        found = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.split()
        assert wanted <= set(found)


@pytest.mark.slow
def test_the_wheel_trains_and_embeds_without_the_repository(tmp_path: Path) -> None:
    """In an environment of its own, with the dependencies of this one, for they are gigabytes, and not this mixview."""
    build = [sys.executable, "-m", "build", "--outdir", str(tmp_path / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert list((tmp_path / "dist").glob("*.tar.gz"))
    venv.create(tmp_path / "env", with_pip=False)
    binaries = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin")
    python = binaries / "python"
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MIXVIEW_DATA")}
    environment |= {"MIXVIEW_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    install = ["pip", "--python", str(python), "install", "--no-deps", "--quiet", str(wheel)]
    subprocess.run([sys.executable, "-m", *install], check=True, env=environment)
    places = subprocess.check_output([python, "-c", "import site; print(site.getsitepackages()[0])"], text=True).strip()
    # Folders that a .pth file names come last, and their own .pth files, such as this repository's, are not read.
    Path(places, "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")

    work = tmp_path / "work"
    work.mkdir()

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [binaries / "mixview", *arguments], cwd=work, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = [python, "-c", "import mixview; print(mixview.__file__)"]
    assert str(tmp_path) in subprocess.check_output(where, cwd=work, env=environment, text=True)
    if REAL is not None:
        shutil.copytree(REAL / "photos", work / "photos")
    else:
        run("data", "make", "made", "--count", "100")
        (work / "made" / "train").rename(work / "photos")
    training = ["--size", "32", "--epochs", "2", "--batch_size", "16", "--workers", "0", "--out", "runs/first"]
    run("pretrain", "--recipe", "small/cpu-simclr", "--data", "photos/", *training)
    assert "100 images" in run("embed", "runs/first", "--data", "photos/", "--out", "features.parquet")
    run("neighbors", "runs/first", "--data", "photos/", "--out", "odd.png")
    run("export", "runs/first", "--format", "torch-export", "--out", "exported")
    assert "paper/mocov2-wbsim" in run("recipes")
    assert {"features.parquet", "odd.png", "odd.csv", "exported"} <= {path.name for path in work.iterdir()}
