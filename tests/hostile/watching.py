"""What a process does to the world outside of its folders, as Python's audit events tell it."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MARKER = "mixview-hostile-marker"
"""In every command and every piece of code that a case plants: whoever runs it leaves a file of this name."""
PLANTED = "mixview_hostile_planted"
"""The module that cases plant: nobody may import it without consent."""

STARTS_A_PROGRAM = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "pty.spawn")
ASKED_BY_LIBRARIES = ("lscpu", "uname", "ldconfig", "/sbin/ldconfig", "gcc", "cc", "clang", "objdump", "file")
"""Programs that libraries ask about the machine; they are not given anything that came from a file."""
RUN_OF_A_STUDY = [sys.executable, "-P", "-m", "mixview.experiments.run"]
"""The beginning of the only command that mixview starts itself, for each run of a study."""
FORBIDDEN_NAMES = ("os", "posix", "nt", "subprocess", "builtins", "shutil", "runpy", "pty", PLANTED)
"""Modules that no pickle of ours names (multiprocessing's and Numba's name other ones)."""
DATA_NAMES = (
    "getattr",
    "set",
    "frozenset",
    "complex",
    "slice",
    "range",
    "bytearray",
    "object",
    "list",
    "dict",
    "tuple",
)
"""Of builtins, what a harmless pickle may name."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DEVICES = ("/dev/null", "/dev/shm", "/dev/tty", "/proc/self", f"/proc/{os.getpid()}")


class Stopped(OSError):
    """What a trespass out of the sandbox, into the network or the machine's own folders, ends in."""


def watch(
    record: Callable[[str], None], allowed: Sequence[Path], sandbox: Path, servers: Sequence[tuple[str, int]]
) -> None:
    """Record what this process must not do, from now until it ends: an audit hook cannot be taken off.

    Args:
        record: is told of each trespass in one line.
        allowed: folders and files that may be written to.
        sandbox: what is outside of it is not only recorded, but kept from being touched.
        servers: host and port that may be connected to.
    """
    roots = [os.path.realpath(path) for path in allowed] + list(DEVICES)
    fence = os.path.realpath(sandbox)
    busy = False

    def touched(event: str, path: Any, follow: bool = False) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        text = os.fsdecode(path)
        folder, name = os.path.split(os.path.abspath(text))  # noqa: PTH100
        real = os.path.realpath(text) if follow else os.path.join(os.path.realpath(folder), name)  # noqa: PTH118
        if any(real == root or real.startswith(f"{root}{os.sep}") for root in roots):
            return
        record(f"{event} outside of the given folders: {text!r}")
        if not real.startswith(f"{fence}{os.sep}"):
            raise Stopped(f"{text} is outside of the sandbox")

    def check_event(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS_A_PROGRAM:
            record(f"{event} ran {arguments[:2]!r:.300}")
        elif event == "subprocess.Popen":
            words = [os.fsdecode(word) for word in arguments[1]] if isinstance(arguments[1], list | tuple) else [""]
            harmless = Path(words[0]).name in ASKED_BY_LIBRARIES or words[:4] == RUN_OF_A_STUDY
            if MARKER in f"{arguments!r}" or not harmless:
                record(f"subprocess.Popen ran {arguments[:2]!r:.300}")
        elif event == "pickle.find_class":
            module, name = arguments[-2:]
            if str(module).partition(".")[0] in FORBIDDEN_NAMES and name not in DATA_NAMES:
                record(f"a pickle named {module}.{name}")
        elif event == "import":
            if PLANTED in str(arguments[0]):
                record(f"imported {arguments[0]}")
        elif event == "compile":
            source = arguments[0]
            text = source.decode("latin1") if isinstance(source, bytes) else source
            if isinstance(text, str) and MARKER in text:
                record(f"compiled planted code: {text[:100]!r}")
        elif event == "exec":
            if PLANTED in str(getattr(arguments[0], "co_filename", "")):
                record(f"ran code of {arguments[0].co_filename}")
        elif event == "socket.connect":
            address = arguments[1]
            if isinstance(address, tuple) and not {(address[0], address[1]), (address[0], 0)} & set(
                servers
            ):  # 0 is any port
                record(f"connected to {address!r}")
                raise Stopped("no network")
        elif event == "socket.getaddrinfo":
            if arguments[0] not in (None, "localhost", "127.0.0.1", "::1", *(host for host, _ in servers)):
                record(f"asked for the address of {arguments[0]!r}")
                raise Stopped("no network")
        elif event == "open":
            path, mode, flags = arguments
            writes = bool(set(mode) & set("wax+")) if isinstance(mode, str) else bool(flags & WRITING)
            no_follow = bool(flags & getattr(os, "O_NOFOLLOW", 0))
            # Relative to a folder's descriptor, which the event does not tell: only such opens do not follow links.
            if writes and not (no_follow and isinstance(path, str) and not os.path.isabs(path)):  # noqa: PTH117
                touched("open for writing", path, follow=not no_follow)
        elif event in ("os.mkdir", "os.rmdir", "os.remove", "os.mkfifo", "os.mknod", "shutil.rmtree"):
            relative = len(arguments) > 1 and arguments[-1] not in (-1, None)  # to a folder's descriptor
            if not relative and not (event == "os.mkdir" and os.path.isdir(arguments[0])):  # noqa: PTH112
                touched(event, arguments[0])
        elif event in ("os.truncate", "os.chmod", "os.chown", "os.utime"):
            touched(event, arguments[0], follow=True)
        elif event in ("os.rename", "os.link"):
            if arguments[2:] in ((-1, -1), ()):
                touched(event, arguments[0])
                touched(event, arguments[1])
        elif event == "os.symlink" and arguments[-1] == -1:
            touched(event, arguments[1])

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal busy
        if busy:
            return
        busy = True
        try:
            check_event(event, arguments)
        except Stopped:
            raise
        except Exception as error:  # never in the way of what is watched
            record(f"the hook failed at {event}: {type(error).__name__}: {error}")
        finally:
            busy = False

    sys.addaudithook(hook)
