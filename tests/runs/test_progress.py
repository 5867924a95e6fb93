import re
from io import StringIO

import pytest
import torch
from rich.console import Console

from mixview.runs.progress import Progress, Rate, duration


class Screen:
    """A console to read back, and a clock to turn."""

    def __init__(self, terminal: bool, width: int = 80) -> None:
        self.file = StringIO()
        self.console = Console(file=self.file, force_terminal=terminal, width=width, color_system=None)
        self.now = 1000.0

    def clock(self) -> float:
        return self.now

    @property
    def lines(self) -> list[str]:
        """What was printed, each drawing of the bar a line."""
        text = re.sub(r"\x1b\[[0-9?]*[A-Zhl]", "", self.file.getvalue()).replace("\r", "\n")
        return [line.rstrip() for line in text.split("\n") if line.strip()]


def make(screen: Screen, steps: int = 8000, start: int = 0, **options) -> Progress:
    return Progress(steps, 80, start=start, console=screen.console, clock=screen.clock, **options)


def test_lines_where_there_is_no_terminal() -> None:
    screen = Screen(terminal=False)
    with make(screen) as progress:
        for step in range(1, 241):
            screen.now += 0.5
            progress.update(step, 617, loss=lambda: 4.3214, knn=0.4519 if step == 160 else None)
            if step == 200:
                progress.say("saved [last] checkpoint")
                progress.warn("word " * 30)
    assert screen.lines == [
        "epoch 1/100  step 1/8000  loss 4.321",
        "epoch 1/100  step 61/8000  loss 4.321  1,234 images/s  ETA 1 h 06 min",
        "epoch 2/100  step 121/8000  loss 4.321  1,234 images/s  ETA 1 h 06 min",
        "epoch 2/100  step 160/8000  loss 4.321  1,234 images/s  k-NN 45.2 %  ETA 1 h 05 min",
        "saved [last] checkpoint",
        ("warning: " + "word " * 30).rstrip(),
        "epoch 3/100  step 220/8000  loss 4.321  1,234 images/s  k-NN 45.2 %  ETA 1 h 05 min",
    ]
    assert "\x1b" not in screen.file.getvalue()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200])
def test_a_bar_on_a_terminal(width: int) -> None:
    screen = Screen(terminal=True, width=width)
    with make(screen, steps=240) as progress:
        for step in range(1, 241):
            screen.now += 0.25
            progress.update(step, 64, loss=torch.tensor(1.5), knn=0.5 if step == 80 else None)
            if step == 100:
                progress.say("hello")
    assert max(len(line) for line in screen.lines) <= width
    middle = screen.lines[len(screen.lines) // 2]
    assert "━" in middle
    assert "loss 1.500" in middle
    assert ("ETA 30 s" in middle) or ("ETA 29 s" in middle)
    if width >= 60:
        assert "k-NN 50.0 %" in middle
    if width >= 80:
        assert re.search(r"epoch 2/3  12\d/240  loss 1\.500  256 img/s  k-NN 50\.0 %  ETA", middle)
    assert "hello" in screen.lines
    assert 100 < len(screen.lines) < 130, "twice a second, not at every step"
    assert "ETA" not in screen.lines[-1]


def test_the_speed_is_this_sessions_after_a_resume() -> None:
    screen = Screen(terminal=False)
    with make(screen, start=6000) as progress:
        for step in range(6001, 6101):
            screen.now += 2
            progress.update(step, 100)
        assert progress.eta == pytest.approx(1900 * 2)
        assert progress.image_rate.value == pytest.approx(50)


def test_the_start_is_forgotten() -> None:
    screen = Screen(terminal=False)
    with make(screen) as progress:
        screen.now += 500  # the first step compiles
        progress.update(1, 10)
        assert progress.eta is None
        for step in range(2, 30):
            screen.now += 10 if step < 12 else 1  # slow at first
            progress.update(step, 10)
        for step in range(30, 2000):
            screen.now += 1
            progress.update(step, 10)
        assert progress.eta == pytest.approx(8000 - 1999, rel=0.02)
        assert progress.image_rate.value == pytest.approx(10, rel=1e-6)


def test_a_pause_hardly_moves_the_end_of_a_long_run() -> None:
    rate = Rate(memory=30, share=0.25)
    for second in range(3600):
        rate.add(second, 1)
    rate.add(3660, 1)  # a minute's evaluation
    assert rate.value == pytest.approx(1, rel=0.1)


def test_the_loss_is_read_only_when_it_is_shown() -> None:
    reads = 0

    def loss() -> float:
        nonlocal reads
        reads += 1
        return 1.0

    for terminal, expected in ((False, 5), (True, 205)):
        screen, reads = Screen(terminal), 0
        with make(screen) as progress:
            for step in range(1, 1001):
                screen.now += 0.1
                progress.update(step, 1, loss=loss)
        assert 3 <= reads <= expected


def test_only_rank_0_shows_anything() -> None:
    for terminal in (True, False):
        screen = Screen(terminal)
        with make(screen, enabled=False) as progress:
            progress.update(1, 1, loss=lambda: pytest.fail("read the loss"), knn=0.5)
            progress.say("no")
            progress.warn("no")
        assert screen.file.getvalue() == ""


def test_an_error_leaves_the_terminal_in_order() -> None:
    screen = Screen(terminal=True)

    def fail() -> None:
        with make(screen) as progress:
            progress.update(1, 1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert screen.file.getvalue().rstrip().endswith("\x1b[?25h"), "the cursor is back"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "0 s"),
        (-3, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.7, "1 h 00 min"),
        (3720, "1 h 02 min"),
        (86_399, "1 d 00 h"),
        (2 * 86_400 + 3 * 3600, "2 d 03 h"),
        (float("inf"), "forever"),
    ],
)
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_run_of_nothing_raises() -> None:
    with pytest.raises(ValueError, match="at least one step, and one per epoch, got 0 and 80"):
        make(Screen(False), steps=0)
