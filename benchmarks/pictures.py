"""The pictures in README and docs, from the built-in synthetic scenes and the runs of `make demo`.

    python benchmarks/pictures.py --demo demo

Writes docs/overview.png (images, mixtures, and a map of the features of the demonstration's WBSIM run),
docs/mixtures.png (`mixview figure mixtures`) and docs/report.png, docs/explorer.png: the demonstration's report in the
system's Chromium, one image of it chosen. Runs examples/quickstart.ipynb and keeps its output. `--only overview` or
`--only notebook` does one alone.
"""

import argparse
import io
import shutil
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import torch
from matplotlib.figure import Figure
from nbclient import NotebookClient
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from sklearn.manifold import TSNE

import mixview
from mixview import CutMix, Mixup
from mixview.data import Scenes
from mixview.report import figures

DOCS = Path(__file__).parent.parent / "docs"
NOTEBOOK = DOCS.parent / "examples" / "quickstart.ipynb"
WIDTH = 1200


def keep(picture: Image.Image, path: Path, width: int = WIDTH) -> None:
    """Write a PNG of few colors: a quarter of the bytes, and the same to the eye."""
    if picture.width > width:
        picture = picture.resize((width, round(picture.height * width / picture.width)), Image.Resampling.LANCZOS)
    picture.convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT).save(path, optimize=True)
    print(f"wrote {path}: {path.stat().st_size / 1e3:.0f} kB")


def draw_overview(run: Path, shown: int = 600) -> None:
    """Four images, mixtures of them, and a map of held-out images by the run's encoder."""
    scenes = Scenes(shown, size=32, split="test")
    pixels = np.stack([scenes.read(number) for number in range(shown)])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    generator = torch.Generator().manual_seed(3)
    mixers = CutMix(lam_per="image"), Mixup(alpha=8.0, lam_per="image")
    mixtures = [mixer.draw(images[:4], generator)(images[:4]) for mixer in mixers]
    features = mixview.load(run).module
    with torch.no_grad():
        points = TSNE(random_state=0).fit_transform(torch.nn.functional.normalize(embed(features, images)).numpy())

    figure = plt.figure(figsize=(10, 3.1))
    parts = figure.subfigures(1, 3, width_ratios=(2, 4, 3.4))
    show(parts[0], "images  →", [images[:4]], columns=2)
    show(parts[1], "mixtures of pairs (CutMix, Mixup)  →", mixtures, columns=4)
    axes = parts[2].subplots()
    axes.scatter(*points.T, c=scenes.labels(), cmap="tab10", s=6)
    axes.axis("off")
    parts[2].suptitle("map of held-out images by class")
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=130, bbox_inches="tight")
    keep(Image.open(buffer), DOCS / "overview.png", 1300)


def embed(network: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Features of images in [0, 1]."""
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return torch.cat([network((each - mean) / std) for each in images.split(100)])


def show(figure: Figure, title: str, rows: list[torch.Tensor], columns: int) -> None:
    """Images in a grid."""
    images = torch.cat(rows)
    for axes, image in zip(figure.subplots(len(images) // columns, columns).flat, images, strict=True):
        axes.imshow(image.permute(1, 2, 0), interpolation="nearest")
        axes.axis("off")
    figure.subplots_adjust(wspace=0.05, hspace=0.05)
    figure.suptitle(title)


def draw_mixtures() -> None:
    with tempfile.TemporaryDirectory() as folder:
        png, _ = figures.draw_mixtures("scenes", Path(folder) / "mixtures", pairs=1, split="test")
        with Image.open(png) as picture:
            keep(picture, DOCS / "mixtures.png", 900)


def take(page: Page, first: str, last: str) -> Image.Image:
    """The page from the top of one section to the end of another."""
    boxes = [page.locator(name).bounding_box() for name in (first, last)]
    assert boxes[0] is not None
    assert boxes[1] is not None
    top, bottom = boxes[0]["y"] - 12, boxes[1]["y"] + boxes[1]["height"] + 12
    clip = {"x": 0, "y": max(0, top), "width": WIDTH, "height": bottom - top}
    return Image.open(io.BytesIO(page.screenshot(full_page=True, clip=clip)))


def photograph(report: Path) -> None:
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        sys.exit("there is no browser to photograph the report with: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.wait_for_selector("#again")
        page.add_style_tag(content="nav { position: static !important; }")
        page.wait_for_timeout(300)
        keep(take(page, "header", "#evaluation"), DOCS / "report.png")
        page.locator(".map").first.scroll_into_view_if_needed()
        x, y = page.evaluate(
            "() => { const map = explorer.maps[0], [x, y] = map.pointAt(4), frame = map.node.getBoundingClientRect();"
            " return [x + frame.left, y + frame.top]; }"
        )
        page.mouse.click(x, y)
        page.mouse.move(2, 2)
        page.wait_for_timeout(300)
        page.evaluate("scrollTo(0, 0)")
        keep(take(page, "#explorer", "#explorer"), DOCS / "explorer.png")
        browser.close()


def execute_notebook() -> None:
    """Run the notebook, and keep of its output what it prints and its pictures: no warnings, no HTML."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, startup_timeout=600, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        cell.outputs = [
            each for each in cell.outputs if each.get("name") == "stdout" or "image/png" in each.get("data", {})
        ]
    nbformat.write(notebook, NOTEBOOK)
    print(f"wrote {NOTEBOOK}: {NOTEBOOK.stat().st_size / 1e3:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, default=Path("demo"), help="the folder that `make demo` left")
    parser.add_argument("--only", choices=("overview", "notebook"), help="write this alone")
    options = parser.parse_args()
    if options.only == "notebook":
        execute_notebook()
        return
    if options.only == "overview":
        draw_overview(options.demo / "wbsim")
        return
    report = options.demo / "report.html"
    if not report.is_file():
        sys.exit(f"there is no {report}: run `make demo` first")
    draw_overview(options.demo / "wbsim")
    draw_mixtures()
    photograph(report)
    execute_notebook()


if __name__ == "__main__":
    main()
