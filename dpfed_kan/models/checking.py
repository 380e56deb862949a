"""Refuse, before training, a module whose per-example gradients are no such thing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

_PROBES = 3
_WAY_OUT = "use nn.GroupNorm or nn.LayerNorm, which look at one example at a time"


def check_module(module: nn.Module, input_dim: int, num_outputs: int) -> None:
    """Refuse a module that mixes examples, lacks parameters or has another output shape.

    Known mixers are refused by type, since in evaluation mode they would hide it; unknown ones by
    a probe with random inputs: changing one example must not change another's output, in training
    mode or in evaluation mode.

    Raises:
        ValueError: With the way out.
    """
    for name, part in module.named_modules():
        tracks = isinstance(part, _InstanceNorm) and part.track_running_stats
        if isinstance(part, _BatchNorm) or tracks:
            raise ValueError(
                f"the module has {type(part).__name__} at {name or 'its root'}, which mixes "
                f"examples or keeps statistics of them: no clip bounds one record; {_WAY_OUT}"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError("the module has no parameter with requires_grad, nothing to train")
    inputs = probe(input_dim)
    for mode in (True, False):
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            before, after = (_outputs(module, x, mode) for x in (inputs, _changed(inputs)))
        module.eval()
        if before.shape != (_PROBES, num_outputs):
            raise ValueError(
                f"expected the module to map ({_PROBES}, {input_dim}) to ({_PROBES}, "
                f"{num_outputs}), got {tuple(before.shape)}"
            )
        if not torch.allclose(before[1:], after[1:], rtol=1e-9, atol=1e-12):
            raise ValueError(
                "changing one example changes the module's output for another: it mixes examples, "
                f"so no clip bounds one record; {_WAY_OUT}"
            )


def probe(input_dim: int) -> Tensor:
    """Return a few fixed random inputs; no record is looked at."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(_PROBES, input_dim, dtype=torch.float64, generator=generator) * 0.1


def _changed(inputs: Tensor) -> Tensor:
    changed = inputs.clone()
    changed[0] = changed[0] * -2.0 + 1.0
    return changed


def _outputs(module: nn.Module, inputs: Tensor, training: bool) -> Tensor:
    torch.default_generator.manual_seed(0)  # inside fork_rng: the same dropout in both passes
    module.train(training)
    outputs: Tensor = module(inputs)
    return outputs
