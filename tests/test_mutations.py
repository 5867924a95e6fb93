"""The list of mutations fits the code: what `make mutate` would find out only after minutes."""

from pathlib import Path

import pytest
import yaml

from tests.mutate import Sandbox, check_unmutated, judge_all
from tests.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parent.parent


def test_every_mutation_changes_one_place_of_the_code_and_leaves_it_readable() -> None:
    for mutation in MUTATIONS:
        content = (ROOT / mutation.file).read_text(encoding="utf-8")
        mutated = mutation.apply(content)
        assert mutated != content, mutation.title
        if mutation.file.endswith(".py"):
            compile(mutated, mutation.file, "exec")
        else:
            assert yaml.safe_load(mutated) != yaml.safe_load(content), mutation.title
    assert len(set(MUTATIONS)) == len(MUTATIONS) >= 80


def test_the_tests_that_should_notice_exist() -> None:
    for test in {test for mutation in MUTATIONS for test in mutation.tests}:
        file, _, name = test.partition("::")
        content = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"def {name.partition('[')[0]}(" in content, test


def test_text_that_does_not_occur_once_is_refused() -> None:
    mutation = Mutation("some.py", "a", "b", ())
    assert mutation.apply("-a-") == "-b-"
    for content in ("", "a a"):
        with pytest.raises(ValueError, match="bring tests/mutations"):
            mutation.apply(content)


def test_killed_and_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a tree of its own that holds a program of one line and its test."""
    from tests import mutate

    def copy_nothing(source: Path, target: Path) -> None:
        target.mkdir()
        (target / "program.py").write_text("def double(x):\n    return 2 * x  # twice\n")
        (target / "test_program.py").write_text(
            "from program import double\n\n\ndef test_double():\n    assert double(3) == 6\n"
        )

    monkeypatch.setattr(mutate, "copy_tree", copy_nothing)
    sandbox = Sandbox(tmp_path / "tree")
    wrong = Mutation("program.py", "2 * x", "3 * x", ("test_program.py",))
    comment = Mutation("program.py", "# twice", "# doubled", ("test_program.py",))
    endless = Mutation("program.py", "return 2 * x", "while x: pass", ("test_program.py",))
    check_unmutated([sandbox], [wrong, comment])
    outcomes = list(judge_all([sandbox], [wrong, comment, wrong]))
    assert [each.killed for each in outcomes] == [True, False, True]
    monkeypatch.setattr(mutate, "TIME_LIMIT", 0.1)
    assert [each.note for each in judge_all([sandbox], [endless])] == ["took more than 0.1 s"]
    monkeypatch.undo()
    assert outcomes[0].note == "FAILED test_program.py::test_double"
    assert (sandbox.root / "program.py").read_text() == "def double(x):\n    return 2 * x  # twice\n"
    with pytest.raises(SystemExit, match="pytest ended with code 4"):
        list(judge_all([sandbox], [wrong._replace(tests=("test_program.py::test_absent",))]))
    with pytest.raises(SystemExit, match=r"fewer than 95%"):
        mutate.report(outcomes)
    mutate.report([outcomes[0]])
