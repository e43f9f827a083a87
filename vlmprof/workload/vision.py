"""The dynamic-resolution encoder and the projector, composed of Megatron-Core parts.

Patches of all pictures of a micro-batch lie in one packed sequence, 2x2 neighbours side by side; attention stays
within a picture. Follows the vision tower and patch merger of Qwen3-VL (arXiv:2511.21631).
"""

import torch
from megatron.core.models.vision.multimodal_projector import MultimodalProjector
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlock
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

from vlmprof.workload.spec import Encoder

__all__ = ["Merger", "VisionModel", "patch_positions"]


def patch_positions(grids: list[tuple[int, int]], merge: int) -> Tensor:
    """(row, column) of every patch in packed order, int64 [patches, 2].

    Args:
        grids: (rows, columns) of patches of each picture; both divide by `merge`.
        merge: side of the blocks whose patches lie side by side.
    """
    pieces = []
    for rows, columns in grids:
        position = torch.stack(
            torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"), dim=-1
        )  # [rows, columns, 2]
        blocks = position.view(rows // merge, merge, columns // merge, merge, 2).permute(0, 2, 1, 3, 4)
        pieces.append(blocks.reshape(-1, 2))
    return torch.cat(pieces)


class VisionModel(MegatronModule):  # type: ignore[misc]
    """Patch embedding, learned 2-D positions interpolated to each picture's grid, 2-D rotary transformer layers."""

    def __init__(self, config: TransformerConfig, encoder: Encoder, layer_spec: ModuleSpec) -> None:
        super().__init__(config=config)
        self.merge = encoder.spatial_merge_size
        self.side = round(encoder.num_position_embeddings**0.5)
        self.patch_embed = torch.nn.Linear(encoder.patch_elements, encoder.hidden_size, dtype=config.params_dtype)
        self.position_embeddings = torch.nn.Embedding(
            encoder.num_position_embeddings, encoder.hidden_size, dtype=config.params_dtype
        )
        self.decoder = TransformerBlock(config=config, spec=layer_spec, post_layer_norm=False)
        quarter = encoder.hidden_size // encoder.num_attention_heads // 4
        frequencies = 1.0 / 10_000.0 ** (torch.arange(quarter, dtype=torch.float32) / quarter)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, patches: Tensor, grids: list[tuple[int, int]]) -> Tensor:
        """patches: [patches, patch_elements], packed as `patch_positions` says -> [patches, 1, hidden]."""
        hidden = self.patch_embed(patches) + torch.cat([self._learned(grid) for grid in grids])
        positions = patch_positions(grids, self.merge).to(patches.device)
        angles = (positions[:, :, None] * self.frequencies).flatten(1)  # [patches, head_dim / 2]
        rotary = torch.cat((angles, angles), dim=-1)[:, None, None, :]
        bounds = torch.tensor([0, *(rows * columns for rows, columns in grids)], dtype=torch.int32)
        bounds = bounds.cumsum(0, dtype=torch.int32)
        encoded: Tensor = self.decoder(hidden_states=hidden[:, None, :], attention_mask=bounds, rotary_pos_emb=rotary)
        return encoded

    def _learned(self, grid: tuple[int, int]) -> Tensor:
        """The square table of positions, bilinearly resampled to `grid` and put in packed order: [patches, hidden]."""
        table = self.position_embeddings.weight.view(1, self.side, self.side, -1).permute(0, 3, 1, 2)
        sampled = functional.interpolate(table, size=grid, mode="bilinear", align_corners=True)[
            0
        ]  # [hidden, rows, cols]
        rows, columns = grid
        blocks = sampled.view(-1, rows // self.merge, self.merge, columns // self.merge, self.merge)
        return blocks.permute(1, 3, 2, 4, 0).reshape(rows * columns, -1)


class Merger(MegatronModule):  # type: ignore[misc]
    """Norm, `merge` x `merge` neighbours side by side, then Megatron's two-layer projector to the decoder's width."""

    def __init__(
        self, config: TransformerConfig, encoder: Encoder, merged_width: int, submodules: MLPSubmodules
    ) -> None:
        super().__init__(config=config)
        self.merged_width = merged_width
        self.norm = torch.nn.LayerNorm(encoder.hidden_size, eps=encoder.layernorm_epsilon, dtype=config.params_dtype)
        self.projector = MultimodalProjector(
            config=config,
            submodules=submodules,
            projector_type="mlp",
            input_size=merged_width,
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """[patches, 1, encoder hidden] -> [patches / merge^2, 1, decoder hidden]."""
        projected: Tensor = self.projector(self.norm(hidden).view(-1, 1, self.merged_width))
        return projected
