import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixview.data.sources.packed_strings import PackedStrings


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_gives_back_what_was_packed(strings: list[str]) -> None:
    packed = PackedStrings(strings)
    assert len(packed) == len(strings)
    assert [packed[index] for index in range(len(packed))] == strings
    twice = PackedStrings.joined([packed, packed, PackedStrings(())])
    assert [twice[index] for index in range(len(twice))] == strings * 2


def test_names_that_are_not_utf8_survive() -> None:
    packed = PackedStrings([b"caf\xe9.jpg"])
    assert packed.encoded(0) == b"caf\xe9.jpg"
    assert PackedStrings([packed[0]]).encoded(0) == b"caf\xe9.jpg"


def test_a_pickle_is_no_larger_than_the_text() -> None:
    names = [f"folder/image_{number:06d}.jpg" for number in range(10_000)]
    size = sum(map(len, names))
    assert len(pickle.dumps(PackedStrings(names))) < size + 8 * len(names) + 1000


@pytest.mark.parametrize("index", [-1, 2])
def test_out_of_range(index: int) -> None:
    with pytest.raises(IndexError):
        PackedStrings(["a", "b"])[index]
