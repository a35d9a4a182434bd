"""Which overrides a run activates: `--npu.converters npu|reference|none`."""

from typing import TYPE_CHECKING

from torchtitan_npu import converters
from torchtitan_npu.errors import UserError

if TYPE_CHECKING:
    from torchtitan_npu.train import NPUTrainer


def apply(config: "NPUTrainer.Config") -> None:
    """Append the preset's override factories to those the user names; upstream refuses two for one node."""
    unknown = sorted(set(config.npu.reference_parts) - set(converters.PARTS))
    if unknown:
        raise UserError(
            f"npu.reference_parts: no part {', '.join(unknown)}", f"parts are {', '.join(converters.PARTS)}"
        )
    named = {entry if isinstance(entry, str) else entry[0] for entry in config.override.imports}
    for declared in converters.of_preset(config.npu.converters, config.npu.reference_parts):
        if declared.factory not in named:
            config.override.imports.append(declared.factory)
