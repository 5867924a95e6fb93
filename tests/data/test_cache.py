import errno
import os
from pathlib import Path

import pytest

from mixview.data.cache import cache_folder, reserve
from tests.data.writing import write


def test_the_environment_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIXVIEW_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder("a") == Path("/home/somebody/.cache/mixview/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/caches")
    assert cache_folder("a") == Path("/var/caches/mixview/a")
    monkeypatch.setenv("MIXVIEW_CACHE", "/big/disk")
    assert cache_folder("a") == Path("/big/disk/a")


def test_a_full_disk_is_an_error_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = write(tmp_path / "folder" / "features.npy", b"1234")
    reserve(path)
    assert path.read_bytes() == b"1234"
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"no room for features\.npy.*No space left.*MIXVIEW_CACHE"):
        reserve(path)
    monkeypatch.delattr(os, "posix_fallocate")
    reserve(path)
    assert path.read_bytes() == b"1234"
