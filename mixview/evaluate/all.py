"""`mixview evaluate all`: every protocol that the labels allow, one after the other, the cheapest first."""

from dataclasses import dataclass, field, fields, replace

from mixview.encoders.loading import ComputeConfig, EncoderConfig
from mixview.evaluate.base import DataConfig, EvalContext, Protocol, protocols, run_each
from mixview.evaluate.results import Result
from mixview.evaluate.training import TrainingConfig
from mixview.extensions import PROTOCOLS
from mixview.io.terminal import say
from mixview.options import Epochs, did_you_mean
from mixview.runs.launching import launcher, process_rank
from mixview.runs.logging_config import LoggingConfig


@dataclass(frozen=True, kw_only=True)
class EvaluateAll(TrainingConfig, DataConfig, ComputeConfig, EncoderConfig):
    """Evaluate by every protocol that the labels allow, and name those that are left out."""

    epochs: Epochs | None = None
    """Passes over the images, for all protocols that train on them; by default as published."""
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    """Intervals of logging and of checkpoints, and what is kept."""
    fast: bool = False
    """Fit linear on features, and leave out the protocols that train on images."""
    skip: list[str] = field(default_factory=list)
    """Protocols to leave out, such as supervised."""

    def run(self) -> list[Result]:
        """Evaluate by every protocol, and write each result immediately."""
        for name in self.skip:
            if name not in PROTOCOLS.builtins:
                hint = did_you_mean(name, PROTOCOLS.names())
                names = ", ".join(each.name for each in protocols())
                raise ValueError(f"there is no protocol {name!r} to skip{hint or f': there are {names}'}")
        reasons = {each.name: each.excluded_from_all for each in protocols()} | dict.fromkeys(self.skip, "skipped")
        candidates = [self.build(each) for each in protocols() if not reasons[each.name]]
        if not candidates:
            raise ValueError("--skip leaves no protocol to evaluate by")
        context = candidates[0].open()
        reasons |= {each.name: self.unsupported_reason(each, context) for each in candidates}
        chosen = [each for each in candidates if not reasons[each.name]]
        if launcher() is None and process_rank() > 0:
            # This process was started by the first one to train with it; that one has all other results.
            chosen = [each for each in chosen if each.trains_on_images]
        try:
            return run_each(chosen, context)
        finally:
            for name, reason in reasons.items():
                if reason:
                    say(f"left out {name}: {reason}")

    def build(self, protocol: type[Protocol]) -> Protocol:
        """A protocol with those of these options that it has."""
        training = {each.name for each in fields(TrainingConfig)} | {"epochs", "logging"}
        names = {each.name for each in fields(self)} & {each.name for each in fields(protocol)}
        built = protocol(**{name: getattr(self, name) for name in names - training})
        if built.trains_on_images:
            built = replace(built, **{name: getattr(self, name) for name in names & training})
        return built

    def unsupported_reason(self, protocol: Protocol, context: EvalContext) -> str:
        """The reason why a protocol cannot be run; empty if it can."""
        if self.fast and protocol.trains_on_images:
            return "--fast trains nothing on images"
        return protocol.unsupported_reason(context) or ""
