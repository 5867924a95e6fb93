"""The paper's figures from runs that were written for the purpose: each is a PNG and an SVG."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from mixview.cli import main
from mixview.evaluate import results
from mixview.report.figures import cost as costs
from mixview.report.figures.alpha import gather_curves
from mixview.report.figures.beta import density
from mixview.report.figures.drawing import open_runs
from tests.evaluate.small_encoders import colored
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
    images = colored(tmp_path / "set", {"a": 2, "b": 2}, size=70)
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
    few = colored(tmp_path / "set", {"a": 6, "b": 6})
    with pytest.raises(SystemExit, match="needs 32 images"):
        main(["figure", "tsne-mixtures", *runs, "--data", str(few), "--workers", "0"])


def test_tsne_of_classes(runs: list[str], tmp_path: Path) -> None:
    small = ["--images", "4", "--augmentations", "3", "--samples", "2", "--workers", "0"]
    main(["figure", "tsne-classes", *runs, "--out", str(tmp_path / "a"), *small])
    check(tmp_path / "a", "red", "blue")
    plain = colored(tmp_path / "set", {".": 6})
    with pytest.raises(SystemExit, match="has no labels"):
        main(["figure", "tsne-classes", *runs, "--data", str(plain), "--workers", "0"])


TINY = ["--backbone", "small", "--batch_size", "4", "--size", "16", "--rounds", "1"]


def test_cost_of_the_papers_methods_beside_both_of_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {"sim": [0.2, 0.1, 0.3], "bsim": [0.25], "wbsim": [0.36]}
    made = {name: costs.Cost(100_000_000 + 7_000_000 * i, None, steps[name]) for i, name in enumerate(steps)}
    monkeypatch.setattr(costs, "measure", lambda *_: made)
    main(["figure", "cost", "--device", "cpu", "--out", str(tmp_path / "a")])
    check(tmp_path / "a", "SIM", "BSIM", "WBSIM", "Memory (activations held), SIM = 1")
    check(tmp_path / "a", "1.07  (107 MB)", "1.80  (0.36 s per step)", "1.25  (0.25 s per step)")
    check(tmp_path / "a", "1.49  (65.6 GB = 8 × 8.2)", "1.23  (21.7 GPU days, 65 h)", "1.75  (28 GPU days)")
    check(tmp_path / "a", "200 GB at batch 1024: no ratio", "1.00  (33.3 GPU days)", "not in the paper")
    check(tmp_path / "a", "solid: measured here, on one CPU; hatched: the paper's, on V100s. Only ratios compare.")
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    expected = (
        *("mocov2 BSIM 1.07 1.00 1.25 1.00", "WBSIM 1.14 1.49 1.80 1.23"),
        *("byol BSIM 1.07 1.00 1.25 1.00", "WBSIM 1.14 - 1.80 1.75"),
        *("swav BSIM 1.07 - 1.25 -", "WBSIM 1.14 - 1.80 -"),
        *("mocov2 SIM 8 100 MB 0.2 s 0.1 – 0.3 74.1", "byol SIM 8 100 MB 0.2 s 0.1 – 0.3 74.1"),
        *("MoCo SIM 256 44 GB 17.7 5.5 GB 53", "WBSIM 256 65.6 GB 21.7 8.2 GB 65"),
        *("BYOL SIM 4096 216 GB 16 - -", "WBSIM 1024 200 GB 28 - -", "SwAV SIM 4096 819 GB 33.3 - -"),
    )
    assert [line for line in expected if line not in said] == []


def test_cost_of_runs(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "build_method", with_small_head(costs.build_method))
    main(["figure", "cost", *runs, "--rounds", "1", "--device", "cpu", "--out", str(tmp_path / "a")])
    run = open_runs(runs[:1])[0]
    assert costs.setup_of(run) == ("simclr", "small", 16, run.config["size"])
    check(tmp_path / "a", "simclr, small", "SIM", "BSIM", "WBSIM")
    said = capsys.readouterr().out
    assert said.count("simclr") == 2 + ("Recorded by the runs" in said) * len(runs)
    run.config["accumulate_grad_batches"] = 4
    assert costs.setup_of(run).batch_size == 4
    with pytest.raises(SystemExit, match="batch_size at least 2, got 0 and 8"):
        main(["figure", "cost", "--rounds", "0"])


def with_small_head(build):
    return lambda config, backbone, run: build(replace(config, hidden=16, dim=8), backbone, run)


def test_days_of_200_epochs() -> None:
    per_image = 17.7 * 86_400 / 200 / 1_281_167  # the paper's MoCo, on one of its eight GPUs
    assert costs.Cost(0, None, [1.0, 32 * per_image, 0.0]).days(32) == pytest.approx(17.7)
    moco, byol, swav = (costs.published(name) for name in ("mocov1", "byol", "swav"))
    for row in moco.values():  # Table 11 is Table 12 of one GPU
        assert row.days == pytest.approx(8 * row.hours / 24, rel=5e-3)
        assert row.memory == pytest.approx(8 * row.per_gpu)
    assert costs.paper_ratios(moco, "wbsim") == pytest.approx((65.6 / 44, 21.7 / 17.7))
    assert costs.paper_ratios(byol, "wbsim") == (None, 28 / 16)  # another batch size
    assert list(swav) == ["sim"]
    assert costs.published("simclr") == {}


class FakeCuda:
    """In place of a GPU: computes on the CPU, and reports memory that grows with every step since it was reset."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        rand = torch.rand
        monkeypatch.setattr(torch, "rand", lambda *shape, device=None, **options: rand(*shape, **options))
        monkeypatch.setattr(costs, "build_method", with_small_head(costs.build_method))
        monkeypatch.setattr(torch.nn.Module, "to", lambda module, device: module)
        monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: self.calls.append("empty"))
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: self.calls.append("reset"))
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.read(5e9))
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: self.read(6e9))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
        monkeypatch.setattr(costs, "pick_device", torch.device)
        backward = costs.backward
        monkeypatch.setattr(
            costs,
            "backward",
            lambda method, views, terms: (self.calls.append("step"), backward(method, views, terms))[1],
        )

    def read(self, most: float) -> int:
        since = self.calls[len(self.calls) - self.calls[::-1].index("reset") :]
        return int(most * since.count("step"))


