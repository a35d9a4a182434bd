"""Which overrides a run activates: `--npu.converters npu|reference|none`."""

from typing import TYPE_CHECKING

from torchtitan_npu import converters

if TYPE_CHECKING:
    from torchtitan_npu.train import NPUTrainer


def apply(config: "NPUTrainer.Config") -> None:
    """Append the preset's override factories to those the user names; upstream refuses two for one node."""
    named = {entry if isinstance(entry, str) else entry[0] for entry in config.override.imports}
    for declared in converters.of_preset(config.npu.converters):
        if declared.factory not in named:
            config.override.imports.append(declared.factory)
