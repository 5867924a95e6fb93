"""`mixview neighbors`: images similar to a query, near-duplicates and outliers of a folder, as a picture and a list.

    mixview neighbors runs/first --data photos/ --query cat.jpg       # images similar to this one
    mixview neighbors runs/first --data photos/                       # near-duplicates and outliers
    mixview neighbors runs/first --data photos/ --write_list clean.txt --drop duplicates,outliers
    mixview neighbors runs/first --data photos/ --write_list some.txt --diverse 1000

Writes a contact sheet, and a .csv of the same name next to it. Features are compared by cosine after the mean of the
images was taken off, since what all images share says nothing of any. A list is one that `--data` takes: a line for
each image that is kept, its path and, where there is one, its label.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mixview.data.contact_sheet import Row, contact_sheet, picture_format, to_rgb
from mixview.data.dataset import ImageDataset
from mixview.data.loader import to_tensor
from mixview.data.sources.base import Pixels, Source, SourceError
from mixview.data.sources.files import file_path, is_image_name, read_file
from mixview.data.sources.registry import open_dataset
from mixview.encoders.embedding import Embedded, Embedding, labels_of
from mixview.encoders.features import StageFeatures, extract_for, pick_device, rank_and_world_size
from mixview.encoders.search import Neighbors, SearchMethod, find_nearest
from mixview.io.atomic import atomic_write
from mixview.io.csv_files import write_rows
from mixview.io.terminal import escape_control_chars, say
from mixview.losses import l2_normalize
from mixview.options import NON_EMPTY, Count, split_names
from mixview.runs.progress_bar import bar

Find = Literal["alike", "duplicates", "outliers"]
DROPPED = ("duplicates", "outliers")
"""The images that can be left out of a list."""

DUPLICATE_COSINE = 0.95
"""Minimum cosine of near-duplicates, by default."""
OUTLIER_NEIGHBORS = 10
"""Nearest neighbors whose mean cosine says how lonely an image is, by default."""

COLUMNS = 8
"""Pictures in a row of the sheet."""
ROWS = 24
"""Rows of the sheet; the list has everything."""


class Finding(NamedTuple):
    """Images that belong together: a query and images similar to it, a group of duplicates, or a row of outliers."""

    what: Find
    title: str
    images: list[int]
    """Indices in the source."""
    scores: list[float]
    """Cosines: with the query, with the first of the group, or the mean one with an outlier's own neighbors."""


