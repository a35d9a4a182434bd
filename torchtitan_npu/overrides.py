"""The overrides of a run, tried on a copy of its configuration.

Upstream applies them when the ranks are connected already, and says which two claim one node but not what to do.
"""

import copy
import logging
from typing import Any

from torchtitan.config import apply_overrides
from torchtitan.tools.logging import logger

from torchtitan_npu.converters import CONVERTERS
from torchtitan_npu.errors import UserError


def check(config: Any) -> None:
    """Raises UserError for an override that does not exist, does not take its settings, or claims what another does."""
    level = logger.level
    logger.setLevel(logging.ERROR)  # what is replaced is logged when it is replaced
    try:
        apply_overrides(config.override, copy.deepcopy(config))
    except (ImportError, TypeError, ValueError) as error:
        raise UserError(f"override.imports: {error}", _fix(str(error), config.npu.reference_parts)) from error
    finally:
        logger.setLevel(level)


def _fix(refusal: str, reference_parts: list[str]) -> str:
    """What leaves the preset's own override out, where it is one of two that claim a node; or how to name one."""
    ours = [declared.part for declared in CONVERTERS if f"'{declared.factory}'" in refusal]
    if not ours:
        names = "--override.imports takes the full names of @override functions, which PYTHONPATH must lead to"
        return names if " target '" in refusal else ""  # else upstream says all there is to say
    if set(ours) <= set(reference_parts):
        return "--npu.converters none leaves all of the preset out"
    return f"--npu.reference_parts {','.join(dict.fromkeys([*reference_parts, *ours]))} leaves the preset's own out"
