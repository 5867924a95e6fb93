"""The page in a real browser: it loads from a file without error or network, and does what it says.

Uses the system's Chromium (Debian's package chromium), and is skipped where there is none.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from mixview.report.page import report
from tests.report.written import SCRIPT, make_result, write_images, write_run

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


class Seen:
    """What a page did beside what it shows."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs, in folders and on classes with hostile names."""
    from mixview.evaluate import results

    root = tmp_path_factory.mktemp("report")
    data = write_images(root / "set.npz")
    # Two runs of one name are told apart by their parents: together these are the script.
    first = write_run(root / "<script>alert(1)<" / "script>", data, "sim", results_of={"top-1": 30.0})
    second = write_run(root / "other" / "script>", data, "wbsim", knn=0.6, results_of={"top-1": 50.0})
    third = write_run(root / "<img src=x onerror=alert(2)>", data, "bsim", seed=1, results_of={"top-1": 40.0})
    results.save(make_result("raw pixels", {"top-1": 10.0}), root / "without")
    trial = second / "detection" / "voc-c4-VOCdevkit-seed-0"
    trial.mkdir(parents=True)
    Image.new("RGB", (64, 48), "red").save(trial / "detections.png")
    folders = [str(path) for path in (first, second, third, root / "without")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIXVIEW_CACHE", str(root / "cache"))
        return report(folders, root / "report.html", title=SCRIPT, workers=0)


@pytest.fixture(scope="module")
def browser() -> Iterator["sync_api.Browser"]:
    with sync_api.sync_playwright() as playwright:
        # A browser that runs as root, as in most containers, has no sandbox of its own.
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen()


@pytest.fixture(scope="module")
def page(browser: "sync_api.Browser", page_file: Path, seen: Seen) -> "sync_api.Page":
    opened = browser.new_page(viewport={"width": 1300, "height": 900})
    opened.on("console", lambda message: seen.errors.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: seen.errors.append(str(error)))
    opened.on("request", lambda request: seen.requests.append(request.url))
    opened.on("dialog", lambda dialog: (seen.dialogs.append(dialog.message), dialog.dismiss()))
    opened.goto(page_file.as_uri())
    opened.wait_for_selector("#reproduce")
    return opened


def point(page: "sync_api.Page", index: int, which: int = 0) -> tuple[float, float]:
    """Where an image is on a map, in the window."""
    page.locator(".map").nth(which).scroll_into_view_if_needed()
    x, y = page.evaluate(
        "([map, index]) => { const [x, y] = explorer.maps[map].pointAt(index);"
        " const frame = explorer.maps[map].node.getBoundingClientRect(); return [x + frame.left, y + frame.top]; }",
        [which, index],
    )
    return float(x), float(y)


def test_it_loads_without_error_or_network(page: "sync_api.Page", page_file: Path, seen: Seen) -> None:
    assert seen.errors == []
    assert [url for url in seen.requests if not url.startswith("data:")] == [page_file.as_uri()]


def test_names_are_text(page: "sync_api.Page", seen: Seen) -> None:
    assert page.locator("h1").inner_text() == SCRIPT
    assert page.get_by_role("heading", name=SCRIPT, exact=True).count() > 1  # the title, and the run
    assert page.locator(".legend.pick button", has_text=SCRIPT).count() == 1  # the class
    assert page.locator("#runs h3", has_text="<img src=x onerror=alert(2)>").count() == 1
    assert page.locator("main script, main img[src=x]").count() == 0
    assert seen.dialogs == []


def test_hovering_shows_the_image(page: "sync_api.Page") -> None:
    assert page.locator(".tip").is_hidden()
    page.mouse.move(*point(page, 7))
    assert page.locator(".tip canvas").get_attribute("data-index") == "7"
    drawn = page.evaluate(
        "() => { const c = document.querySelector('.tip canvas');"
        " return c.getContext('2d').getImageData(c.width / 2, c.height / 2, 1, 1).data[3]; }"
    )
    assert drawn == 255
    page.mouse.move(1, 1)
    assert page.locator(".tip").is_hidden()


def test_clicking_shows_neighbors_and_mixtures_of_both_runs(page: "sync_api.Page") -> None:
    page.mouse.click(*point(page, 5))
    detail = page.get_by_role("region", name="The chosen image")
    assert detail.is_visible()
    assert detail.locator("[data-neighbors]").count() == 2
    for number in range(2):
        side = detail.locator("[data-neighbors]").nth(number)
        assert side.locator(".tile canvas").count() == 8
        assert side.locator(".mixture").count() == 2
        assert "cosine" in side.locator(".mixture").first.inner_text()


def test_detections_are_shown(page: "sync_api.Page") -> None:
    picture = page.locator("#detections img")
    assert picture.count() == 1
    assert picture.evaluate("image => image.naturalWidth") == 64
    assert page.locator("#detections figcaption").inner_text() == "voc-c4-VOCdevkit"


def test_the_keyboard_does_the_same(page: "sync_api.Page") -> None:
    page.locator(".map").first.focus()
    page.keyboard.press("Escape")
    assert page.get_by_role("region", name="The chosen image").is_hidden()
    page.keyboard.press("ArrowRight")
    first = page.locator(".tip canvas").get_attribute("data-index")
    page.keyboard.press("ArrowRight")
    assert page.locator(".tip canvas").get_attribute("data-index") != first
    page.keyboard.press("Enter")
    assert page.get_by_role("region", name="The chosen image").is_visible()
    assert "chosen: image" in page.locator("#live").inner_text()


def test_the_table_sorts(page: "sync_api.Page") -> None:
    table = page.locator("#evaluation table")
    column = table.locator("thead th").nth(1)

    def values() -> list[str]:
        return [text.split("\n")[0] for text in table.locator("tbody td:nth-child(2)").all_inner_texts()]

    column.get_by_role("button").click()
    assert column.get_attribute("aria-sort") == "descending"
    assert values() == ["50.0 %", "40.0 %", "30.0 %", "10.0 %"]
    column.get_by_role("button").click()
    assert column.get_attribute("aria-sort") == "ascending"
    assert values() == ["10.0 %", "30.0 %", "40.0 %", "50.0 %"]
    assert table.locator(".best").inner_text() == "50.0 %"
    assert page.locator(".paper").count() == 0  # whose numbers are of ImageNet, and these images are not


def test_switching_runs_changes_every_part(page: "sync_api.Page") -> None:
    wanted = "<img src=x onerror=alert(2)>"
    page.get_by_role("combobox", name="with").select_option(label=wanted)
    for part in ("explorer", "findings", "neighbors", "confusions", "views"):
        assert page.locator(f"#{part} h3", has_text=wanted).count() >= 1, part
    assert page.locator(".map").nth(1).get_attribute("data-run") == wanted
    page.mouse.move(*point(page, 3, which=1))
    assert page.locator(".tip canvas").get_attribute("data-index") == "3"


def test_light_and_dark(page: "sync_api.Page") -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(background)
    page.locator("#theme").click()
    assert page.evaluate(background) != before
    page.locator("#theme").click()
    assert page.evaluate(background) == before


def test_controls_have_names(page: "sync_api.Page") -> None:
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, select, canvas[role=img], [role=application], [role=region], img')]"
        ".filter((n) => !(n.ariaLabel || n.textContent.trim() || n.alt || n.closest('label')))"
        ".map((n) => n.outerHTML)"
    )
    assert unnamed == []