@dataclass(frozen=True, kw_only=True)
class FindNeighbors(Embedding):
    """Find similar images, near-duplicates and outliers."""

    query: str | None = None
    """An image, or a folder of them, to find similar images of in the data."""
    find: Find | None = None
    """alike (images similar to the query), duplicates or outliers; by default alike with a query, else the others."""
    count: Count = 16
    """Number of similar images per query, or of outliers."""
    threshold: float = DUPLICATE_COSINE
    """Minimum cosine of near-duplicates: 1 is the same picture. The right value depends on the encoder."""
    neighbors: Count = OUTLIER_NEIGHBORS
    """Nearest neighbors per image: candidates for duplicates; their mean cosine is the score of an outlier."""
    search: SearchMethod = "auto"
    """Search: exact compares every pair; graph (usearch) is for very many images and may miss a few; auto decides."""
    out: Annotated[str, NON_EMPTY] = "neighbors.png"
    """Contact sheet to write, with the list next to it as .csv."""
    write_list: Annotated[str, NON_EMPTY] | None = None
    """List of the images to keep, a .txt file that --data accepts. It needs --drop, --diverse or both."""
    drop: str | None = None
    """Images to leave out of the list: duplicates (all but the first of each group), outliers (as many as --count), or
    both, as duplicates,outliers."""
    diverse: Count | None = None
    """Number of images to keep in the list: each next one is the farthest from those already chosen."""

    def run(self) -> list[Finding]:
        """Search, write the sheet and the list, and print the findings."""
        self.check()
        embedded = self.embed()
        if rank_and_world_size()[0] > 0:  # one process of many searches
            return []
        features = embedded.features[self.stage]
        mean = features.mean(0)
        bank = features - mean
        pictures: dict[int, Pixels] = {}
        if self.what == ("alike",):
            findings, description, pictures = self.find_similar(embedded, bank, mean)
        else:
            near, description = find_nearest(bank, bank, self.neighbors + 1, self.search)
            near = without_self(near)
            findings = []
            if "duplicates" in (*self.what, *self.dropped):
                findings += group_duplicates(near, bank, self.threshold)
            if "outliers" in (*self.what, *self.dropped):
                findings.append(rank_outliers(near, self.count))
            if self.write_list is not None:
                self.write_kept(self.write_list, findings, embedded, bank)
            findings = [renumbered(each, embedded) for each in findings if each.what in self.what]
        self.report(findings, embedded, description, pictures)
        return findings

    def write_kept(self, path: str, findings: Sequence[Finding], embedded: Embedded, bank: Tensor) -> None:
        """Write the list of the images that are kept, and say how many were left out and why."""
        kept = torch.ones(len(bank), dtype=torch.bool)
        unread = len(embedded.source) - len(bank)
        reasons = [f"{unread} that cannot be read"] if unread else []
        names = {"duplicates": f"near-duplicate{{}} (cosine {self.threshold:g} or more)", "outliers": "outlier{}"}
        for what in self.dropped:
            # Of each group of duplicates the first is kept.
            images = [
                each.images[1:] if what == "duplicates" else each.images for each in findings if each.what == what
            ]
            dropped = [image for group in images for image in group if kept[image]]
            kept[dropped] = False
            reasons.append(f"{len(dropped)} {names[what].format('' if len(dropped) == 1 else 's')}")
        if not kept.any():
            raise ValueError(
                f"of the {len(embedded.source)} images none is left for {path} (left out {' and '.join(reasons)}): use "
                "a higher --threshold, or a smaller --count of outliers"
            )
        rest = kept.nonzero().squeeze(1)
        if self.diverse is not None and self.diverse < len(rest):
            reasons.append(f"{len(rest) - self.diverse} that are less diverse")
            rest = rest[most_diverse(bank[rest], self.diverse)].sort().values
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(Path(path)) as file:
            for line in list_lines(embedded, rest.tolist()):
                file.write(os.fsencode(line))
        say(f"wrote {path}: {len(rest)} of {len(embedded.source)} images; left out {', '.join(reasons) or 'none'}")

    @property
    def dropped(self) -> tuple[str, ...]:
        """The kinds of images that the list leaves out."""
        return split_names(self.drop, DROPPED, "--drop")

    @property
    def what(self) -> tuple[Find, ...]:
        """The kind of search."""
        if self.find is not None:
            return (self.find,)
        return ("alike",) if self.query is not None else ("duplicates", "outliers")

    def check(self) -> None:
        """Raise if the options contradict each other."""
        if self.what == ("alike",) and self.query is None:
            raise ValueError("there is no query to compare with: pass an image or a folder of them as --query")
        if self.what != ("alike",) and self.query is not None:
            raise ValueError(f"--find {self.find} takes no query: leave --query {self.query} out")
        if Path(self.out).suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
            raise ValueError(f"the contact sheet is a picture, not {self.out!r}: end its name in .png")
        if not -1 <= self.threshold <= 1:
            raise ValueError(f"the threshold is a cosine, -1 to 1, got {self.threshold}: 0.95 is usual")
        self.check_list()

    def check_list(self) -> None:
        """Raise if the options of the list contradict each other, or those of the search."""
        if self.write_list is None:
            if self.dropped or self.diverse is not None:
                raise ValueError("--drop and --diverse choose the images of a list: pass its file as --write_list")
            return
        if not self.dropped and self.diverse is None:
            raise ValueError("the list would have all images: pass --drop duplicates,outliers or --diverse COUNT")
        if self.query is not None:
            raise ValueError(f"--write_list chooses among the data, without a query: leave --query {self.query} out")
        if Path(self.write_list).suffix.lower() not in (".txt", ".lst"):
            raise ValueError(f"a list of images is a text file, not {self.write_list!r}: end its name in .txt")

    def find_similar(
        self, embedded: Embedded, bank: Tensor, mean: Tensor
    ) -> tuple[list[Finding], str, dict[int, Pixels]]:
        """The images similar to each query. Queries are numbered -1, -2 …; their pictures come along."""
        assert self.query is not None
        names, pixels, queries = self.read_queries(self.query, embedded)
        near, description = find_nearest(bank, queries - mean, self.count, self.search)
        findings = []
        for number, name in enumerate(names):
            finding = Finding("alike", f"like {name}", near.position[number].tolist(), near.cosine[number].tolist())
            finding = renumbered(finding, embedded)
            findings.append(finding._replace(images=[-1 - number, *finding.images], scores=[1.0, *finding.scores]))
        return findings, description, {-1 - number: picture for number, picture in enumerate(pixels)}

    def read_queries(self, query: str, embedded: Embedded) -> tuple[list[str], list[Pixels], Tensor]:
        """Names, pictures and features of the queries."""
        path = Path(query).expanduser()
        if is_image_name(path.name) and not path.is_dir():
            decoder = embedded.loaded.decoder(embedded.source)
            pixels = decoder(read_file(path, query), query, embedded.transform.decode_factor)
            device = pick_device(self.device)
            module = StageFeatures(embedded.loaded.encoder, (self.stage,)).to(device).eval()
            with torch.inference_mode():
                features = module(embedded.transform(to_tensor(pixels)).unsqueeze(0).to(device))[self.stage].cpu()
            return [path.name], [pixels], features
        source = open_dataset(query)
        extracted = extract_for(self, embedded.loaded, source, embedded.transform, self.stage)
        images = ImageDataset(source, embedded.loaded.decoder(source))
        indices = extracted.indices.tolist()
        pictures = [images.decode(index) for index in indices[:ROWS]]
        return [source.name(index) for index in indices], pictures, extracted[self.stage]

    def report(
        self, findings: list[Finding], embedded: Embedded, description: str, pictures: dict[int, Pixels]
    ) -> None:
        """Draw the sheet, write the list, print the findings."""
        out = Path(self.out)
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(out.with_suffix(".csv")) as file:
            write_rows(file, as_list(findings, embedded.source))
        rows = draw_rows(findings, embedded, pictures)
        if rows:
            with atomic_write(out) as file:
                contact_sheet(rows).save(file, format=picture_format(out))
        say(f"{len(embedded.features.indices)} images of {embedded.loaded.name}; {description}")
        print_findings(findings, embedded.source)
        if "duplicates" in self.what and not any(each.what == "duplicates" for each in findings):
            say(f"no two images have a cosine of {self.threshold:g} or more: a lower --threshold finds looser pairs")
        files = f"{out} and {out.with_suffix('.csv')}" if rows else f"{out.with_suffix('.csv')}"
        say(f"wrote {files}")


