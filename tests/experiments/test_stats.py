import numpy as np
import pytest
from scipy import stats

from mixview.experiments.stats import Difference, compare, summarize


def test_a_mean_over_seeds() -> None:
    assert str(summarize([50.0, 52.0, 54.0])) == "52.0 ± 2.0"
    assert str(summarize([50.0])) == "50.0"


def test_a_paired_difference_is_students() -> None:
    generator = np.random.default_rng(0)
    theirs = generator.normal(50, 3, 6)
    ours = theirs + generator.normal(1, 0.5, 6)
    found = compare(dict(enumerate(ours)), dict(enumerate(theirs)))
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx((ours - theirs).mean())
    assert found.significant


def test_only_seeds_that_both_have_are_compared() -> None:
    assert compare({0: 1.0, 1: 2.0}, {1: 1.5, 2: 9.0}) == Difference(0.5, None, None, 1)
    assert compare({0: 1.0}, {1: 1.0}) is None
    assert str(compare({0: 1.0}, {0: 2.0})) == "-1.0"


def test_what_is_sure_is_bold() -> None:
    assert str(compare({0: 2.0, 1: 2.1, 2: 1.9}, {0: 1.0, 1: 1.0, 2: 1.0})) == "**+1.0 [+0.8, +1.2]**"
    unsure = compare({0: 2.0, 1: 0.1}, {0: 1.0, 1: 1.0})
    assert unsure is not None
    assert not unsure.significant
    assert "**" not in str(unsure)
