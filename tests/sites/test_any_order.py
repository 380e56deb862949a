"""Whatever happens in whatever order: all that left is paid for, and nothing beyond the budget."""

import math
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dpfed_kan.privacy.accounting.gaussian import gaussian_epsilon
from dpfed_kan.privacy.sampling import FullBatch
from dpfed_kan.sites.heads import LedgerError
from dpfed_kan.sites.policy import PlanRefused
from dpfed_kan.sites.verifying import verify
from tests.sites.sitekit import DELTA, data_set, open_ledger, plan, policy, reserve

ROUNDS = 16
BUDGET = policy(budget_epsilon=1.0, budget_delta=6.5 * DELTA)
PLANS = {size: plan(size, FullBatch(), num_rounds=ROUNDS) for size in (0.15, 0.3, 0.8)}
OVER = data_set()


class Site(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.ledger = open_ledger(self.directory)
        self.left: dict[str, int] = {}  # rounds up to the last reply that left
        self.size: dict[str, float] = {}
        self.closed: set[str] = set()

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.ledger.chain.close()
            shutil.rmtree(self.directory)

    @rule(size=st.sampled_from(sorted(PLANS)))
    def reserve(self, size: float) -> None:
        run = f"run {len(self.size)}"
        try:
            reserve(self.ledger, run, PLANS[size], under=BUDGET, over=OVER)
        except PlanRefused:
            return
        self.size[run], self.left[run] = size, 0

    @precondition(lambda self: self.size)
    @rule(data=st.data(), skipped=st.integers(0, 3), again=st.booleans())
    def answer(self, data: st.DataObject, skipped: int, again: bool) -> None:
        run = data.draw(st.sampled_from(sorted(self.size)))
        t = self.left[run] + skipped - again
        try:
            self.ledger.commit(run, t, broadcast=f"b{t}", reply=f"r{t}")
        except LedgerError:
            assert run in self.closed or not 0 <= t < ROUNDS or again
            return
        assert run not in self.closed
        self.left[run] = max(self.left[run], t + 1)  # the reply leaves

    @precondition(lambda self: self.size)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(sorted(self.size)))
        self.ledger.close_run(run)
        self.closed.add(run)

    @rule(between_files=st.booleans())
    def crash(self, between_files: bool) -> None:
        self.ledger.chain.close()
        heads = self.directory / "site.ledger.heads"
        if between_files:
            heads.write_text("".join(heads.read_text().splitlines(keepends=True)[:-1]))
        self.ledger = open_ledger(self.directory)

    @invariant()
    def what_left_is_paid_for_and_the_budget_is_kept(self) -> None:
        if not hasattr(self, "ledger"):
            return
        found = self.ledger.spent(OVER, policy=BUDGET)
        assert found.epsilon <= 1.0 + 1e-9
        assert found.delta <= 6.5 * DELTA * (1 + 1e-9)
        square, added = 0.0, 0.0
        for run, rounds in self.left.items():
            kappa = PLANS[self.size[run]].mechanism.noise_multiplier
            square += rounds / kappa**2
            mu = math.sqrt(rounds) / kappa
            added += gaussian_epsilon(delta=DELTA, mu=mu) if rounds else 0.0
        assert found.epsilon >= added * (1 - 1e-9)  # each run's own account, added up
        if square:  # and the truth: independent Gaussian rounds are one Gaussian
            truth = gaussian_epsilon(delta=found.delta, mu=math.sqrt(square))
            assert found.epsilon >= truth * (1 - 1e-9)
        assert verify(self.ledger.chain).bad_row is None


Site.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestSite = Site.TestCase