def test_cost_on_cuda_is_what_the_device_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeCuda(monkeypatch)
    main(["figure", "cost", "--methods", "[byol]", *TINY, "--device", "cuda", "--out", str(tmp_path / "a")])
    # Two rounds of the three objectives; then, of each, the peak of one step with the optimizer's state in place.
    assert device.calls == ["step"] * 6 + ["empty", "reset", "step"] * 3
    said = capsys.readouterr().out
    assert "peak (reserved)" in said
    assert said.count("5.0 GB (6.0 GB)") == 3
    assert "on one Tesla V100" in said
    assert "GPU days" in said
    check(tmp_path / "a", "Memory (peak on the device), SIM = 1", "1.00  (5.0 GB)")


def test_alpha_is_drawn_with_its_std_and_the_papers_table(tmp_path: Path) -> None:
    data = write_images(tmp_path / "set.npz")
    paths = [str(write_run(tmp_path / "sim", data, "sim", encoder=False))]
    for alpha, seed, knn in ((0.5, 0, 0.3), (0.5, 1, 0.5), (1.0, 0, 0.6)):
        run = write_run(tmp_path / f"{alpha}-{seed}", data, "bsim", alpha=alpha, seed=seed, knn=knn, encoder=False)
        paths.append(str(run))
    sim, curve = gather_curves(open_runs(paths))["online k-NN"]
    assert (sim.name, sim.points) == ("SIM, nothing mixed", [(None, [40.0])])
    assert (curve.name, curve.points) == ("simclr bsim, cutmix", [(0.5, [30.0, 50.0]), (1.0, [60.0])])
    main(["figure", "alpha", *paths, "--out", str(tmp_path / "a")])
    check(tmp_path / "a", "online k-NN", "SIM, nothing mixed")
    with pytest.raises(SystemExit, match="no two α to compare"):
        main(["figure", "alpha", paths[1], "--out", str(tmp_path / "b")])


def test_alpha_keeps_apart_what_differs_in_more_than_alpha_and_seed(tmp_path: Path) -> None:
    data = write_images(tmp_path / "set.npz")
    paths = []
    for number, (backbone, alpha, epochs) in enumerate([("small", 0.5, 4), ("resnet18", 0.5, 4), ("small", 1.0, 4)]):
        for objective in ("bsim", "sim"):
            path = tmp_path / f"{number}-{objective}"
            options = {"backbone": backbone, "alpha": alpha, "epochs": epochs, "encoder": False}
            score = {"top-1": 10.0 * number}
            paths.append(str(write_run(path, data, objective, knn=0.1 * number, results_of=score, **options)))
    kept = results.read(paths[0])[0]
    results.save(replace(kept, settings={"k": 200}, metrics={"top-1": 77.0}), Path(paths[0]))
    results.save(replace(kept, seed=1, metrics={"top-1": 4.0}), Path(paths[0]))  # of another seed of the evaluation
    panels = gather_curves(open_runs(paths))
    assert set(panels) == {"linear top-1", "linear top-1, k 200", "online k-NN"}
    assert panels["linear top-1"] == [
        ("simclr bsim, cutmix, backbone small", [(0.5, [2.0]), (1.0, [20.0])]),
        ("simclr bsim, cutmix, backbone resnet18", [(0.5, [10.0])]),
        ("SIM, nothing mixed, backbone small", [(None, [0.0, 20.0])]),
        ("SIM, nothing mixed, backbone resnet18", [(None, [10.0])]),
    ]
    assert panels["linear top-1, k 200"] == [("simclr bsim, cutmix", [(0.5, [77.0])])]
    assert [curve.name for curve in panels["online k-NN"]] == [curve.name for curve in panels["linear top-1"]]


def test_what_is_no_run_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is not a run of mixview"):
        main(["figure", "alpha", str(tmp_path)])
    with pytest.raises(SystemExit, match="has no encoder yet"):
        main(["figure", "tsne-mixtures", str(write_run(tmp_path / "a", "scenes", encoder=False))])
