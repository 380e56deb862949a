"""The public shapes of torch models: what the yaml builds, and how a module comes of it.

Reading a configuration does not load torch; building a module does.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from dpfed_kan._validate import check_choice, check_count, check_positive
from dpfed_kan.kan.shape import LOSSES, LossName

if TYPE_CHECKING:
    from torch import nn

CONSENT = "DPFED_KAN_MODULES"
_IMAGE = (3, 32, 32)


@dataclass(frozen=True, kw_only=True)
class TorchSettings:
    """What every torch model has.

    Args:
        num_outputs: 1, or the number of classes with softmax.
        loss: logistic, softmax, squared or huber.
        huber_delta: Where Huber's loss turns linear.
    """

    num_outputs: int = 1
    loss: LossName = "logistic"
    huber_delta: float = 1.0

    def __post_init__(self) -> None:
        check_count("num_outputs", self.num_outputs)
        check_choice("loss", self.loss, LOSSES)
        check_positive("huber_delta", self.huber_delta)
        if (self.loss == "logistic" and self.num_outputs != 1) or (
            self.loss == "softmax" and self.num_outputs < 2
        ):
            raise ValueError(
                f"expected num_outputs={self.num_outputs} to fit loss={self.loss}: 1 for logistic, "
                "the number of classes for softmax"
            )


@dataclass(frozen=True, kw_only=True)
class MLP(TorchSettings):
    """A perceptron with ReLU; every gradient is factored. 784-1000-10 has 795,010 parameters.

    Args:
        hidden_widths: Units of each hidden layer.
        num_outputs: As in `TorchSettings`.
        loss: As in `TorchSettings`.
        huber_delta: As in `TorchSettings`.
    """

    hidden_widths: tuple[int, ...] = (1000,)

    def build(self, input_dim: int) -> nn.Module:
        """Return the module, initialized by torch's present generator."""
        from torch import nn

        widths = (input_dim, *self.hidden_widths)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], self.num_outputs))


@dataclass(frozen=True, kw_only=True)
class CNN(TorchSettings):
    """Five layers for 3×32×32 images given as 3072 features, 582,346 parameters with 10 outputs.

    Four 4×4 convolutions of stride 2 and one linear layer; no normalization. The number of
    parameters is that of [MacAdam]'s CIFAR-10 model, whose layout is not published: this one is
    ours.

    Args:
        channels: Of the four convolutions.
        num_outputs: As in `TorchSettings`.
        loss: As in `TorchSettings`.
        huber_delta: As in `TorchSettings`.
    """

    channels: tuple[int, ...] = (48, 16, 128, 256)

    def build(self, input_dim: int) -> nn.Module:
        """Return the module, initialized by torch's present generator.

        Raises:
            ValueError: If the features are not 3×32×32 images, or there are not four widths.
        """
        from torch import nn

        if input_dim != 3 * 32 * 32 or len(self.channels) != 4:
            raise ValueError(
                f"model=cnn takes 3072 features, images of {_IMAGE}, and four channel widths; got "
                f"{input_dim} features and {len(self.channels)} widths"
            )
        layers: list[nn.Module] = [nn.Unflatten(1, _IMAGE)]
        for before, after in pairwise((3, *self.channels)):
            layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.ReLU()]
        return nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(4 * self.channels[-1], self.num_outputs)
        )


@dataclass(frozen=True, kw_only=True)
class UserModule(TorchSettings):
    """A user's own torch module.

    A factory's name makes this process import code, and a configuration can come from another
    machine. So the name alone does nothing: the local user must have consented to its top-level
    module in this process's environment, DPFED_KAN_MODULES=my_models[,another]. No message and no
    configuration can set that.

    Args:
        factory: `module:function`; called as function(input_dim, num_outputs), it returns a
            torch.nn.Module from (n, input_dim) to (n, num_outputs).
        num_outputs: As in `TorchSettings`.
        loss: As in `TorchSettings`.
        huber_delta: As in `TorchSettings`.
    """

    factory: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factory.count(":") != 1 or not all(self.factory.split(":")):
            raise ValueError(f"expected factory={self.factory!r} as module:function")

    def build(self, input_dim: int) -> nn.Module:
        """Import the factory, if the local user consents, and call it.

        Raises:
            ValueError: If there is no consent, no such factory, or it returns no module.
        """
        from torch import nn

        name, function = self.factory.split(":")
        allowed = {part.strip() for part in os.environ.get(CONSENT, "").split(",")}
        if name.partition(".")[0] not in allowed:
            raise ValueError(
                f"model.factory={self.factory} would run code of {name}; if you trust it, say so "
                f"on this machine: {CONSENT}={name.partition('.')[0]} in the environment"
            )
        try:
            factory = getattr(importlib.import_module(name), function)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"model.factory={self.factory} cannot be imported: {error}") from error
        module = factory(input_dim, self.num_outputs)
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"expected model.factory={self.factory} to return a torch.nn.Module, got "
                f"{type(module).__name__}"
            )
        return module


TorchModel = MLP | CNN | UserModule


def seeded_module(model: TorchModel, input_dim: int, seed: int) -> nn.Module:
    """Build a float64 module in evaluation mode; torch's global generator is left as it was."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the CPU's alone, which fork_rng puts back
        return model.build(input_dim).double().eval()
