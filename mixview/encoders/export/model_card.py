"""The model card of an exported encoder: what it is, what it was trained on and how, and what was measured of it.

Everything in it comes from the run's own folder. What is not known is said to be unknown.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from mixview.encoders.backbones import BUILTIN
from mixview.encoders.export.base import ExportedFiles, ExportSource, fill_path
from mixview.encoders.transforms import CROP_RATIO
from mixview.evaluate import results
from mixview.evaluate.results import format_metric
from mixview.extensions import METHODS
from mixview.io.records import Config, Data, Environment, RecordError, read_dict
from mixview.io.terminal import inline

OBJECTIVES = {
    "sim": "the method as published, without mixtures",
    "bsim": "BSIM: every anchor is a mixture of two images",
    "wbsim": "WBSIM: mixed and unmixed anchors, weighted",
    "mixaug": "MixAug: mixtures as a mere augmentation (an ablation)",
    "unmix": "Un-Mix: mixed and unmixed anchors, of equal weight",
}
SETTINGS = (
    "epochs", "batch_size", "seed", "augment", "normalize", "size", "value_range", "optimizer", "mixing", "method",
    "weights", "freeze", "precision",
)  # fmt: skip
"""The settings of a run that make the experiment."""

CITATION = """\
```bibtex
@misc{chu-bsim,
  title  = {A Unified Mixture-View Framework for Unsupervised Representation Learning},
  author = {Chu, Xiangxiang and Zhan, Xiaohang and Zhang, Bo}
}
```"""


def make_card(
    source: ExportSource, exported: ExportedFiles, format_name: str, target: Path, files: Iterable[str], check: str
) -> str:
    """The card as Markdown, with the header that Hugging Face's hub reads."""
    sections = [
        front_matter(source, format_name),
        f"# {inline(source.loaded.name)}",
        introduction(source),
        "## Usage",
        f"```python\n{fill_path(exported.snippet, target)}\n{source.normalize_line()}\n```",
        " ".join([f"Files: {', '.join(files)}.", check, *exported.notes]),
        "## Preprocessing",
        preprocessing(source),
        "## Training",
        training(source),
        "## Evaluation",
        measured(source),
        "## Limits",
        "Features describe what the training images taught and share their bias. Nothing here was measured but what "
        "the table says. The license of the weights is up to those who trained them, and depends on that of the "
        "images.",
        "## Citation",
        CITATION,
    ]
    return "\n\n".join(sections) + "\n"


