"""The paper's figures from runs that were written for the purpose: each is a PNG and an SVG."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from mixview.cli import main
from mixview.report.figures.alpha import gather_curves
from mixview.report.figures.beta import density
from mixview.report.figures.drawing import open_runs
from tests.evaluate.judged import coloured
from tests.report.written import write_images, write_run


def check(out: Path, *words: str) -> None:
    """Both files are there and can be opened. Text is drawn as paths, with its source beside it as a comment."""
    with Image.open(out.with_suffix(".png")) as picture:
        assert min(picture.size) > 300
    text = out.with_suffix(".svg").read_text()
    ElementTree.fromstring(text)
    for word in words:
        assert f"<!-- {word} -->" in text, word


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("runs")
    data = write_images(root / "set.npz", 48, ("red", "green", "blue"))
    return [str(write_run(root / name, data, name)) for name in ("sim", "bsim")]


def test_mixtures_of_a_run_and_of_any_images(runs: list[str], tmp_path: Path) -> None:
    main(["figure", "mixtures", runs[0], "--out", str(tmp_path / "a"), "--pairs", "1", "--lams", "[0.8, 0.2]"])
    check(tmp_path / "a", "CutMix", "Mixup", "λ = 0.8", "20% of the first")
    images = coloured(tmp_path / "set", {"a": 2, "b": 2}, size=70)
    main(["figure", "mixtures", str(images), "--out", str(tmp_path / "b.png")])
    check(tmp_path / "b")
    with pytest.raises(SystemExit, match="20 pairs need 40 images"):
        main(["figure", "mixtures", str(images), "--pairs", "20", "--out", str(tmp_path / "c")])


@pytest.mark.parametrize("alpha", [0.1, 0.75, 1.0, 4.0])
def test_densities_are_those_of_scipy(alpha: float) -> None:
    from scipy.stats import beta

    x = np.linspace(0.01, 0.99, 9)
    assert np.allclose(density(alpha, x), beta.pdf(x, alpha, alpha))


def test_beta(runs: list[str], tmp_path: Path) -> None:
    main(["figure", "beta", *runs, "--out", str(tmp_path / "a"), "--alphas", "[0.5]"])
    check(tmp_path / "a", "α = 0.5", "α = 1 (uniform): bsim")
    with pytest.raises(SystemExit, match="α must be a positive number"):
        main(["figure", "beta", "--alphas", "[0]"])


def test_tsne_of_mixtures(runs: list[str], tmp_path: Path) -> None:
    main(["figure", "tsne-mixtures", *runs, "--out", str(tmp_path / "a"), "--workers", "0", "--pair", "3"])
    check(tmp_path / "a", "6_25", "31_0", "cosine to its parents")
    few = coloured(tmp_path / "set", {"a": 6, "b": 6})
    with pytest.raises(SystemExit, match="needs 32 images"):
        main(["figure", "tsne-mixtures", *runs, "--data", str(few), "--workers", "0"])


def test_tsne_of_classes(runs: list[str], tmp_path: Path) -> None:
    small = ["--images", "4", "--augmentations", "3", "--samples", "2", "--workers", "0"]
    main(["figure", "tsne-classes", *runs, "--out", str(tmp_path / "a"), *small])
    check(tmp_path / "a", "red", "blue")
    plain = coloured(tmp_path / "set", {".": 6})
    with pytest.raises(SystemExit, match="has no labels"):
        main(["figure", "tsne-classes", *runs, "--data", str(plain), "--workers", "0"])


def test_cost(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["figure", "cost", "--methods", "[mocov2]", "--backbone", "small", "--batch", "4", "--size", "16",
          "--rounds", "1", "--device", "cpu", "--out", str(tmp_path / "a")])  # fmt: skip
    check(tmp_path / "a", "SIM", "BSIM", "WBSIM")
    assert "paper's" in capsys.readouterr().out


def test_alpha_is_drawn_with_its_spread_and_the_papers(tmp_path: Path) -> None:
    data = write_images(tmp_path / "set.npz")
    paths = [str(write_run(tmp_path / "sim", data, "sim", encoder=False))]
    for alpha, seed, knn in ((0.5, 0, 0.3), (0.5, 1, 0.5), (1.0, 0, 0.6)):
        run = write_run(tmp_path / f"{alpha}-{seed}", data, "bsim", alpha=alpha, seed=seed, knn=knn, encoder=False)
        paths.append(str(run))
    ((group, points),) = gather_curves(open_runs(paths))["k-NN while training"].items()
    assert group == "simclr bsim, cutmix"
    assert [(point.alpha, point.values) for point in points] == [(0.5, [30.0, 50.0]), (1.0, [60.0])]
    main(["figure", "alpha", *paths, "--out", str(tmp_path / "a")])
    check(tmp_path / "a", "k-NN while training", "SIM, nothing mixed")
    with pytest.raises(SystemExit, match="no two α to compare"):
        main(["figure", "alpha", paths[1], "--out", str(tmp_path / "b")])


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is not a run of mixview"):
        main(["figure", "alpha", str(tmp_path)])
    with pytest.raises(SystemExit, match="has no encoder yet"):
        main(["figure", "tsne-mixtures", str(write_run(tmp_path / "a", "scenes", encoder=False))])
