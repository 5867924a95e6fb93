"""The files that mixview writes and reads back: one schema each, and one way to read them.

    status = read_dict(run / "status.json", Status)

A run's folder may be damaged, or somebody else's. What is read here is a plain file of bounded size, depth and numbers
that fits its schema, or a RecordError says why not. The schemas of results are the dataclasses themselves:
`mixview.evaluate.results.Result` and `mixview.experiments.results.RunResult`.
"""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from mixview.io.atomic import read_regular
from mixview.io.yaml_files import parse_yaml

MAX_BYTES = 1 << 25
MAX_METRICS = 1 << 26
MAX_VALUES = 1_000_000
MAX_DEPTH = 32
LARGEST_WHOLE = 1 << 64
LARGEST = 1e100
"""No sum or square of numbers up to this overflows."""

NonNegativeInt = Annotated[int, Meta(ge=0, le=1 << 53)]
Whole = Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]
Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Amount = Annotated[float, Meta(ge=0, le=LARGEST)]
Fraction = Annotated[float, Meta(ge=0, le=1)]

T = TypeVar("T")


class Status(TypedDict):
    """status.json"""

    state: Literal["running", "finished", "interrupted", "failed"]
    step: NonNegativeInt
    epoch: NotRequired[Amount]
    message: NotRequired[str | None]
    cpu_seconds: NotRequired[Amount]
    updated: NotRequired[str]


class Data(TypedDict, total=False):
    """data.json"""

    fingerprint: str
    count: NonNegativeInt
    kind: str


class Processor(TypedDict, total=False):
    """The processor in environment.json"""

    name: str | None
    cores: NonNegativeInt | None


class Environment(TypedDict, total=False):
    """environment.json, and each resume in it"""

    versions: dict[str, str | None]
    platform: str
    host: str
    cpu: Processor
    devices: list[str]
    command: str
    seed: int | None
    started: str
    resumed: list["Environment"]
    extended_from: Amount | None


class MethodGroup(TypedDict, total=False):
    """`method` in config.yaml; the other fields are the method's own"""

    name: str


class MixingConfig(TypedDict, total=False):
    """`mixing` in config.yaml"""

    mixer: str
    alpha: Annotated[float, Meta(gt=0, le=1e6)]


class MonitorConfig(TypedDict, total=False):
    """`monitor` in config.yaml"""

    hold_out: Fraction | None


class Config(TypedDict, total=False):
    """config.yaml of a pretraining, as far as others than the pretraining look at it"""

    data: str | None
    data_options: dict[str, Any] | None
    split: str | None
    validation: str | None
    validation_split: str | None
    method: MethodGroup
    objective: str
    backbone: str
    augment: str | None
    min_crop_scale: Fraction | None
    size: Annotated[int, Meta(ge=1, le=1 << 16)] | None
    channels: Annotated[int, Meta(ge=1, le=4096)] | None
    batch_size: NonNegativeInt | str
    accumulate_grad_batches: NonNegativeInt | None
    epochs: Amount
    seed: int | None
    mixing: MixingConfig | None
    monitor: MonitorConfig | None


class Logged(TypedDict):
    """A line of metrics.jsonl, as it is kept when a run is resumed: whatever the run logged"""

    step: int


class Record(TypedDict):
    """A line of metrics.jsonl, as it is shown; what else a run logs is anything"""

    step: Whole
    epoch: NotRequired[Number | None]
    loss: NotRequired[Number | None]
    knn: NotRequired[Number | None]
    std: NotRequired[Number | None]
    effective_rank: NotRequired[Number | None]
    alignment: NotRequired[Number | None]
    uniformity: NotRequired[Number | None]
    mixture_larger: NotRequired[Number | None]
    mixture_smaller: NotRequired[Number | None]
    mixture_follows_lam: NotRequired[Number | None]


Accuracies = dict[str, dict[str, Fraction]]
"""accuracy.json: by stage and metric."""


