"""Per-example gradients of a torch module, as the blocks that clipping takes.

A Linear layer that sees one vector per example has gradient δ_i ⊗ x_i: it is kept factored, from
one backward pass for the batch. Every other parameter's gradient is written out per example by
torch.func, as the block 1 ⊗ g_i, for a few examples at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpfed_kan.kan.device import Device, as_array, check_device
from dpfed_kan.kan.losses import checked_labels
from dpfed_kan.models.checking import check_module, probe
from dpfed_kan.models.losses import losses_of
from dpfed_kan.models.parameters import (
    Layout,
    frozen_layout,
    load_frozen,
    trainable_layout,
    unflatten,
)
from dpfed_kan.models.spec import TorchModel, seeded_module
from dpfed_kan.privacy.clipping import GradientBlock, Matrix, Vector

_BYTES_WRITTEN_OUT = 2**28
_Block = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleGradients:
    """A module on one shard.

    Guarantees:
        Only trainable parameters come in and go out, by name in one fixed order; frozen ones and
        buffers stay here. The arithmetic is float64 in evaluation mode. A record's blocks depend
        on that record alone: a module for which that is not so is refused.

    Args:
        model: Its public shape.
        frozen: Frozen parameters and buffers, flat.
        features: Shape (n, d).
        labels: Shape (n,), as the loss takes them.
        device: Where the arithmetic is done.

    Raises:
        ValueError: If the module mixes examples, or a shape or label does not fit.
    """

    model: TorchModel
    frozen: Vector = field(repr=False)
    features: Matrix = field(repr=False)
    labels: Vector = field(repr=False)
    device: Device = "cpu"

    def __post_init__(self) -> None:
        check_device(self.device)
        labels = checked_labels(
            self.model.loss,
            self.labels,
            num_records=len(self.features),
            num_outputs=self.model.num_outputs,
        )
        object.__setattr__(self, "labels", labels)
        _ = self._factored  # refuses a bad module now, not at first use

    @property
    def num_params(self) -> int:
        """D, the number of trainable parameters."""
        return int(sum(p.numel() for p in self._module.parameters() if p.requires_grad))

    @property
    def rows_at_once(self) -> int | None:
        """Examples whose written-out gradients fit into 256 MiB; None if all are factored."""
        written = sum(
            p.numel()
            for name, p in self._module.named_parameters()
            if p.requires_grad and name not in self._factored_names
        )
        return max(1, _BYTES_WRITTEN_OUT // (8 * written)) if written else None

    def blocks(self, params: Vector, indices: NDArray[np.intp]) -> tuple[GradientBlock, ...]:
        """Compute the gradients of some records' losses, one block per trainable parameter.

        Args:
            params: Shape (D,), float64.
            indices: Shape (B,).
        """
        tensors = unflatten(params, self._layout, device=self.device)
        inputs = torch.tensor(self.features[indices], dtype=torch.float64, device=self.device)
        labels = torch.tensor(self.labels[indices], device=self.device)
        if len(indices) == 0:
            return tuple(_empty(shape) for _, shape in self._layout)
        found = self._factored_blocks(tensors, inputs, labels, self._factored)
        found |= self._written_blocks(tensors, inputs, labels, skip=set(found))
        return tuple(
            GradientBlock(left=as_array(found[name][0]), right=as_array(found[name][1]))
            for name, _ in self._layout
        )

    @cached_property
    def _module(self) -> nn.Module:
        module = seeded_module(self.model, self.features.shape[1], 0)
        check_module(module, self.features.shape[1], self.model.num_outputs)
        load_frozen(module, unflatten(self.frozen, frozen_layout(module), device="cpu"))
        return module.to(self.device)

    @cached_property
    def _layout(self) -> Layout:
        return trainable_layout(self._module)

    @cached_property
    def _factored(self) -> tuple[str, ...]:
        """Names of the Linear layers for which factoring is exact, by trial on random inputs."""
        names = tuple(n for n, p in self._module.named_modules() if isinstance(p, nn.Linear))
        inputs = probe(self.features.shape[1]).to(self.device)
        labels = torch.ones(len(inputs), dtype=torch.float64, device=self.device)
        if self.model.num_outputs > 1 and self.model.loss != "softmax":
            labels = labels[:, None].expand(-1, self.model.num_outputs)
        tensors = {n: p.detach() for n, p in self._module.named_parameters() if p.requires_grad}
        exact = self._written_blocks(tensors, inputs, labels, skip=set())
        sound = []
        for name in names:
            ours = self._factored_blocks(tensors, inputs, labels, (name,))
            if ours and all(_same(ours[key], exact[key]) for key in ours):
                sound.append(name)
        return tuple(sound)

    @property
    def _factored_names(self) -> set[str]:
        return {_join(layer, kind) for layer in self._factored for kind in ("weight", "bias")}

    def _factored_blocks(
        self, tensors: dict[str, Tensor], inputs: Tensor, labels: Tensor, layers: tuple[str, ...]
    ) -> dict[str, _Block]:
        """Return the blocks of Linear layers that were called once, on one vector per example."""
        calls: dict[str, list[_Block]] = {name: [] for name in layers}

        def record(name: str) -> torch.utils.hooks.RemovableHandle:
            def keep(_: nn.Module, given: tuple[Tensor, ...], returned: Tensor) -> None:
                calls[name].append((returned, given[0]))

            return self._module.get_submodule(name).register_forward_hook(keep)

        handles = [record(name) for name in layers]
        try:
            leaves = {n: t.detach().requires_grad_() for n, t in tensors.items()}
            outputs = functional_call(self._module, leaves, (inputs,))
        finally:
            for handle in handles:
                handle.remove()
        once = {n: c[0] for n, c in calls.items() if len(c) == 1 and c[0][1].ndim == 2}
        once = {n: call for n, call in once.items() if call[0].requires_grad}
        if not once:
            return {}
        total = losses_of(self.model, outputs, labels).sum()
        slopes = torch.autograd.grad(total, [z for z, _ in once.values()], allow_unused=True)
        found: dict[str, _Block] = {}
        for (name, (_, given)), slope in zip(once.items(), slopes, strict=True):
            if slope is None:
                continue
            found[_join(name, "weight")] = (slope, given.detach())
            found[_join(name, "bias")] = (slope, torch.ones_like(slope[:, :1]))
        return {name: block for name, block in found.items() if name in tensors}

    def _written_blocks(
        self, tensors: dict[str, Tensor], inputs: Tensor, labels: Tensor, *, skip: set[str]
    ) -> dict[str, _Block]:
        """Return the blocks 1 ⊗ g_i of all parameters that are not skipped."""
        wanted = {name: tensor for name, tensor in tensors.items() if name not in skip}
        if not wanted:
            return {}
        rest = {name: tensor for name, tensor in tensors.items() if name in skip}

        def loss(some: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            outputs = functional_call(self._module, {**some, **rest}, (x[None],))
            return losses_of(self.model, outputs, y[None])[0]

        written = vmap(grad(loss), in_dims=(None, 0, 0))(wanted, inputs, labels)
        ones = torch.ones(len(inputs), 1, dtype=torch.float64, device=inputs.device)
        return {name: (ones, value.flatten(1)) for name, value in written.items()}


def _empty(shape: tuple[int, ...]) -> GradientBlock:
    size = int(np.prod(shape))
    return GradientBlock(left=np.empty((0, 1)), right=np.empty((0, size)))


def _join(layer: str, kind: str) -> str:
    return f"{layer}.{kind}" if layer else kind


def _same(block: _Block, written: _Block) -> bool:
    product = torch.einsum("ir,is->irs", *block).flatten(1)
    return bool(torch.allclose(product, written[1], rtol=1e-9, atol=1e-14))
