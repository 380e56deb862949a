"""The arrows of the house: imports point down, siblings never meet."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "dpfed_kan"
TOP = {
    "assessment", "config", "experiment", "report", "run", "run_directory", "schema_file",
    "server_plan", "planning", "policy_file",
}  # fmt: skip
ALLOWED = {
    # layer: (third-party packages that only it and others listed may import, layers below it)
    "deployment": TOP
    | {"channel", "sites", "data", "federated", "flower", "models", "kan", "update"}
    | {"privacy"},
    "pilot": {"config", "data"},
    "channel": {"federated", "privacy"},
    "flower": {"sites", "federated", "update", "privacy"},
    "sites": {"federated", "data", "privacy"},
    "federated": {"update", "privacy"},
    "update": {"privacy"},
    "data": {"privacy"},
    "models": {"kan", "privacy"},
    "kan": {"privacy"},
    "privacy": set(),
    "page": set(),  # made of report.json alone
}
FENCED = {
    "flwr": {"flower"},
    "ray": {"flower"},
    "grpc": {"channel"},
    "cryptography": {"pilot"},
    "torch": {"kan", "models"},
    "dp_accounting": {"privacy/accounting"},
    "prv_accountant": {"privacy/accounting"},
    "sklearn": {"data", "evaluation.py"},
    "pandas": {"data"},
    "hydra": {"flower_app.py"},
    "omegaconf": {"flower_app.py"},
}
SHARED_MODULES = {"streams", "_validate", "__init__"}
MAX_LINES = 300


def imports(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def violations(path: str, source: str) -> list[str]:
    """What a file below the package, given by its relative path, may not import."""
    found = []
    layer = path.split("/")[0]
    for name in imports(source):
        top, *rest = name.split(".")
        if top in FENCED and not any(path.startswith(home) for home in FENCED[top]):
            found.append(f"{path} imports {top}, which belongs to {sorted(FENCED[top])}")
        if top == "dpfed_kan" and rest and layer in ALLOWED:
            below = ALLOWED[layer] | {layer} | SHARED_MODULES
            if rest[0] not in below:
                found.append(f"{path} imports {name}, which is not below {layer}/")
    return found


def sources() -> list[tuple[str, str]]:
    return [
        (path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


def test_no_import_crosses_a_wall() -> None:
    assert [line for path, source in sources() for line in violations(path, source)] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("federated/server.py", "import torch"),
        ("federated/server.py", "from flwr.app import Message"),
        ("privacy/noising.py", "import torch.nn as nn"),
        ("privacy/noising.py", "def f():\n    from dpfed_kan.federated.server import Server"),
        ("run.py", "import ray"),
        ("kan/model.py", "from dpfed_kan.data.records import Records"),
        ("data/records.py", "from dpfed_kan.kan import TwoLayerKAN"),
        ("privacy/calibration.py", "import dp_accounting"),
        ("run.py", "from omegaconf import OmegaConf"),
        ("update/sgd.py", "from dpfed_kan.flower import grid"),
        ("streams.py", "from flwr.app import Array"),
        ("kan/model.py", "from dpfed_kan.models.spec import MLP"),
        ("models/port.py", "from dpfed_kan.federated.site import Site"),
        ("flower/exchange.py", "from dpfed_kan.channel.server import ChannelServer"),
        ("channel/server.py", "from dpfed_kan.flower.records import WireError"),
        ("federated/site.py", "from dpfed_kan.deployment.site import open_site"),
        ("deployment/training.py", "import grpc"),
        ("pilot/processes.py", "from flwr.app import Message"),
        ("sites/guard.py", "from flwr.app import Message"),
        ("sites/plan.py", "from dpfed_kan.experiment import Experiment"),
        ("federated/site.py", "from dpfed_kan.sites.ledger import SiteLedger"),
        ("page/page.py", "from dpfed_kan.run import Run"),
    ],
)
def test_a_planted_violation_is_found(path: str, source: str) -> None:
    assert violations(path, source) != []


def test_every_module_is_one_idea_long() -> None:
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "simulations").rglob("*.py")]
    long = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in files
    }
    assert {name: lines for name, lines in long.items() if lines > MAX_LINES} == {}


def test_no_file_names_a_path_of_a_machine() -> None:
    own = Path(__file__).name
    for path in [*ROOT.glob("[!.]*.*"), *(ROOT / "conf").rglob("*.yaml"), *ROOT.rglob("*.py")]:
        if path.is_file() and path.name != own and ".venv" not in path.parts:
            text = path.read_text(encoding="utf-8", errors="ignore")
            for prefix in (f"/{name}/" for name in ("root", "work")):
                assert prefix not in text, f"{path.relative_to(ROOT)} holds {prefix}"
