"""Recognition of a run's folder."""

import json
from pathlib import Path

from mixview.io.atomic import open_regular


def is_run(path: str | Path, *, check_status: bool = False) -> bool:
    """Return True if a folder holds a run, which means that it has a config.yaml.

    Args:
        check_status: also require the status.json of a run, for folders that may have a config.yaml of another program.
    """
    path = Path(path)
    if not check_status:
        return (path / "config.yaml").is_file()
    try:
        if not (path / "config.yaml").is_file():
            return False
        with open_regular(path / "status.json", follow=True) as file:
            status = json.loads(file.read(1 << 20))
        return isinstance(status, dict) and {"state", "step"} <= status.keys()
    except (OSError, ValueError, RecursionError):
        return False
