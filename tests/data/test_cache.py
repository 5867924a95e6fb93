from pathlib import Path

import pytest

from mixview.data.cache import cache_folder


def test_the_environment_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIXVIEW_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder("a") == Path("/home/somebody/.cache/mixview/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/caches")
    assert cache_folder("a") == Path("/var/caches/mixview/a")
    monkeypatch.setenv("MIXVIEW_CACHE", "/big/disk")
    assert cache_folder("a") == Path("/big/disk/a")
