"""A stranger's mixer, method, protocol and augmentation, one file each, through every door: commands, recipe, study,
report; and not without consent where a file names them."""

import json
from pathlib import Path

import pytest

from mixview.io.yaml_files import read_yaml
from tests.processes import Finished, run_mixview

ROOT = Path(__file__).parent.parent

FMIX = '''
"""FMix (Harris et al., 2020): a mask of low-frequency noise, of which the largest part is image i's."""

import torch

from mixview.mixing import BetaMixer, Mixture


class FMix(BetaMixer):
    """Mixes by masks of low-frequency noise."""

    def extra_uniforms(self, images):
        return images.shape[-2] * images.shape[-1]

    def compose(self, images, partner, lam, uniform):
        for tensor in (partner, lam, uniform):
            assert tensor.device == images.device
        height, width = images.shape[-2:]
        noise = uniform[:, -height * width :].to(torch.float32).view(-1, height, width)
        assert noise.unique().numel() > height * width // 2, "random numbers of its own"
        rows, columns = torch.fft.fftfreq(height), torch.fft.fftfreq(width)
        decay = 1 / (rows[:, None] ** 2 + columns[None] ** 2).sqrt().clamp(min=1 / max(height, width)) ** 3
        smooth = torch.fft.ifft2(torch.fft.fft2(noise - 0.5) * decay).real.flatten(1)
        rank = smooth.argsort(1, descending=True).argsort(1)
        own = (rank < (lam[:, None] * height * width).round()).view(-1, 1, height, width)
        share = own.flatten(1).to(torch.float32).mean(1)
        return Mixture(partner, share, lambda batch: torch.where(own, batch, batch[partner]))
'''

BARLOW_TWINS = '''
"""Barlow Twins (Zbontar et al., 2021)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from mixview.methods import Method, MethodConfig
from mixview.methods.base import check_two_views
from mixview.nn import MLP, EncoderWithProjector


class BarlowTwinsModule(Method):
    """The cross-correlation of two views is the identity; of a mixture and a view, lam times it."""

    def __init__(self, encoder, feature_dim, dim, redundancy_weight):
        super().__init__()
        self.online = EncoderWithProjector(encoder, MLP((feature_dim, dim, dim)), feature_dim)
        self.redundancy_weight = redundancy_weight

    def forward(self, views, terms, targets=None):
        check_two_views(views)
        first, second = views
        z = standardize(self.online(second))
        loss = first.new_zeros(())
        for weight, mixture in terms:
            mixed = standardize(self.online(mixture(first)))
            lam = mixture.lam[:, None].to(z.dtype)
            target = lam * z + (1 - lam) * z[mixture.partner]
            correlation = mixed.T @ standardize(target) / len(z)
            off_diagonal = correlation - torch.diag(correlation.diagonal())
            on = (1 - correlation.diagonal()).square().sum()
            loss = loss + weight * (on + self.redundancy_weight * off_diagonal.square().sum())
        return loss, None

    def update(self, *targets, progress):
        pass


def standardize(z):
    return (z - z.mean(0)) / (z.std(0) + 1e-4)


@dataclass(frozen=True, kw_only=True)
class BarlowTwins(MethodConfig):
    """Barlow Twins (Zbontar et al., 2021): decorrelated features."""

    module: ClassVar[type[Method]] = BarlowTwinsModule
    augment: ClassVar[str] = "simclr"

    dim: int = 64
    """Width of the projections."""
    redundancy_weight: float = 5e-3
    """Weight of the off-diagonal terms."""

    def build(self, encoder, feature_dim, run):
        return BarlowTwinsModule(encoder, feature_dim, self.dim, self.redundancy_weight)
'''

NEAREST_MEAN = '''
"""Classification by the nearest class mean."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from mixview.evaluate import Protocol


@dataclass(frozen=True, kw_only=True)
class NearestMean(Protocol):
    """Evaluate by the nearest class mean."""

    examples: ClassVar[tuple[str, ...]] = ("runs/first --data scenes --power 0.5",)

    power: float = 1.0
    """Exponent of the features."""

    def evaluate(self, context):
        train, train_labels, test, test_labels = (each for each in context.labeled_features())
        train, test = (each.sign() * each.abs() ** self.power for each in (train, test))
        means = torch.stack([train[train_labels == label].mean(0) for label in train_labels.unique()])
        correct = torch.cdist(test, means).argmin(1) == test_labels
        yield "top-1", 100 * correct.double().mean().item()
'''

