"""The evaluation protocols as columns of a study: their options, their defaults, and running one of them."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixview.experiments.file_names import digest
from mixview.extensions import PROTOCOLS

if TYPE_CHECKING:
    from mixview.evaluate.base import EvalContext
    from mixview.evaluate.results import Result
    from mixview.experiments.study_run import StudyRun

NOT_PROTOCOL_OPTIONS = ("device", "devices", "workers", "out", "trust_remote_code")
"""Options of a protocol that change neither encoder nor images."""


def options(protocol: str) -> list[str]:
    """The options that a column can set."""
    return [field.name for field in dataclasses.fields(PROTOCOLS.load(protocol))]


def defaults(protocol: str) -> dict[str, Any]:
    """The plain values among the defaults of the options."""
    from mixview.runs.run_directory import to_serializable

    return {
        each.name: to_serializable(each.default, each.name)
        for each in dataclasses.fields(PROTOCOLS.load(protocol))
        if each.default is not dataclasses.MISSING and not dataclasses.is_dataclass(each.default)
    }


def trains_network(protocol: str) -> bool:
    """Return True if a protocol trains the encoder itself."""
    return bool(PROTOCOLS.load(protocol).needs_network)


def run_column(
    run: "StudyRun",
    folder: Path,
    column: dict[str, Any],
    contexts: "dict[str, EvalContext]",
    trust_remote_code: bool = False,
) -> "Result":
    """Run the protocol of a column; the result of several trials is their mean.

    Args:
        run: the run to evaluate.
        folder: its run directory.
        column: protocol, metric and options.
        contexts: encoders and images that earlier columns opened; they stay open.
        trust_remote_code: import a backbone of the user's own.
    """
    from mixview.evaluate.base import Protocol, build

    name, settings = column["protocol"], evaluation_options(run, folder, column)
    protocol = build(name, settings | {"trust_remote_code": trust_remote_code})
    if protocol.needs_folder:
        # Columns with equal options share what is trained; others have a folder of their own, or would meet in one.
        place = folder / protocol.name / digest({key: each for key, each in settings.items() if key != "encoder"})
        return build(name, {"out": str(place), "resume": place.exists()} | settings).run()
    if "resume" in {each.name for each in dataclasses.fields(protocol)}:
        settings = settings | {"resume": True}  # what an earlier process began
        protocol = build(name, settings | {"trust_remote_code": trust_remote_code})
    shared = [each.name for each in dataclasses.fields(Protocol) if each.name not in NOT_PROTOCOL_OPTIONS]
    key = json.dumps({each: getattr(protocol, each) for each in shared}, sort_keys=True)
    if key not in contexts:
        contexts[key] = protocol.open()
    return protocol.result(contexts[key])


def evaluation_options(run: "StudyRun", folder: Path, column: dict[str, Any]) -> dict[str, Any]:
    """The options of a protocol, encoder and images among them."""
    own = {key: value for key, value in column.items() if key not in ("protocol", "metric")}
    settings: dict[str, Any] = {"seed": run.seed, "workers": 0, **run.eval_data}
    if run.encoder is None:
        settings["encoder"] = str(folder)
    else:
        settings["encoder"] = run.encoder
        settings |= {key: run.settings[key] for key in ("size", "channels") if key in run.settings}
        if run.encoder == "random":
            settings["backbone"] = run.settings["backbone"]
    return settings | own
