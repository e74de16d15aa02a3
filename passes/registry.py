"""All passes of this project: one table, and the order in which `compile` runs them."""

from .base import Pass
from .form_stages import FormStages
from .normalize import Normalize
from .to_host import ToHost

PASSES: dict[str, type[Pass]] = {cls.name: cls for cls in (Normalize, FormStages, ToHost)}

# The passes between linalg on tensors and the tile program; `compile` appends the target's own.
PIPELINE: list[str] = ["kitsune-normalize", "kitsune-form-stages"]
