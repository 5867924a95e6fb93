"""A Hugging Face `datasets` folder, as `save_to_disk` writes it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from mixview.data.sources.arrays import number_name
from mixview.data.sources.base import BadImage, Source, SourceError
from mixview.data.sources.files import read_file
from mixview.data.sources.fingerprint import fingerprint
from mixview.data.sources.packed_strings import PackedStrings


@final
class HuggingFace(Source):
    """A folder that `datasets.Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote: Arrow files, mapped.

    Args:
        root: the folder.
        split: split of a DatasetDict; by default train.
        image_column: the column of images; by default the only one.
        label_column: the column of class labels; by default the only one.
    """

    kind = "huggingface"

    def __init__(
        self,
        root: str | Path,
        split: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
    ) -> None:
        try:
            import datasets
        except ImportError as error:
            raise SourceError(
                f'{root} is a folder of Hugging Face datasets, which is not installed: pip install "mixview[sources]"'
            ) from error
        self.root = Path(root)
        self._arguments = (str(root), split, image_column, label_column)
        try:
            content = datasets.load_from_disk(str(root))
        except Exception as error:  # whatever Arrow, json and the library raise
            raise SourceError(f"{root} cannot be opened by datasets ({error}): save it to disk again") from error
        if isinstance(content, datasets.DatasetDict):
            split_name = split or ("train" if "train" in content else next(iter(content)))
            if split_name not in content:
                raise SourceError(f"{root} has no split {split_name!r}: it has {', '.join(content)}")
            table, self.split = content[split_name], split_name
        elif split is not None:
            raise SourceError(f"{root} has no split {split!r}: it has no splits; leave split out")
        else:
            table, self.split = content, ""
        image = pick_column(table.features, image_column, datasets.Image, "image_column", self.root)
        label = pick_column(table.features, label_column, datasets.ClassLabel, "label_column", self.root)
        if image is None:
            raise SourceError(f"{root} has no column of images, only {', '.join(table.features)}: save it with one")
        self._images = table.select_columns([image]).cast_column(image, datasets.Image(decode=False))
        self._column = image
        self._files = tuple(Path(file["filename"]) for file in table.cache_files)
        self._labels: npt.NDArray[np.int64] | None = None
        if label is not None:
            self._labels = np.array(table.select_columns([label]).with_format("numpy")[:][label], dtype=np.int64)
            self.classes = tuple(getattr(table.features[label], "names", None) or ()) or None

    def __reduce__(self) -> tuple[Callable[..., Source], tuple[Any, ...]]:
        return type(self), self._arguments

    def __len__(self) -> int:
        return len(self._images)

    def __repr__(self) -> str:
        return f"HuggingFace({str(self.root)!r}, {len(self)} images)"

    def read(self, index: int) -> bytes:
        name = self.name(index)
        stored = self._images[index][self._column]
        if stored is None or (stored["bytes"] is None and stored["path"] is None):
            raise BadImage(name, "has no image in its row")
        if stored["bytes"] is not None:
            return bytes(stored["bytes"])
        return read_file(Path(stored["path"]), name)

    def name(self, index: int) -> str:
        return number_name(self.split, index, len(self))

    def labels(self) -> npt.NDArray[np.int64] | None:
        return self._labels

    def fingerprint(self) -> str:
        sizes = np.array([path.stat().st_size for path in self._files], dtype=np.int64)
        return fingerprint(PackedStrings(path.name for path in self._files), sizes, self._labels, count=len(self))


def pick_column(features: Any, name: str | None, feature: type, option: str, root: Path) -> str | None:
    """The column of this name, or the only one of this type; None if there is none."""
    if name is not None:
        if name not in features:
            raise SourceError(f"{root} has no column {name!r}: it has {', '.join(features)}")
        return name
    columns = [each for each, type_ in features.items() if isinstance(type_, feature)]
    if len(columns) > 1:
        raise SourceError(f"{root} has the columns {', '.join(columns)}: say which one with {option}")
    return columns[0] if columns else None


def locate(path: Path) -> Path | None:
    """This path, if `save_to_disk` wrote it."""
    saved = (path / "dataset_dict.json").is_file()
    return path if saved or all((path / name).is_file() for name in ("dataset_info.json", "state.json")) else None
