import json
import subprocess
import sys
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from dpfed_kan.config import ConfigError, build, drop_interpolated, to_config
from dpfed_kan.data.federation import IID
from dpfed_kan.data.partition import Dirichlet, Natural, Shards
from tests.conftest import ROOT

GROUPS = [
    (group.name, option.stem)
    for group in sorted((ROOT / "conf").iterdir())
    if group.is_dir()
    for option in sorted(group.glob("*.yaml"))
]
LABEL = "{name: y, positive: [1], negative: [0]}"
REQUIRED = {  # what only the user knows
    "csv": (
        "data.source.files=[{site: a, path: a.csv}]",
        f"data.source.schema={{columns: [{{name: x, type: ordinal, categories: [0, 1]}}], "
        f"label: {LABEL}}}",
    ),
    "at_sites": (
        "data.source.sites=[a, b]",
        f"data.source.schema={{columns: [{{name: x, type: ordinal, categories: [0, 1]}}], "
        f"label: {LABEL}}}",
    ),
    "feature_skew": ("partition.feature=x",),
}


def composed(*overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", overrides=list(overrides))
    settings = OmegaConf.to_container(config, resolve=True)
    assert isinstance(settings, dict)
    del settings["resume"]
    drop_interpolated(settings)
    return settings


def problems(config: Any) -> str:
    with pytest.raises(ConfigError) as error:
        build(config)
    return str(error.value)


@pytest.mark.parametrize(("group", "option"), GROUPS)
def test_every_yaml_builds_and_comes_back_equal(group: str, option: str) -> None:
    added = "+" if group == "experiment" else ""  # an overlay, in no default
    experiment = build(composed(f"{added}{group}={option}", *REQUIRED.get(option, ())))
    assert build(to_config(experiment)) == experiment
    assert build(yaml.safe_load(yaml.safe_dump(to_config(experiment)))) == experiment


def test_a_partition_is_chosen_like_any_other_group() -> None:
    data = build(composed("data=mnist", "partition=dirichlet", "partition.concentration=.3")).data
    assert data.partition == Dirichlet(num_sites=4, concentration=0.3)
    assert type(data.source).__name__ == "MNIST"


@pytest.mark.parametrize("data", [option for group, option in GROUPS if group == "data"])
def test_data_with_natural_sites_keep_them_unless_told_otherwise(data: str) -> None:
    given = (f"data={data}", *REQUIRED.get(data, ()))
    natural = data in ("heart", "ercp", "csv", "at_sites")
    assert build(composed(*given)).data.partition == (Natural() if natural else IID(num_sites=4))
    assert build(composed(*given, "partition=shards")).data.partition == Shards()


@pytest.mark.parametrize("number", ["1e-5", "1E-05", "1.0e-5", "0.00001"])
def test_a_number_in_any_notation_is_a_number(number: str) -> None:
    for text in (number, f"'{number}'"):
        experiment = build(composed(f"privacy.target_delta={text}"))
        assert experiment.privacy.target_delta == 1e-5
        assert isinstance(experiment.privacy.target_delta, float)


@pytest.mark.parametrize("text", ["20", "'20'", "2e1", "20.0"])
def test_a_whole_number_in_any_notation_is_an_integer(text: str) -> None:
    num_rounds = build(composed(f"num_rounds={text}")).num_rounds
    assert (num_rounds, type(num_rounds)) == (20, int)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("privacy.target_epsilon=None", "privacy.target_epsilon: expected a number or null"),
        ("num_rounds=2.5", "num_rounds: expected an integer"),
        ("num_rounds=[16,8]", "num_rounds: expected an integer"),
        ("num_rounds=true", "num_rounds: expected an integer"),
        ("model.activation=relu", "model.activation: expected one of tanh, sigmoid"),
        ("model.train_second_layer=1", "model.train_second_layer: expected true or false"),
        ("sampling._target_=os.system", "expected _target_ to name a dataclass of dpfed_kan"),
        ("sampling._target_=dpfed_kan.config.build", "expected _target_ to name a dataclass"),
        ("sampling._target_=dpfed_kan.nowhere.X", "expected _target_ to name a dataclass"),
        ("+noise.corelation=0.5", "did you mean noise.correlation?"),
        ("++noise.corelation=0.5", "did you mean noise.correlation?"),
        ("+privacy.l2_clip_nrom=0.5", "did you mean privacy.l2_clip_norm?"),
    ],
)
def test_a_wrong_value_or_key_is_named(override: str, said: str) -> None:
    assert said in problems(composed(override))


def test_a_node_of_the_wrong_kind_is_refused() -> None:
    config = composed()
    config["sampling"] = config["noise"] | {"noise_multiplier": 1.0}
    assert "or FullBatch, got GaussianNoise" in problems(config)


def test_all_problems_are_told_at_once() -> None:
    config = composed("noise.correlation=1.5", "sampling.sampling_prob=7", "num_rounds=x")
    del config["privacy"]["target_delta"]
    config["model"]["hidden_width"] = "???"
    said = problems(config).splitlines()
    assert len(said) == 5
    for name in (
        "noise: expected correlation=1.5 in [0, 1)",
        "sampling: expected sampling_prob=7.0 in (0, 1]",
        "num_rounds: expected an integer",
        "privacy.target_delta: a value is required",
        "model.hidden_width: a value is required",
    ):
        assert any(name in line for line in said), name


def test_the_default_asks_for_no_seed_and_names_its_target() -> None:
    experiment = build(composed())
    assert experiment.seed is None
    assert 0 < experiment.privacy.target_epsilon <= 3
    assert experiment.privacy.target_delta < 1 / 455


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["privacy.target_epsilon=null"], "undetermined"),
        (["noise.noise_multiplier=1"], "determined twice"),
        (["privacy.neighboring_relation=add_remove"], "use zero_out (the same ε, sizes public)"),
    ],
)
def test_what_a_run_cannot_promise_is_refused(overrides: list[str], said: str) -> None:
    assert said in problems(composed(*overrides))


def test_a_list_of_nodes_is_built_by_the_type_that_each_names() -> None:
    files = [{"site": "a", "path": "a.csv"}, {"path": "b.csv", "sight": "b"}]
    schema = {
        "columns": [{"type": "numeric", "name": "x", "low": "0", "high": "1e1"}],
        "label": {"name": "y", "positive": ["1"], "negative": [0]},
    }
    csv = {"_target_": "dpfed_kan.data.files.CSVFiles", "root": ".", "schema": schema}
    assert "files[1].sight: unknown setting; did you mean files[1].site?" in problems(
        csv | {"files": files}
    )
    built = build(csv | {"files": files[:1]})
    assert (built.files[0].site, built.schema.columns[0].high) == ("a", 10.0)
    assert built.schema.label.positive == ("1",)
    assert "expected type to be one of numeric, ordinal, categorical" in problems(
        csv | {"files": files[:1], "schema": schema | {"columns": [{"name": "x"}]}}
    )


def test_reading_a_configuration_loads_no_engine() -> None:
    code = (
        "import json, sys; from dpfed_kan.config import build; build(json.loads(sys.argv[1])); "
        "print(sorted({'torch', 'flwr', 'ray', 'scipy', 'sklearn'} & set(sys.modules)))"
    )
    for model in ("kan", "mlp"):
        loss = ["model.loss=logistic", "model.num_outputs=1"] if model == "mlp" else []
        config = json.dumps(composed(f"model={model}", *loss))
        done = subprocess.run(
            [sys.executable, "-c", code, config], cwd=ROOT, capture_output=True, text=True
        )
        assert done.stdout.strip() == "[]", done.stderr