class RecordError(ValueError):
    """A file that is not what mixview writes: which, and why.

    Args:
        path: path of the file.
        reason: a clause, for those who name the file in their own words.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be read: {reason}; restore it, or remove it")
        self.path = path
        self.reason = reason


def read_dict(path: Path, kind: Any) -> dict[str, Any]:
    """The content of a JSON or YAML file that fits the TypedDict `kind`; what the schema does not know stays in it."""
    value = parse(path, read_text(path))
    if not isinstance(value, dict):
        raise RecordError(path, "it was not written by mixview, for it holds no settings")
    fit(path, value, kind)
    return value


def read_json(path: Path, kind: type[T]) -> T:
    """The content of a JSON file as a `kind`: a dataclass, or a type such as dict[str, float]."""
    return fit(path, parse(path, read_text(path)), kind)


def read_versioned(path: Path, kind: type[T], version: int) -> T:
    """The content of a JSON file that says the version of its format, which must not be a later one."""
    content = parse(path, read_text(path))
    format_version(path, content, version)
    return fit(path, content, kind)


def format_version(path: Path, content: Any, newest: int) -> int:
    """The version that a record says its format has, from 1 to the newest."""
    version = content.get("version") if isinstance(content, dict) else None
    if type(version) is not int or version < 1:
        raise RecordError(path, "it does not say the version of its format")
    if version > newest:
        raise RecordError(path, "it was written by a later mixview")
    return version


def read_text(path: Path) -> str:
    """The content of a text file."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecordError(path, f"it is not text, byte {error.start} is not UTF-8") from None


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The content of a plain file: not of a link, a folder or a device, and not more than `limit` bytes."""
    try:
        return read_regular(path, limit)
    except FileNotFoundError:
        raise RecordError(path, "it is missing") from None
    except (OSError, ValueError) as error:  # a name can hold what no path has
        raise RecordError(path, getattr(error, "strerror", None) or str(error)) from None


def parse(path: Path, text: str) -> Any:
    """JSON, or YAML by the name of the file, within bounds."""
    try:
        value = parse_yaml(text, path.name) if path.suffix in (".yaml", ".yml") else json.loads(text)
    except RecursionError:
        raise RecordError(path, "it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise RecordError(path, "it is empty" if not text.strip() else f"it is not JSON ({error})") from None
    except ValueError as error:
        raise RecordError(path, " ".join(str(error).split())) from None
    if (fault := fault_of(value)) is not None:
        raise RecordError(path, fault)
    return value


def fit(path: Path, value: Any, kind: type[T]) -> T:
    """The value as a `kind`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise RecordError(path, reason_of(error)) from None


def reason_of(error: msgspec.ValidationError) -> str:
    """The place and reason of a mismatch: `count: expected int, got str`."""
    what, _, where = str(error).replace("`", "").partition(" - at ")
    place = where.removeprefix("$").removeprefix(".")
    return f"{place}: {what[0].lower()}{what[1:]}" if place else f"{what[0].lower()}{what[1:]}"


def parse_metrics(content: bytes, kind: Any = Logged) -> tuple[list[tuple[bytes, dict[str, Any]]], list[int]]:
    """The good lines of a metrics.jsonl, as bytes and as a record, and the numbers of the damaged ones.

    A last line without its end is being written, or torn, and neither.

    Args:
        content: content of the file.
        kind: Logged, or Record, whose values are within bounds.
    """
    good, damaged = [], []
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            continue
        try:
            record = json.loads(line)
            msgspec.convert(record, kind)
        except (ValueError, RecursionError):  # of JSON, of Unicode, and msgspec's
            record = None
        if record is None or (kind is not Logged and fault_of(record) is not None):
            damaged.append(number)
        else:
            good.append((line, record))
    return good, damaged


def fault_of(value: Any) -> str | None:
    """The reason why values are too large or too odd to be shown and compared, or None."""
    waiting: list[tuple[Any, int]] = [(value, 0)]
    visited = 0
    while waiting:
        each, depth = waiting.pop()
        visited += 1
        if visited > MAX_VALUES:
            return f"it has more than {MAX_VALUES:,} values"
        if depth > MAX_DEPTH:
            return "it is nested too deeply"
        if isinstance(each, dict):
            waiting.extend((item, depth + 1) for pair in each.items() for item in pair)
            if not all(isinstance(key, str) for key in each):
                return "a name in it is not text"
        elif isinstance(each, list):
            waiting.extend((item, depth + 1) for item in each)
        elif isinstance(each, str):
            if not is_unicode(each):
                return "a text in it is not Unicode"
        elif isinstance(each, float):
            if math.isfinite(each) and abs(each) > LARGEST:
                return f"a number in it is too large ({each:g})"
        elif isinstance(each, int):
            if abs(each) > LARGEST_WHOLE:
                return "a number in it is too large"
        elif each is not None:
            return f"a value in it is a {type(each).__name__}"
    return None


def is_unicode(text: str) -> bool:
    """Return True if a text can be written as UTF-8: JSON can spell half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def flatten(settings: dict[str, Any], prefix: str = "", *, empty: bool = False) -> dict[str, Any]:
    """Nested settings under dotted names. Unless `empty`, one that is None is left out: it is as good as not there."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.", empty=empty)
        elif empty or value is not None:
            flat[f"{prefix}{name}"] = value
    return flat