POLICY = '''
"""Two views: one blurred, one solarized."""

from mixview.data.augment.policies import Augmentation, Blur, Crop


def policy(size=224):
    return [Augmentation(Crop(size), blur=Blur(p=1.0)), Augmentation(Crop(size), solarize=0.5)]
'''

POLICY_YAML = "base: mocov2-small\ngrayscale: 0.5\nviews:\n  - {flip: 0.0}\n  - {flip: 1.0}\n"

TINY = ["--data", "scenes", "--backbone", "small", "--batch_size", "16", "--epochs", "1", "--workers", "0"]
TINY += ["--data_options", '{"count": 48, "size": 16}', "--monitor.loggers", "none", "--no_monitor.estimate"]
TRUST = "--trust_remote_code"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with a stranger's four files."""
    path = tmp_path_factory.mktemp("stranger")
    for name, text in (("fmix", FMIX), ("barlow", BARLOW_TWINS), ("means", NEAREST_MEAN), ("views", POLICY)):
        (path / f"{name}.py").write_text(text)
    (path / "mine.yaml").write_text(POLICY_YAML)
    return path


def run(folder: Path, *words: str) -> Finished:
    return run_mixview(folder, *words, PYTHONPATH=str(ROOT), CUDA_VISIBLE_DEVICES="")


