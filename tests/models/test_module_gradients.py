"""Any torch module: blocks against vmap(grad), what travels, what is refused."""

import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpfed_kan.config import build, to_config
from dpfed_kan.models import port
from dpfed_kan.models.gradients import ModuleGradients
from dpfed_kan.models.losses import losses_of
from dpfed_kan.models.parameters import trainable_layout, unflatten
from dpfed_kan.models.spec import CNN, MLP, UserModule, seeded_module
from dpfed_kan.privacy.clipping import GradientBlock, clip_and_sum
from dpfed_kan.run import resume, run
from tests.conftest import ROOT

RNG = np.random.default_rng(0)


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Callable[..., UserModule]:
    """Make a module factory importable as a user's own, with the user's consent."""

    def offer(factory: Callable[[int, int], Any], **settings: Any) -> UserModule:
        mine = types.ModuleType("my_models")
        mine.build = factory  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "my_models", mine)
        monkeypatch.setenv("DPFED_KAN_MODULES", "other, my_models")
        return UserModule(factory="my_models:build", **settings)

    return offer


class Shared(nn.Module):
    """One Linear used twice, and one whose weight is used apart: neither can be factored."""

    def __init__(self, input_dim: int, num_outputs: int) -> None:
        super().__init__()
        self.first, self.twice = nn.Linear(input_dim, 4), nn.Linear(4, 4)
        self.apart, self.last = nn.Linear(4, 4), nn.Linear(4, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.twice(torch.tanh(self.twice(torch.tanh(self.first(x))))))
        h = torch.tanh(self.apart(h)) + h @ self.apart.weight
        return self.last(h)


class Sequence(nn.Module):
    """A Linear on three tokens an example, a norm, and a frozen layer with a buffer."""

    def __init__(self, input_dim: int, num_outputs: int) -> None:
        super().__init__()
        self.token, self.norm = nn.Linear(input_dim // 3, 4), nn.LayerNorm(4)
        self.kept, self.last = nn.Linear(12, 6), nn.Linear(6, num_outputs)
        self.kept.requires_grad_(False)
        self.register_buffer("shift", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(torch.tanh(self.token(x.reshape(len(x), 3, -1))))
        return self.last(torch.tanh(self.kept(tokens.flatten(1))) + self.shift)


def small_cnn(input_dim: int, num_outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 3)),
        nn.Conv2d(1, 4, 2),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, num_outputs),
    )


def perceptron(input_dim: int, num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(input_dim, 5), nn.Tanh(), nn.Linear(5, num_outputs, bias=False))


def shard(model: Any, n: int = 7, d: int = 9) -> tuple[ModuleGradients, np.ndarray]:
    params = port.start(model, d, np.random.default_rng(1))
    labels: np.ndarray = {
        "logistic": RNG.choice([-1.0, 1.0], n),
        "softmax": RNG.integers(0, max(2, model.num_outputs), n).astype(float),
    }.get(model.loss, RNG.normal(size=n))
    features = RNG.normal(size=(n, d)) * 0.3
    site = port.gradients(
        model, frozen=params.frozen, features=features, labels=labels, device="cpu"
    )
    assert isinstance(site, ModuleGradients)
    return site, params.trainable