def is_card(path: Path) -> bool:
    """Return True if a file is such a card."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return text.startswith("---\n") and "\n- mixview\n" in text


def front_matter(source: ExportSource, format_name: str) -> str:
    """The fields that model hubs index."""
    hub = {"huggingface": "transformers", "timm": "timm", "onnx": "onnx"}
    metadata = source.loaded.metadata
    tags = ["self-supervised", "mixview", *(metadata[key] for key in ("method", "objective") if key in metadata)]
    content = {
        "library_name": hub.get(format_name, "mixview"),
        "pipeline_tag": "image-feature-extraction",
        "tags": tags,
    }
    return f"---\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}---"


def introduction(source: ExportSource) -> str:
    """One paragraph on what the file is."""
    spec = source.spec
    millions = sum(parameter.numel() for parameter in source.loaded.encoder.parameters()) / 1e6
    resnet = spec["stem"] == "small" and spec["name"] not in BUILTIN
    stem = ", with the small stem (3×3, no pooling)" if resnet else ""
    return (
        f"An image encoder, {spec['name']}{stem}: {millions:.1f} million parameters, images of "
        f"{spec['channels']}×{spec['size']}×{spec['size']} to {spec['feature_dim']} features. It has no classifier."
    )


def preprocessing(source: ExportSource) -> str:
    """The preparation of an image."""
    size = int(source.spec["size"])
    moments = source.loaded.normalize.values(int(source.spec["channels"]))
    mean, std = (", ".join(f"{value:.4g}" for value in values) for values in moments)
    value_range = source.loaded.value_range
    scaled = "divided by 255"
    if value_range is not None:
        scaled = (
            "scaled to 0 to 1 by each DICOM file's own window"
            if value_range.low is None
            else f"scaled and clipped so that the values {value_range} become 0 and 1 (8 bits: divided by 255)"
        )
    return (
        f"The shorter side is resized to {round(size * CROP_RATIO)} pixels (to {size} if the image is no larger than "
        f"that), bilinear and antialiased; the middle {size}×{size} pixels are taken, {scaled}, and normalized "
        f"by mean ({mean}) and standard deviation ({std})."
    )


def training(source: ExportSource) -> str:
    """Method, data and settings, from the run's folder; unknown for weights from elsewhere."""
    metadata, run = source.loaded.metadata, source.loaded.run
    if "method" not in metadata:
        return f"Unknown: the weights are {source.loaded.name}, which mixview did not train."
    rows = {
        "method": builtin.summary if (builtin := METHODS.builtins.get(metadata["method"])) else metadata["method"],
        "objective": OBJECTIVES.get(metadata.get("objective", ""), metadata.get("objective", "unknown")),
        "trained for": f"{metadata.get('epoch', '?')} epochs, {metadata.get('step', '?')} steps",
    }
    if run is not None:
        faults: list[str] = []
        rows |= data_rows(read(run / "data.json", Data, faults), metadata)
        rows |= setting_rows(read(run / "config.yaml", Config, faults))
        versions = read(run / "environment.json", Environment, faults).get("versions", {})
        if versions:
            rows["versions"] = ", ".join(f"{name} {value}" for name, value in versions.items() if value)
        if faults:
            rows["unknown"] = "; ".join(faults)
    lines = [f"| {name} | {inline(value)} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def data_rows(data: dict[str, Any], metadata: dict[str, str]) -> dict[str, str]:
    """The images, without the path that they had on one machine."""
    name = Path(metadata.get("data", "")).name
    count = f", {data['count']:,} images" if isinstance(data.get("count"), int) else ""
    rows = {"images": f"{name or 'unnamed'} ({data.get('kind', 'unknown kind')}{count}), without labels"}
    return rows | ({"fingerprint of the images": str(data["fingerprint"])} if "fingerprint" in data else {})


def setting_rows(config: dict[str, Any]) -> dict[str, str]:
    rows = {}
    for name in SETTINGS:
        value = config.get(name)
        if isinstance(value, dict):
            value = ", ".join(f"{key} {each}" for key, each in value.items() if each is not None and key != "name")
        if value is not None:
            rows["method options" if name == "method" else name] = str(value)
    return rows


def measured(source: ExportSource) -> str:
    """The results of `mixview evaluate`, each metric with its protocol; or that there are none."""
    metadata, run = source.loaded.metadata, source.loaded.run
    read, faults = results.read_valid(run) if run is not None else ([], [])
    left_out = [f"- Left out: {inline(fault)}" for fault in faults]
    own = [
        result
        for result in read
        if result.about and all(result.about.get(name, value) == value for name, value in metadata.items())
    ]  # others that were kept in the same folder, or are of another epoch, are not this encoder's
    if not own:
        nothing = "Nothing yet. `mixview evaluate` evaluates an encoder and keeps its results in the run's folder."
        return "\n".join([nothing, *(["", *left_out] if left_out else [])])
    rows = results.summarize(own)
    lines = [
        f"| {inline(row.protocol)} | {inline(row.metric)} | {format_metric(row.mean, row.std)} | {row.runs} | "
        f"{inline(row.result.data)} |"
        for row in rows
    ]
    protocols = dict.fromkeys(f"- **{inline(row.protocol)}**: {inline(row.result.description)}" for row in rows)
    warnings = dict.fromkeys(f"- Warning: {inline(warning)}" for row in rows for warning in row.result.warnings)
    table = ["| protocol | metric | measured | runs | on |", "|---|---|---|---|---|", *lines]
    return "\n".join([*table, "", *protocols, *warnings, *left_out])


def read(path: Path, kind: Any, faults: list[str]) -> dict[str, Any]:
    """Read a file of a run; an empty dict, and the reason as a fault, if it is lost."""
    try:
        return read_dict(path, kind)
    except RecordError as error:
        faults.append(f"{path.name} was left out: {error.reason}")
        return {}