def neighbors(encoder: str, **options: Any) -> list[Finding]:
    """Find the images similar to a query, or the near-duplicates and outliers of a folder; draw and list them.

    Args:
        encoder: a run's folder, a file of weights, a model by name, random, or pixels.
        options: fields of `FindNeighbors`.
    """
    return FindNeighbors(encoder=encoder, **options).run()


def without_self(near: Neighbors) -> Neighbors:
    """Neighbors [M, k + 1] of each image of a bank in the same bank, without the image itself: [M, k]."""
    itself = near.position == torch.arange(len(near.position)).unsqueeze(1)
    # One of several equal images may not be among its own neighbors: then the farthest goes.
    itself[~itself.any(1), -1] = True
    shape = (len(near.position), near.position.shape[1] - 1)
    return Neighbors(near.cosine[~itself].view(shape), near.position[~itself].view(shape))


def group_duplicates(near: Neighbors, bank: Tensor, threshold: float) -> list[Finding]:
    """Groups of images that are linked by cosines of at least `threshold`, the closest first."""
    parent = list(range(len(near.position)))

    def root(image: int) -> int:
        while parent[image] != image:
            parent[image] = parent[parent[image]]
            image = parent[image]
        return image

    close = (near.cosine >= threshold).nonzero()
    for image, place in close.tolist():
        one, other = root(image), root(int(near.position[image, place]))
        parent[max(one, other)] = min(one, other)
    groups: dict[int, list[int]] = {}
    for image in sorted(set(close[:, 0].tolist()) | {int(near.position[i, p]) for i, p in close.tolist()}):
        groups.setdefault(root(image), []).append(image)
    findings = []
    for images in groups.values():
        scores = torch.nn.functional.cosine_similarity(bank[images], bank[images[:1]]).tolist()
        findings.append(Finding("duplicates", f"{len(images)} that are nearly the same", images, [1.0, *scores[1:]]))
    return sorted(findings, key=lambda each: -max(each.scores[1:]))