def written_out(site: ModuleGradients, params: np.ndarray) -> np.ndarray:
    tensors = unflatten(params, trainable_layout(site._module), device="cpu")

    def loss(some: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return losses_of(site.model, functional_call(site._module, some, (x[None],)), y[None])[0]

    x, y = torch.tensor(site.features), torch.tensor(site.labels)
    found = vmap(grad(loss), in_dims=(None, 0, 0))(tensors, x, y)
    return torch.cat([found[name].flatten(1) for name in tensors], dim=1).numpy()


def outer(block: GradientBlock) -> np.ndarray:
    product: np.ndarray = np.einsum("ir,is->irs", block.left, block.right)
    return product.reshape(len(block.left), -1)


@pytest.mark.parametrize(
    ("settings"),
    [
        {"num_outputs": 1, "loss": "logistic"},
        {"num_outputs": 3, "loss": "softmax"},
        {"num_outputs": 1, "loss": "squared"},
        {"num_outputs": 1, "loss": "huber", "huber_delta": 0.1},
    ],
)
@pytest.mark.parametrize(
    ("factory", "factored"),
    [
        (perceptron, ("0", "2")),
        (Shared, ("first", "last")),
        (Sequence, ("last",)),
        (small_cnn, ("5",)),
    ],
)
def test_blocks_equal_vmap_grad_and_only_what_is_exact_is_factored(
    user: Any, factory: Any, factored: tuple[str, ...], settings: dict[str, Any]
) -> None:
    site, params = shard(user(factory, **settings))
    blocks = site.blocks(params, np.arange(7))
    ours = np.concatenate([outer(block) for block in blocks], axis=1)
    np.testing.assert_allclose(ours, written_out(site, params), rtol=0, atol=1e-12)
    assert site._factored == factored
    assert ours.shape[1] == site.num_params == len(params)


def test_the_perceptron_and_the_cnn_have_the_published_sizes() -> None:
    mlp, cnn = MLP(num_outputs=10, loss="softmax"), CNN(num_outputs=10, loss="softmax")
    for model, dim, size in ((mlp, 784, 795_010), (cnn, 3072, 582_346)):
        params = port.start(model, dim, np.random.default_rng(0))
        assert (len(params.trainable), len(params.frozen)) == (size, 0)
        layout = port.layout(model, dim)
        assert sum(int(np.prod(shape)) for _, shape in layout) == size


def test_the_cnn_s_blocks_equal_vmap_grad_and_its_memory_is_bounded() -> None:
    site, params = shard(CNN(num_outputs=10, loss="softmax"), n=3, d=3072)
    ours = np.concatenate([outer(b) for b in site.blocks(params, np.arange(3))], axis=1)
    np.testing.assert_allclose(ours, written_out(site, params), rtol=0, atol=1e-12)
    assert site.rows_at_once is not None
    assert 1 < site.rows_at_once * 8 * len(params) < 2**29


def test_the_perceptron_of_the_simulation_is_the_product_s() -> None:
    from simulations.macadam_mnist.mnist import Digits
    from simulations.macadam_mnist.perceptron import Perceptron

    fast, classes = Perceptron(), RNG.integers(0, 10, 4)
    features = RNG.random((4, 784))
    params = fast.start(np.random.default_rng(0))
    site = port.gradients(
        MLP(num_outputs=10, loss="softmax"),
        frozen=np.zeros(0),
        features=features,
        labels=classes.astype(float),
        device="cpu",
    )
    ours = fast.blocks(params, Digits(features=features, classes=classes))
    theirs = site.blocks(params, np.arange(4))
    for clip in (1e9, 0.1):
        np.testing.assert_allclose(
            clip_and_sum(ours, l2_clip_norm=clip).value,
            clip_and_sum(theirs, l2_clip_norm=clip).value,
            atol=1e-12,
        )


def test_frozen_parameters_and_buffers_stay_home(user: Any) -> None:
    model = user(Sequence)
    params = port.start(model, 9, np.random.default_rng(1))
    names = [name for name, _ in port.layout(model, 9)]
    assert not any(name.startswith(("kept", "shift")) for name in names)
    assert len(params.frozen) == 12 * 6 + 6 + 6
    module = seeded_module(model, 9, 0)
    scores = port.decisions(model, params.trainable, params.frozen, RNG.normal(size=(5, 9)))
    assert scores.shape == (5,)
    assert sum(p.numel() for p in module.parameters() if p.requires_grad) == len(params.trainable)


def test_an_empty_batch_has_empty_blocks(user: Any) -> None:
    site, params = shard(user(small_cnn))
    total = clip_and_sum(site.blocks(params, np.zeros(0, np.intp)), l2_clip_norm=1.0)
    np.testing.assert_array_equal(total.value, np.zeros(len(params)))


class Centered(nn.Module):
    """A mixer of no known type: it subtracts the batch's mean."""

    def __init__(self, input_dim: int, num_outputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(input_dim, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x - x.mean(dim=0))


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (
            lambda d, o: nn.Sequential(nn.Linear(d, 4), nn.BatchNorm1d(4), nn.Linear(4, o)),
            r"BatchNorm1d at 1, which mixes.*GroupNorm",
        ),
        (
            lambda d, o: nn.Sequential(
                nn.Unflatten(1, (1, d)),
                nn.InstanceNorm1d(1, track_running_stats=True),
                nn.Flatten(),
                nn.Linear(d, o),
            ),
            "InstanceNorm1d",
        ),
        (Centered, r"mixes examples.*GroupNorm"),
        (lambda d, o: nn.Linear(d, o + 1), r"expected the module to map \(3, 9\) to \(3, 1\)"),
        (lambda d, o: nn.Linear(d, o).requires_grad_(False), "nothing to train"),
        (lambda d, o: "no module", r"torch\.nn\.Module, got str"),
    ],
)
def test_a_module_that_mixes_examples_is_refused_with_the_way_out(
    user: Any, factory: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        port.start(user(factory), 9, np.random.default_rng(0))


def test_dropout_does_not_mix_and_the_arithmetic_has_none(user: Any) -> None:
    model = user(lambda d, o: nn.Sequential(nn.Linear(d, 6), nn.Dropout(0.5), nn.Linear(6, o)))
    site, params = shard(model)
    once, again = (site.blocks(params, np.arange(7)) for _ in range(2))
    for one, two in zip(once, again, strict=True):
        np.testing.assert_array_equal(one.left, two.left)


def test_a_name_in_a_configuration_runs_no_code_without_the_local_user_s_consent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile_code.py").write_text("open('ran', 'w')\ndef build(d, o): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = UserModule(factory="hostile_code:build")
    assert build(to_config(model)) == model
    for consent in (None, "", "hostile", "hostile_code_too"):
        if consent is None:
            monkeypatch.delenv("DPFED_KAN_MODULES", raising=False)
        else:
            monkeypatch.setenv("DPFED_KAN_MODULES", consent)
        with pytest.raises(ValueError, match="DPFED_KAN_MODULES=hostile_code in the environment"):
            port.start(model, 3, np.random.default_rng(0))
    assert not (tmp_path / "ran").exists()
    assert "hostile_code" not in sys.modules


def test_initial_parameters_come_from_the_stream_and_torch_s_own_generator_is_left_alone() -> None:
    model, before = MLP(hidden_widths=(3,)), torch.random.get_rng_state()
    one, same, other = (
        port.start(model, 4, np.random.default_rng(seed)).trainable for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("rule", ["sgd.ProjectedSGD", "macadam.DPMacAdam"])
def test_a_torch_module_is_trained_and_resumed_bit_for_bit(
    tmp_path: Path, experiment: Callable[..., Any], rule: str
) -> None:
    changes = {
        "model": {"_target_": "dpfed_kan.models.spec.MLP", "hidden_widths": [4]},
        "update": {"_target_": f"dpfed_kan.update.{rule}", "learning_rate": 0.05},
        "num_rounds": 4,
    }
    whole = run(experiment(**changes), tmp_path / "whole")
    run(experiment(**changes), tmp_path / "cut", stop_after=2)
    again = resume(tmp_path / "cut")
    ours, theirs = whole.directory.load_checkpoint(), again.directory.load_checkpoint()
    assert ours is not None
    assert theirs is not None
    np.testing.assert_array_equal(ours.params, theirs.params)


_PEAK = """
import resource
import numpy as np
from dpfed_kan.models import port
from dpfed_kan.models.spec import MLP
from dpfed_kan.privacy.transformed_clipping import clip_and_sum_transformed
from dpfed_kan.privacy.mechanism import Release, ReleaseEvent
from dpfed_kan.update.macadam_bc import DPMacAdamBC
model, rng = MLP(num_outputs=10, loss="softmax"), np.random.default_rng(0)
params = port.start(model, 784, rng)
site = port.gradients(model, frozen=params.frozen, features=rng.random((256, 784)),
                      labels=rng.integers(0, 10, 256).astype(float), device="cpu")
rule = DPMacAdamBC(learning_rate=1e-3)
state = rule.start(params.trainable)
event = ReleaseEvent(round_index=0, l2_sensitivity=1.0, noise_multiplier=1.0, correlation=0.0,
                     column_normalized=False, release_sha256="")
for _ in range(2):
    blocks = site.blocks(state.params, np.arange(256))
    total = clip_and_sum_transformed(blocks, transform=state.transform, l2_clip_norm=1.0)
    noisy = total.value + rng.standard_normal(len(total.value))
    state = rule.step(state, Release(value=noisy, event=event, noise_std=1.0), batch_size=256.0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


def test_the_peak_memory_of_a_step_at_795010_parameters_is_below_three_gib() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PEAK],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    print(f"peak {float(done.stdout):.2f} GiB")
    assert float(done.stdout) < 3.0