def succeed(folder: Path, *words: str) -> str:
    done = run(folder, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def refuse(folder: Path, *words: str) -> str:
    done = run(folder, *words)
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


OWN = {
    "mixer": ["--mixing.mixer", "fmix.FMix", "--objective", "bsim"],
    "method": ["--method", "barlow.BarlowTwins", "--method.dim", "32"],
    "augmentation as YAML": ["--augment", "mine.yaml"],
    "augmentation as a factory": ["--augment", "views.policy"],
}
EVERYTHING = ["--mixing.mixer", "fmix.FMix", *OWN["method"], "--augment", "views.policy"]


@pytest.fixture(scope="module")
def own_run(folder: Path) -> Path:
    """A run of a stranger's method, mixer and augmentation."""
    succeed(folder, "pretrain", *TINY, *EVERYTHING, "--out", "own")
    return folder / "own"


@pytest.mark.parametrize("kind", OWN)
def test_pretrain(kind: str, folder: Path) -> None:
    out = f"run-{kind.replace(' ', '-')}"
    succeed(folder, "pretrain", *TINY, *OWN[kind], "--out", out)
    assert (folder / out / "encoder.safetensors").is_file()


def test_the_options_of_a_method_of_ones_own(folder: Path, own_run: Path) -> None:
    config = read_yaml(own_run / "config.yaml")
    assert config["method"] == {"name": "barlow.BarlowTwins", "dim": 32, "redundancy_weight": 5e-3}
    text = succeed(folder, "pretrain", "--method", "barlow.BarlowTwins", "--help")
    assert "Weight of the off-diagonal terms." in text
    assert "queue_size" not in text
    assert "did you mean" in refuse(folder, "pretrain", "--method", "barlow.BarlowTwin", *TINY)


def test_evaluate_and_show(folder: Path, own_run: Path) -> None:
    data = ["--data", "scenes", "--data_options", '{"count": 48, "size": 16}', "--workers", "0", "--device", "cpu"]
    text = succeed(folder, "evaluate", "means.NearestMean", "own", *data, "--power", "0.5")
    assert "top-1" in text
    (file,) = [path for path in (own_run / "evaluations").glob("*.json") if "NearestMean" in path.name]
    result = json.loads(file.read_text())
    assert result["settings"]["power"] == 0.5
    assert "NearestMean" in succeed(folder, "evaluate", "show", "own")
    text = succeed(folder, "evaluate", "means.NearestMean", "--help")
    assert "Exponent of the features." in text
    assert "mixview evaluate means.NearestMean runs/first --data scenes --power 0.5" in text


def test_report(folder: Path, own_run: Path) -> None:
    text = succeed(
        folder, "report", "own", "--out", "page.html", "--images", "16", "--workers", "0", "--device", "cpu", TRUST
    )
    assert "page.html" in text
    page = (folder / "page.html").read_text()
    assert "barlow.BarlowTwins" in page


def test_recipe(folder: Path) -> None:
    (folder / "recipe.yaml").write_text(
        "method: {name: barlow.BarlowTwins, dim: 16}\nobjective: bsim\n"
        "mixing: {mixer: fmix.FMix}\naugment: views.policy\n"
    )
    assert TRUST in refuse(folder, "pretrain", *TINY, "--recipe", "recipe.yaml", "--out", "from-recipe")
    assert not (folder / "from-recipe").exists()
    succeed(folder, "pretrain", *TINY, "--recipe", "recipe.yaml", "--out", "from-recipe", TRUST)


def test_study(folder: Path) -> None:
    study = """
about: {what: A stranger's parts, cost: seconds}
settings:
  backbone: small
  batch_size: 16
  epochs: 1
  workers: 0
  augment: views.policy
  mixing: {mixer: fmix.FMix}
  monitor: {loggers: none, estimate: false}
data: {Scenes: {data: scenes, data_options: {count: 48, size: 16}, evaluate: {}}}
methods: {Barlow Twins: {method: {name: barlow.BarlowTwins, dim: 16}}}
objectives: {SIM: {objective: sim}, BSIM: {objective: bsim}}
baseline: SIM
seeds: [0]
evaluate: {nearest mean: {protocol: means.NearestMean, metric: top-1}}
"""
    (folder / "study.yaml").write_text(study)
    line = ["study", "study.yaml", "--out", "results", "--runs", "study-runs", "--cores", "1"]
    assert TRUST in refuse(folder, *line)
    text = succeed(folder, *line, TRUST)
    assert "complete" in text
    assert "nearest mean" in succeed(folder, "study", "show", "results", TRUST)


WITHOUT_CONSENT = {
    "resume": ["pretrain", "--resume", "--out", "own", "--epochs", "2"],
    "resume-mixer": ["pretrain", "--resume", "--out", "run-mixer", "--epochs", "2"],
}
NEEDS_NO_CODE = {
    "evaluate": ["evaluate", "knn", "own", "--data", "scenes", "--data_options", '{"count": 48, "size": 16}'],
    "embed": [
        "embed",
        "own",
        "--data",
        "scenes",
        "--data_options",
        '{"count": 8, "size": 16}',
        "--out",
        "features.npy",
    ],
    "export": ["export", "own", "--out", "exported"],
    "report": ["report", "own", "--out", "other.html", "--images", "16", "--device", "cpu"],
}


@pytest.mark.parametrize("name", WITHOUT_CONSENT)
def test_a_run_that_names_code_is_not_resumed_without_consent(name: str, folder: Path, own_run: Path) -> None:
    if name == "resume-mixer" and not (folder / "run-mixer").exists():
        succeed(folder, "pretrain", *TINY, *OWN["mixer"], "--out", "run-mixer")
    message = refuse(folder, *WITHOUT_CONSENT[name])
    assert "importing it would run its code" in message
    assert TRUST in message
    succeed(folder, *WITHOUT_CONSENT[name], TRUST)


@pytest.mark.parametrize("name", NEEDS_NO_CODE)
def test_what_needs_only_the_encoder_imports_nothing(name: str, folder: Path, own_run: Path, tmp_path: Path) -> None:
    """The same run where its modules would leave a trace if they were imported."""
    for module in ("fmix", "barlow", "means", "views"):
        (tmp_path / f"{module}.py").write_text("open('imported', 'w')\n")
    (tmp_path / "own").symlink_to(own_run)
    done = run(tmp_path, *NEEDS_NO_CODE[name])
    assert not (tmp_path / "imported").exists(), done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
