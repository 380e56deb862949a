"""A real study behind real ledgers: the same model, and each book agrees with the server's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed_kan.config import build
from dpfed_kan.experiment import Experiment
from dpfed_kan.federated.server import Exchange, Server, rounds
from dpfed_kan.federated.site import Broadcast, Reply
from dpfed_kan.planning import plan_of
from dpfed_kan.privacy.joint_sampling import total_batch_size
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.sites.data_set import SiteKey, identify
from dpfed_kan.sites.guard import GuardedSite, open_site
from dpfed_kan.sites.ledger import SiteLedger
from dpfed_kan.sites.plan import Plan
from dpfed_kan.sites.policy import PlanRefused, Policy
from tests.test_config import composed

SIZES = ("data=synthetic", "data.source.num_records=300", "num_rounds=6", "seed=3")
CASES = {
    "correlated": (),
    "batches of each site": ("sampling=poisson_batch", "sampling.site_batch_size=20"),
    "fixed size": ("sampling=fixed_size", "sampling.batch_size=60"),
    "bins": ("sampling=balls_in_bins", "sampling.num_bins=3"),
    "in a transform": ("update=macadam",),
}


class Study:
    def __init__(self, *overrides: str) -> None:
        self.experiment: Experiment = build(composed(*SIZES, *overrides))
        self.streams = self.experiment.streams()
        self.sites = SimulatedSites(self.experiment, self.streams)
        self.sizes = self.sites.num_records
        self.mechanism = self.experiment.mechanism(self.sizes)
        self.plan: Plan = plan_of(
            self.experiment,
            mechanism=self.mechanism,
            num_records=self.sizes,
            num_params=len(self.sites.params.trainable),
            like=self.sites.federation.held_out,
            metrics_leave=False,
        )

    def site(self, name: str) -> Any:
        return self.sites(self.sites.settings, sorted(self.sizes).index(name))

    def guarded(self, name: str, directory: Path, run: str, **rules: Any) -> GuardedSite:
        (directory / name).mkdir(parents=True, exist_ok=True)
        key_path = directory / name / "key"
        key = SiteKey.load(key_path) if key_path.exists() else SiteKey.create(key_path)
        given: dict[str, Any] = {
            "budget_epsilon": 2.5,
            "budget_delta": 1e-2,
            "min_records": 20,
            "allowed_plans": (self.plan.sha256,),
            "privacy_unit": "record",
            "max_sampling_prob": 0.5,
            "metrics_may_leave": False,
            "allow_seeded_streams": True,
        }
        return open_site(
            self.site(name),
            run=run,
            plan=self.plan,
            policy=Policy(**given | rules),
            ledger=SiteLedger(directory / name / "ledger", key=key),
            data_set=identify(self.sites.federation.shards[name], key=key),
        )

    def train(self, exchange: Exchange) -> tuple[Any, Ledger]:
        server = Server(
            mechanism=self.mechanism,
            update_rule=self.experiment.update,
            num_records=self.sizes,
            batch_size=total_batch_size(self.mechanism.sampling, list(self.sizes.values())),
        )
        ledger = Ledger(mechanism=self.mechanism, num_records=self.sizes)
        state = self.experiment.update.start(self.sites.params.trainable, num_rounds=6)
        total = server.over(exchange)
        *_, last = rounds(server, state, sum_over_sites=total, streams=self.streams, ledger=ledger)
        return last.params, ledger


def asking(sites: dict[str, Any]) -> Exchange:
    def exchange(broadcast: Broadcast) -> Sequence[Reply]:
        return [sites[name].work(broadcast) for name in sorted(sites)]

    return exchange


@pytest.mark.parametrize("case", CASES)
def test_guards_change_no_bit_and_charge_what_the_server_says(tmp_path: Path, case: str) -> None:
    study = Study(*CASES[case])
    bare, _ = study.train(asking({name: study.site(name) for name in study.sizes}))
    guarded = {name: study.guarded(name, tmp_path, "one") for name in study.sizes}
    params, ledger = study.train(asking(guarded))
    assert params.tobytes() == bare.tobytes()
    told = ledger.spent_per_site(delta=study.experiment.privacy.target_delta)
    for name, site in guarded.items():
        entry = site.close()
        assert entry.last_round == 5
        assert entry.charge.epsilon == pytest.approx(told.sites[name].epsilon, rel=1e-9)
        with pytest.raises(PlanRefused) as no:  # of a budget of 2.5 about 2 are spent
            study.guarded(name, tmp_path, "two")
        assert no.value.rule == "budget_epsilon"


def test_one_site_that_refuses_is_heard_before_any_site_works(tmp_path: Path) -> None:
    study = Study()
    names = sorted(study.sizes)
    study.guarded(names[0], tmp_path, "one")
    with pytest.raises(PlanRefused, match="max_sampling_prob"):
        study.guarded(names[1], tmp_path, "one", max_sampling_prob=0.1)
    assert np.isfinite(study.guarded(names[0], tmp_path, "one").close().charge.epsilon)
