"""mixview's networks as a model type of Hugging Face transformers: importing this is what teaches them to `AutoModel`.

Nothing in a folder is run: the network is built by mixview from its name, and only those of torchvision, timm and
mixview itself are.
"""

from typing import Any

from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from mixview.encoders.encoder_file import check_spec, rebuild


class MixviewConfig(PreTrainedConfig):
    """The configuration that rebuilds an encoder: its `spec`."""

    model_type = "mixview"
    spec: dict[str, Any] | None = None


class MixviewModel(PreTrainedModel):
    """An encoder of mixview; `pooler_output` is its features [N, D]."""

    config_class = MixviewConfig
    main_input_name = "pixel_values"

    def __init__(self, config: MixviewConfig) -> None:
        super().__init__(config)
        spec = check_spec(config.spec)
        if spec is None:
            raise ValueError(
                f"the config does not say how to build the network (spec is {config.spec!r}): export it again"
            )
        self.encoder = rebuild("the folder", spec, trust_remote_code=False)
        self.post_init()  # type: ignore[no-untyped-call, unused-ignore]

    def _init_weights(self, module: Any) -> None:
        """All weights are in the file."""

    def forward(self, pixel_values: Tensor, **_: Any) -> BaseModelOutputWithPooling:
        features = self.encoder(pixel_values)
        return BaseModelOutputWithPooling(last_hidden_state=features, pooler_output=features)


AutoConfig.register("mixview", MixviewConfig, exist_ok=True)
AutoModel.register(MixviewConfig, MixviewModel, exist_ok=True)
