"""The command line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from mixview import recipes
from mixview.cli import COMMANDS, Group, main
from mixview.commands.pretrain import build_parser
from tests.data.writing import needs_data, write_classes

ROOT = Path(__file__).parent.parent


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "list"])
    text = capsys.readouterr().out
    for word in ("scenes", "cifar10", "voc2007", "webdataset", "huggingface", "folder"):
        assert word in text


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_classes(tmp_path / "set", {"cat": 3, "dog": 3})
    (tmp_path / "set" / "cat" / "x.png").mkdir()
    main(["data", "show", str(tmp_path / "set"), "--out", str(tmp_path / "a.png"), "--count", "4"])
    text, told = capsys.readouterr()
    assert "6 images" in text
    assert told.count("skipped cat/x.png") == 1
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > 4 * 160


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data", "show", "x", "--cuont", "3"], ["--cuont", "did you mean --count?"]),
        (["data", "shwo", "x"], ["shwo", "did you mean show?"]),
        (["dta"], ["did you mean data?"]),
        (["data", "show", "x", "--count", "many"], ["count", "many"]),
        (["data", "show"], ["path"]),
    ],
)
def test_mistakes_name_what_was_meant(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    text = capsys.readouterr().err
    assert all(word in text for word in words)


def test_an_error_is_one_sentence_without_a_traceback() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["data", "show", "absent/folder"])
    assert caught.value.code == "mixview: there is neither a path nor a source named absent/folder: check the path"


def test_show_views_of_scenes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path / "cache"))
    plain, augmented = tmp_path / "plain.png", tmp_path / "views.png"
    main(["data", "show", "scenes", "--out", str(plain), "--count", "3"])
    main(["data", "show", "scenes", "--out", str(augmented), "--count", "3", "--augment", "byol-small"])
    with Image.open(plain) as before, Image.open(augmented) as after:
        assert after.height > before.height  # two rows more


@pytest.mark.parametrize("layout", ["folder", "voc", "coco"])
def test_make_writes_what_show_opens(layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "make", str(tmp_path / "set"), "--count", "20", "--size", "32", "--layout", layout])
    main(["data", "show", str(tmp_path / "set"), "--out", str(tmp_path / "a.png"), "--count", "4"])
    assert "20 images" in capsys.readouterr().out


@needs_data
def test_show_real(tmp_path: Path) -> None:
    main(["data", "show", "voc2007", "--split", "test", "--out", str(tmp_path / "a.png")])
    assert (tmp_path / "a.png").stat().st_size > 100_000


def test_a_study_is_run_by_its_name_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for words in (["study", "paper-small"], ["study", "run", "paper-small"]):
        main([*words, "--dry-run", "--out", str(tmp_path)])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "byol" in printed[0].lower()


def run(*words: str, python: tuple[str, ...] = ("-m", "mixview")) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *python, *words], capture_output=True, text=True, cwd=ROOT, timeout=120)


QUICK = {
    "help": ["--help"],
    "nothing": [],
    "version": ["--version"],
    "recipes": ["recipes"],
    "one recipe": ["recipes", "paper/mocov2-wbsim"],
    "studies": ["study", "list"],
    "completion": ["--print_completion", "bash"],
    "a group": ["evaluate", "--help"],
    "a slip": ["pretrian"],
}


@pytest.mark.parametrize("name", QUICK)
def test_what_must_answer_at_once_does_not_import_torch(name: str) -> None:
    code = (
        "import sys\nfrom mixview.cli import main\n"
        f"try:\n    main({QUICK[name]!r})\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'torchvision', 'lightning_fabric', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = run(python=("-c", code))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words", [["pretrain", "--help"], ["evaluate", "knn", "--help"], ["evaluate", "linear", "--help"]]
)
def test_help_of_a_command_imports_torch_at_most(words: list[str]) -> None:
    code = (
        "import sys\nfrom mixview.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        "heavy = {'torchvision', 'lightning_fabric', 'scipy', 'sklearn', 'timm', 'numba'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = run(python=("-c", code))
    assert done.returncode == 0, done.stderr


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in COMMANDS.items():
        for words in ([name, each] for each in command.commands) if isinstance(command, Group) else ([name],):
            with pytest.raises(SystemExit) as caught:
                main([*words, "--help"])
            assert caught.value.code == 0
            text = capsys.readouterr().out
            assert text.startswith(f"usage: mixview {' '.join(words)}"), words
            assert "Annotated" not in text
            assert max(map(len, text.splitlines())) <= 80, words
            examples = text.partition("\nexamples:\n")[2].splitlines()
            assert len(examples) == (1 if words[-1] == "list" else 2), words
            assert all(each.startswith(f"  mixview {' '.join(words)}") for each in examples), words
            if "important" in text:
                first = text.partition("most important options:\n")[2].partition("\n\n")[0]
                assert len(re.findall(r"^  --", first, re.MULTILINE)) == 6, words
            else:
                assert len(re.findall(r"^  -", text, re.MULTILINE)) < 9, f"{words} needs its options in groups"


@pytest.mark.parametrize("group", ["", "evaluate", "figure", "data", "study"])
def test_help_of_groups_fits_and_has_examples(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([*group.split(), "--help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert len(re.findall(rf"^  mixview {group}.*[^ ]$", text.partition("examples:")[2], re.MULTILINE)) >= 2


def test_every_option_of_pretraining_is_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pretrain", "--help"])
    other = capsys.readouterr().out.partition("\nother options:\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"^  (-\S+)", other, re.MULTILINE)) == {"-h,", "--config"}


def test_help_shows_the_options_of_one_method_only(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {}
    for method in ("mocov2", "byol"):
        with pytest.raises(SystemExit):
            main(["pretrain", "--method", method, "--help"])
        texts[method] = capsys.readouterr().out
    assert "--method.queue_size" in texts["mocov2"]
    assert "--method.queue_size" not in texts["byol"]
    assert "--method.target" in texts["byol"]
    assert "--method.target" not in texts["mocov2"]


def test_an_option_of_another_method_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["pretrain", "--method", "byol", "--method.queue_size", "64"])
    assert caught.value.code == 2
    assert "--method.queue_size" in capsys.readouterr().err


def test_help_shows_the_values_of_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pretrain", "--recipe", "paper/byol", "--help"])
    text = capsys.readouterr().out
    assert "(default: 4096)" in text
    assert "--method.target" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume=true"], "--resume is a switch and takes no value, got 'true'"),
        (["--compile", "--sync-bn=no"], "--sync_bn is a switch"),
        (["--epochs", "many"], "--epochs must be a whole number"),
        (["--method.temprature", "1"], "did you mean --method.temperature?"),
        (["--method", "mocov3x"], "there is no method 'mocov3x'"),
    ],
)
def test_mistakes_in_options(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["pretrain", *words])
    text = capsys.readouterr().err + str(caught.value.code)
    assert message in text


@pytest.mark.parametrize("value", ["-1000,400", "-.5,1.5", "-1e3,400"])
def test_a_value_may_begin_with_a_minus(value: str) -> None:
    arguments = ["--value_range", value, "--data", "ct/"]
    assert build_parser("mixview pretrain", arguments).parse_args(arguments).value_range == value


def test_a_negative_number_is_a_value_that_its_option_explains() -> None:
    with pytest.raises(SystemExit, match=r"--optimizer.lr must be a number, more than 0, got -0.001"):
        main(["pretrain", "--optimizer.lr", "-1e-3"])


def test_recipes_are_printed_by_names_that_can_be_copied() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mixview", "recipes"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "40"},
    )
    printed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert printed == {*recipes.names(), *recipes.names(detection=True)}
    shown = run("recipes", "paper/mocov2-wbsim").stdout
    assert "68.4" in shown
    assert "objective: wbsim" in shown


def test_completion_knows_commands_and_options() -> None:
    for shell in ("bash", "zsh", "tcsh"):
        script = run("--print_completion", shell).stdout
        assert "semi-supervised" in script
        assert "optimizer.weight_decay" in script
    done = run("--print_completion", "fish")
    assert done.returncode == 2
    assert "bash, zsh, tcsh" in done.stderr


def test_a_pipe_that_is_closed_early_is_no_error() -> None:
    line = f"{sys.executable} -m mixview recipes | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""