def test_a_narrow_screen_needs_no_sideways_scrolling(browser: "sync_api.Browser", page_file: Path) -> None:
    narrow = browser.new_page(viewport={"width": 400, "height": 800}, color_scheme="dark")
    narrow.goto(page_file.as_uri())
    narrow.wait_for_selector("#reproduce")
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 400
    narrow.close()


def test_many_crashed_runs_and_none_at_all(browser: "sync_api.Browser", tmp_path: Path) -> None:
    from mixview.evaluate import results

    crashed = [str(write_run(tmp_path / f"run-{n}", "gone", state="failed", encoder=False)) for n in range(8)]
    results.save(make_result("raw pixels", {"top-1": 10.0}), tmp_path / "without")
    other, errors = browser.new_page(), list[str]()
    other.on("pageerror", lambda error: errors.append(str(error)))
    other.goto(report(crashed, tmp_path / "crashed.html").as_uri())
    assert other.locator("#runs tbody tr").count() == 8
    assert other.locator("#runs .badge.failed").count() == 8
    assert other.locator("#curves .chart").count() == 6
    assert other.locator("#reproduce pre").count() == 8
    assert other.locator("#explorer").count() == 0
    other.goto(report([str(tmp_path / "without")], tmp_path / "without.html").as_uri())
    assert other.locator("#evaluation tbody tr").count() == 1
    assert errors == []
    other.close()


def test_nothing_went_wrong_on_the_way(page: "sync_api.Page", seen: Seen) -> None:
    assert seen.errors == []
    assert len([url for url in seen.requests if not url.startswith("data:")]) == 1
