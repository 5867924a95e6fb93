"""Leases on the runs of a study that several machines share: files in a common folder, one per encoder.

A lease is a file that only one process can create (O_EXCL). Its owner touches it while it works, and removes it at the
end. A lease that was not touched for `EXPIRY` seconds belongs to a dead process. It can be taken over by creating the
next file (KEY.1 after KEY.0, and so on), which again only one process can do. The newest file is the lease. Times are
those of the shared file system, so the clocks of the machines do not matter.
"""

import contextlib
import json
import os
import threading
from pathlib import Path

from mixview.io.atomic import open_regular

EXPIRY = 600.0
"""Seconds without a sign of life after which a lease counts as that of a dead process."""
HEARTBEAT = 30.0
"""Seconds between two signs of life."""


class Leases:
    """The leases of one process on the runs of a study. Use it as a context manager, which keeps them alive.

    Args:
        folder: the folder that the machines share.
        owner: the name of the process, the same after a restart: earlier leases under this name are its own.
        expiry: seconds without a sign of life after which a lease can be taken over.
        heartbeat: seconds between two signs of life.
    """

    def __init__(self, folder: Path, owner: str, expiry: float = EXPIRY, heartbeat: float = HEARTBEAT) -> None:
        self.folder, self.owner, self.expiry, self.heartbeat = folder, owner, expiry, heartbeat
        self.held: dict[str, Path] = {}
        self.lock = threading.Lock()
        self.done = threading.Event()

    def __enter__(self) -> "Leases":
        self.folder.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self.keep_alive, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        for key in list(self.held):
            self.release(key)

    def take(self, key: str) -> bool:
        """Take the lease on a run; False if another process has it."""
        newest = self.newest(key)
        number = -1 if newest is None else int(newest.suffix[1:])
        if newest is not None and not self.is_free(newest):
            return False
        path = self.folder / f"{key}.{number + 1}"
        try:
            with path.open("x", encoding="utf-8") as file:
                json.dump({"owner": self.owner, "process": os.getpid()}, file)
        except FileExistsError:  # another was faster
            return False
        with self.lock:
            self.held[key] = path
        return True

    def release(self, key: str) -> None:
        """Release a lease and the expired ones before it, the oldest first: the newest protects until the end."""
        with self.lock:
            mine = self.held.pop(key)
        for path in self.files(key):
            if path == mine or int(path.suffix[1:]) < int(mine.suffix[1:]):
                path.unlink(missing_ok=True)

    def is_lost(self, key: str) -> bool:
        """Return True if another process took over the lease because it took this one for dead."""
        return self.newest(key) != self.held.get(key)

    def files(self, key: str) -> list[Path]:
        """The files of a lease, oldest first."""
        own = [path for path in self.folder.glob(f"{key}.*") if path.suffix[1:].isdecimal()]
        return sorted(own, key=lambda path: int(path.suffix[1:]))

    def newest(self, key: str) -> Path | None:
        """The file that is the lease."""
        return next(reversed(self.files(key)), None)

    def is_free(self, path: Path) -> bool:
        """Return True if a lease belongs to a dead process, or to an earlier one of the same name."""
        try:
            age = self.now() - path.stat().st_mtime
            with open_regular(path) as file:
                content = json.loads(file.read(1 << 12) or b"{}")
        except FileNotFoundError:  # given back in the meantime: the next attempt finds it free
            return False
        except (OSError, ValueError):  # half written by one that was killed, or not by us
            return age > self.expiry
        mine = isinstance(content, dict) and content.get("owner") == self.owner
        return (mine and path not in self.held.values()) or age > self.expiry

    def now(self) -> float:
        """The time by the clock of the shared file system."""
        clock = self.folder / f".clock-{os.getpid()}-{threading.get_ident()}"
        try:
            clock.write_bytes(b"")
            return clock.stat().st_mtime
        finally:
            clock.unlink(missing_ok=True)

    def keep_alive(self) -> None:
        """Touch all leases that are held, until the end."""
        while not self.done.wait(self.heartbeat):
            with self.lock:
                held = list(self.held.values())
            for path in held:
                with contextlib.suppress(OSError):  # taken over and removed: `is_lost` says so
                    os.utime(path)
