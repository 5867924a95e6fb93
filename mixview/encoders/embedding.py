"""`mixview embed`: the features of any number of images, with their paths, in one file.

    mixview embed runs/first --data photos/ --out features.parquet

A Parquet file has a row per image: `path`, `feature` (D numbers) and, where the images have them, `label` or `labels`.
A .npy file has the features alone, [N, D], and a .csv next to it the rest, in the same order. The features come from
mixview's cache (`mixview.encoders.features`), which is made by several processes and resumed after a kill.

With `--patches` an image has a feature for each patch of a grid: in Parquet `grid` is its height and width and
`feature` the patches row by row, each of D numbers; the .npy file is [N, h, w, D].
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from mixview.data.sources.base import Source
from mixview.data.sources.registry import SourceOptions, open_dataset
from mixview.encoders.features import (
    PATCHES,
    Features,
    PatchStage,
    Stage,
    extract_for,
    measure_patches,
    rank_and_world_size,
)
from mixview.encoders.loading import ComputeConfig, EncoderConfig, LoadedEncoder
from mixview.encoders.optional import import_optional
from mixview.encoders.transforms import CenterCrop, ResizeToSquare, Transform
from mixview.io.atomic import atomic_write
from mixview.io.csv_files import read_rows, write_rows
from mixview.io.terminal import say
from mixview.options import NON_EMPTY
from mixview.runs.progress_bar import bar

ROWS = 8192
"""Images that are written together: a row group of Parquet."""
PATCH_ROWS = 64
"""The same for patches, each image of which has hundreds of features."""


class Embedded(NamedTuple):
    """Images with their features."""

    loaded: LoadedEncoder
    source: Source
    features: Features
    transform: Transform
    stage: Stage | PatchStage
    grid: tuple[int, ...] = ()
    """Height and width of the grid of patches; empty for features of whole images."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[D], or [h, w, D] of patches."""
        return (*self.grid, self.rows().shape[1] // math.prod(self.grid))

    def rows(self) -> npt.NDArray[np.float32]:
        """[N, D] of all images of the source, those that could not be read among them, mapped into memory."""
        rows: npt.NDArray[np.float32] = np.load(self.features.folder / f"{self.stage}.npy", mmap_mode="r")
        return rows


@dataclass(frozen=True, kw_only=True)
class Embedding(ComputeConfig, EncoderConfig):
    """Images, and how they are preprocessed."""

    data: str | None = None
    """The images: a folder, or any other path, address or name (see `mixview data list`)."""
    split: str | None = None
    """Split of the data; by default the one for training, or all where there are no parts."""
    kind: str | None = None
    """Format of the data (see `mixview data list`); by default it is recognized."""
    data_options: SourceOptions | None = None
    """Further options of the source, such as {"count": 2000, "size": 32} for scenes."""
    stage: Stage = "avgpool"
    """Stage that the features come from: avgpool (the output), or stem, res2 … res5 of a ResNet, pooled."""
    resize: Literal["crop", "squash"] = "crop"
    """Crop the center of each image, or squash the whole image into a square."""

    def embed(self, *, patches: bool = False) -> Embedded:
        """Features of all the images, or of their patches, from the cache or made now."""
        if self.data is None:
            raise ValueError("there are no images: pass a folder of them as --data (scenes, to try it out)")
        options: dict[str, Any] = {"kind": self.kind} | (self.data_options or {})
        source = open_dataset(self.data, self.split, **options)
        loaded = self.load_for(source)
        transform = (ResizeToSquare if self.resize == "squash" else CenterCrop)(loaded.size, loaded.normalize)
        stage = cast(PatchStage, self.stage + PATCHES) if patches else self.stage
        features = extract_for(self, loaded, source, transform, stage)
        grid = measure_patches(loaded, self.stage)[:2] if patches else ()
        return Embedded(loaded, source, features, transform, stage, grid)


@dataclass(frozen=True, kw_only=True)
class Embed(Embedding):
    """Write the features of images to a file."""

    out: Annotated[str, NON_EMPTY] = "features.parquet"
    """The file to write: .parquet, or .npy with a .csv of paths next to it."""
    patches: bool = False
    """Write a feature for each patch: a ResNet stage's maps (of avgpool the last ones), or a ViT's patch tokens."""

    def run(self) -> Path:
        """Make the features and write them. Returns the file."""
        out = Path(self.out)
        if out.suffix not in (".parquet", ".npy"):
            raise ValueError(f"features are written as .parquet or .npy, not {out.name!r}: end the name in one of them")
        if out.suffix == ".parquet":
            import_optional("pyarrow", "embed")  # whether it is there is better known before hours of work than after
        out.parent.mkdir(parents=True, exist_ok=True)
        embedded = self.embed(patches=self.patches)
        if rank_and_world_size()[0] > 0:  # one process of many writes
            return out
        metadata = describe(embedded, str(self.data))
        if out.suffix == ".parquet":
            with atomic_write(out) as file:
                write_parquet(file, embedded, metadata)
        else:
            with atomic_write(out.with_suffix(".csv")) as file:
                write_names(file, embedded)
            with atomic_write(out) as file:
                write_npy(file, embedded)
        count, width = len(embedded.features.indices), embedded.shape[-1]
        patches = f"{'×'.join(map(str, embedded.grid))} patches of " if embedded.grid else ""
        say(f"wrote {out}: {count} images of {metadata['encoder']}, {patches}{width} numbers each")
        return out


def embed(encoder: str, **options: Any) -> Path:
    """Write the features of any number of images to a file, with their paths. Resumes where it was stopped.

    Args:
        encoder: a run's folder, a file of weights, a model by name, random, or pixels.
        options: fields of `Embed`.

    Example:
        >>> scenes = {"data": "scenes", "data_options": {"count": 20, "size": 16}}
        >>> path = embed("small", **scenes, size=16, workers=0, out="features.npy")  # or "runs/first", data="photos/"
        wrote features.npy: 20 images of random small, seed 0, 128 numbers each
    """
    return Embed(encoder=encoder, **options).run()


def describe(embedded: Embedded, data: str) -> dict[str, str]:
    """A description of the features, for the file's own header."""
    return {
        "encoder": embedded.loaded.name,
        "weights": embedded.loaded.weights_key(),
        "data": data,
        "fingerprint": embedded.source.fingerprint(),
        "stage": embedded.stage,
        "shown": embedded.transform.description,
    }


def parts(embedded: Embedded) -> Iterator[npt.NDArray[np.int64]]:
    """The images that could be read, `ROWS` or `PATCH_ROWS` at a time."""
    indices, count = embedded.features.indices, PATCH_ROWS if embedded.grid else ROWS
    with bar("writing", len(indices)) as advance:
        for start in range(0, len(indices), count):
            some = indices[start : start + count]
            yield some
            advance(len(some))


def labels_of(source: Source) -> tuple[str, list[Any]] | None:
    """The name of a column of labels, and what every image has in it; None where there are no labels."""
    single, sets = source.labels(), source.label_sets()
    names = source.classes
    if single is not None:
        return "label", [names[number] if names else str(number) for number in single.tolist()]
    if sets is not None and names:
        return "labels", [[names[column] for column in np.flatnonzero(row != 0)] for row in sets]
    return None


def write_parquet(file: BinaryIO, embedded: Embedded, metadata: dict[str, str]) -> None:
    """A row per image; what made the features is in the file's metadata, under `mixview`."""
    pa, pq = import_optional("pyarrow", "embed"), import_optional("pyarrow.parquet", "embed")
    rows, labels = embedded.rows(), labels_of(embedded.source)
    width = embedded.shape[-1]
    columns = [("path", pa.string())]
    if labels is not None:
        columns.append((labels[0], pa.string() if labels[0] == "label" else pa.list_(pa.string())))
    feature = pa.list_(pa.float32(), width)
    if embedded.grid:
        columns.append(("grid", pa.list_(pa.int32(), 2)))
        feature = pa.list_(feature, math.prod(embedded.grid))
    schema = pa.schema([*columns, ("feature", feature)])
    schema = schema.with_metadata({"mixview": json.dumps(metadata, ensure_ascii=False)})
    with pq.ParquetWriter(file, schema) as writer:
        for some in parts(embedded):
            values: list[Any] = [[as_unicode(embedded.source.name(index)) for index in some.tolist()]]
            if labels is not None:
                values.append([labels[1][index] for index in some.tolist()])
            flat = np.ascontiguousarray(rows[some]).reshape(-1)
            features = pa.FixedSizeListArray.from_arrays(pa.array(flat), width)
            if embedded.grid:
                values.append([embedded.grid] * len(some))
                features = pa.FixedSizeListArray.from_arrays(features, math.prod(embedded.grid))
            values.append(features)
            writer.write_table(pa.table(values, schema=schema))


def as_unicode(name: str) -> str:
    """A file name for a format that knows Unicode only: bytes that are none, as \\xff."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def write_npy(file: BinaryIO, embedded: Embedded) -> None:
    """[N, D] of float32, or [N, h, w, D] of patches, without the images that could not be read."""
    rows = embedded.rows()
    shape = (len(embedded.features.indices), *embedded.shape)
    header = {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    for some in parts(embedded):
        file.write(np.ascontiguousarray(rows[some]).tobytes())


def write_names(file: BinaryIO, embedded: Embedded) -> None:
    """The path and, where there is one, the label of each row of the .npy file."""
    labels = labels_of(embedded.source)

    def rows() -> Iterator[list[object]]:
        yield ["path"] if labels is None else ["path", labels[0]]
        for index in embedded.features.indices.tolist():
            label = [] if labels is None else [labels[1][index]]
            joined = ["; ".join(each) if isinstance(each, list) else each for each in label]
            yield [embedded.source.name(index), *joined]

    write_rows(file, rows())


def read_features(path: str | Path) -> tuple[list[str], npt.NDArray[np.float32]]:
    """The paths and the features [N, D] (of patches [N, h, w, D]) of a file that `mixview embed` wrote.

    Example:
        >>> scenes = {"data": "scenes", "data_options": {"count": 8, "size": 16}}
        >>> path = embed("small", **scenes, size=16, workers=0, out="few.npy")
        wrote few.npy: 8 images of random small, seed 0, 128 numbers each
        >>> names, features = read_features(path)
        >>> names[0], features.shape
        ('train-000000', (8, 128))
    """
    path = Path(path)
    if path.suffix == ".npy":
        return [row["path"] for row in read_rows(path.with_suffix(".csv"))], np.load(path)
    table = import_optional("pyarrow.parquet", "embed").read_table(path)
    features = table["feature"].combine_chunks()
    shape: tuple[int, ...] = (features.type.list_size,)
    if "grid" in table.column_names:
        shape = (*table["grid"][0].as_py(), features.type.value_type.list_size)
        features = features.flatten()
    return table["path"].to_pylist(), features.flatten().to_numpy().reshape(-1, *shape)
