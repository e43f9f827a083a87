"""Initial values that depend on the seed and a parameter's global name alone: never on layout or construction order.

Scheme of Megatron and GPT-2: normal with 0.02, scaled by 1/sqrt(2 layers) where a branch joins the residual; norms
one; biases zero.
"""

import hashlib
import math
import re

import torch

__all__ = ["global_name", "initialise"]

STANDARD_DEVIATION = 0.02
_EXPERT = re.compile(r"(experts\.local_experts\.)(\d+)\.")
_GROUPED = re.compile(r"experts\.(linear_fc[12]\.(?:weight|bias))(\d+)$")


def global_name(name: str, first_expert: int = 0) -> str:
    """The name of a parameter in the whole model, from its name on a rank whose experts begin at `first_expert`.
    Weights of a grouped GEMM are known by the names they have as experts of their own."""
    name = _GROUPED.sub(r"experts.local_experts.\2.\1", name)
    return _EXPERT.sub(lambda m: f"{m[1]}{int(m[2]) + first_expert}.", name)


def initialise(model: torch.nn.Module, seed: int, first_expert: int = 0) -> None:
    """Fill every parameter of the unwrapped model in place, with its device's own generator."""
    depth = {
        prefix: sum(1 for name, _ in model.named_modules() if re.fullmatch(rf"{prefix}\.decoder\.layers\.\d+", name))
        for prefix in ("vision_model", "language_model")
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            whole = global_name(name, first_expert)
            if parameter.dim() == 1:
                parameter.fill_(1.0 if whole.endswith("weight") else 0.0)
                continue
            deviation = STANDARD_DEVIATION
            if re.search(r"(linear_proj|linear_fc2)\.weight", whole) and ".layers." in name:
                deviation /= math.sqrt(2 * depth[name.split(".", 1)[0]])
            digest = hashlib.sha256(f"{seed}/{whole}".encode()).digest()
            generator = torch.Generator(parameter.device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            values = torch.randn(
                parameter.shape, generator=generator, dtype=torch.float32, device=parameter.device
            )  # on the host a billion of them would take ten seconds
            parameter.copy_(values.mul_(deviation))
