"""Every reader against files that hypothesis damages or makes up: fifty each, 10,000 in `make test-slow`.

`MIXVIEW_FUZZ` is another number of inputs.
"""

import os

import pytest

from tests.hostile import fuzzing
from tests.hostile.harness import Sandbox

FEW, MANY = 50, 10_000
COUNTS = (
    [int(os.environ["MIXVIEW_FUZZ"])]
    if "MIXVIEW_FUZZ" in os.environ
    else [FEW, pytest.param(MANY, marks=pytest.mark.slow)]
)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("reader", fuzzing.READERS)
def test_files(reader: str, count: int, box: Sandbox) -> None:
    options = {"reader": reader, "count": count}
    box.start({"call": "tests.hostile.fuzzing:fuzz", "options": options}, [reader], seconds=3000).succeeded(
        seconds=3000
    )


@pytest.mark.parametrize("count", COUNTS)
def test_answers_of_servers(count: int, box: Sandbox) -> None:
    outcome = box.start(
        {"call": "tests.hostile.fuzzing:fuzz_http", "options": {"count": count}},
        ["http"],
        servers=[("127.0.0.1", 0)],
        seconds=3000,
    )
    outcome.succeeded(seconds=3000)


def raising(error: str) -> None:
    """Runs in a sandbox: a reader that raises what none may."""
    import builtins
    import time

    def read() -> None:
        if error == "hang":
            time.sleep(20)
        raise getattr(builtins, error)("x")

    fuzzing.SECONDS = 1
    fuzzing.attempt(read)


@pytest.mark.parametrize("error", ["KeyError", "RecursionError", "MemoryError", "AssertionError", "TypeError", "hang"])
def test_the_fuzzer_notices(error: str, box: Sandbox) -> None:
    outcome = box.start({"call": "tests.hostile.test_fuzzing:raising", "options": {"error": error}}, [error])
    with pytest.raises(AssertionError):
        outcome.harmless()