def rank_outliers(near: Neighbors, count: int) -> Finding:
    """The images whose neighbors are farthest, the loneliest first."""
    if near.cosine.shape[1] == 0:
        raise ValueError("a single image has no neighbors: pass more of them as --data")
    closeness = near.cosine.mean(1)
    order = closeness.argsort(stable=True)[:count]
    return Finding("outliers", "like no other", order.tolist(), closeness[order].tolist())


def most_diverse(features: Tensor, count: int) -> Tensor:
    """`count` of features [M, D], each the farthest by cosine from those before it; the most typical one is the first.

    This is the greedy k-center algorithm (Gonzalez, 1985): no choice covers all of them with circles of half its
    radius.

    Example:
        >>> most_diverse(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.9, 0.1], [0.0, 1.0], [-1.0, 0.0]]), 3).tolist()
        [2, 4, 3]
    """
    normalized = l2_normalize(features)
    chosen = torch.empty(count, dtype=torch.long)
    chosen[0] = (normalized @ normalized.mean(0)).argmax()
    closest = normalized @ normalized[chosen[0]]
    with bar("choosing", count) as advance:
        for number in range(1, count):
            closest[chosen[number - 1]] = torch.inf  # is chosen, and its copies are not
            chosen[number] = closest.argmin()
            torch.maximum(closest, normalized @ normalized[chosen[number]], out=closest)
            advance(1)
    return chosen


def list_lines(embedded: Embedded, places: Sequence[int]) -> Iterator[str]:
    """The lines of a list of these images: the absolute path, and the label where there is one."""
    source = embedded.source
    labels = labels_of(source)
    for index in embedded.features.indices[places].tolist():
        place = file_path(source, index)
        path = place if isinstance(place, str) else str(place.absolute())
        label = f"\t{labels[1][index]}" if labels is not None and labels[0] == "label" else ""
        if any(character in path for character in "\n\r\t") or path != path.strip():
            raise SourceError(
                f"the name {escape_control_chars(path)!r} cannot stand in a list of one path per line: rename the file"
            )
        yield f"{path}{label}\n"


def renumbered(finding: Finding, embedded: Embedded) -> Finding:
    """Convert indices among the images that could be read to indices in the source."""
    return finding._replace(images=embedded.features.indices[np.array(finding.images, dtype=np.int64)].tolist())


def name_of(source: Source, finding: Finding, image: int) -> str:
    return source.name(image) if image >= 0 else finding.title.removeprefix("like ")


def as_list(findings: Sequence[Finding], source: Source) -> Iterator[list[object]]:
    """Every finding as rows of a table: what, number of the group, path, cosine."""
    yield ["find", "group", "path", "cosine"]
    for number, finding in enumerate(findings):
        for image, score in zip(finding.images, finding.scores, strict=True):
            yield [finding.what, number, name_of(source, finding, image), f"{score:.4f}"]


def print_findings(findings: Sequence[Finding], source: Source) -> None:
    """Print what is on the sheet."""
    for finding in findings[:ROWS]:
        say(f"{escape_control_chars(finding.title)}:")
        for image, score in zip(finding.images, finding.scores, strict=True):
            if image >= 0:
                say(f"  {score:6.3f}  {escape_control_chars(source.name(image))}")
    if len(findings) > ROWS:
        say(f"… and {len(findings) - ROWS} more, in the list")


def draw_rows(findings: Sequence[Finding], embedded: Embedded, pictures: dict[int, Pixels]) -> list[Row]:
    """The findings as rows of a contact sheet; what is longer than a row goes on in the next."""
    dataset = ImageDataset(embedded.source, embedded.loaded.decoder(embedded.source))
    rows = []
    for finding in findings[:ROWS]:
        for start in range(0, len(finding.images), COLUMNS):
            images = finding.images[start : start + COLUMNS]
            names = [name_of(embedded.source, finding, image).rpartition("/")[2] for image in images]
            scores = finding.scores[start : start + COLUMNS]
            captions = [
                f"{score:.2f}  {name}" if image >= 0 else f"query: {name}"
                for image, name, score in zip(images, names, scores, strict=True)
            ]
            title = finding.title if start == 0 else ""
            row = [pictures[image] if image in pictures else dataset.decode(image) for image in images]
            rows.append(Row(title, [to_rgb(each) for each in row], captions))
    return rows[:ROWS]
