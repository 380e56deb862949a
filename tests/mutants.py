"""Planted privacy bugs: each is a small edit that some test must catch.

python -m tests.mutants            # all of them
python -m tests.mutants clipping   # those whose name holds a word
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS_FAILED = 1  # pytest's exit code; any other non-zero code is no catch
BROKEN = 99  # pytest itself
TIMEOUT = 300
_FORKED = multiprocessing.get_context("forkserver")  # libraries are imported once, not 137 times
_FORKED.set_forkserver_preload(
    [
        "flwr.app",
        "numpy",
        "omegaconf",
        "pytest",
        "scipy.optimize",
        "scipy.stats",
        "sklearn",
        "torch",
    ]
)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    name: str
    path: str
    old: str
    new: str
    tests: str


MUTANTS = (
    Mutant(
        name="no clipping",
        path="dpfed_kan/privacy/clipping.py",
        old="np.minimum(1.0, l2_clip_norm / norms)",
        new="np.minimum(1.0, np.inf / norms)",
        tests="tests/privacy/test_clipping.py",
    ),
    Mutant(
        name="NaN passes",
        path="dpfed_kan/privacy/clipping.py",
        old="np.where(finite, factors, 0.0)",
        new="np.where(finite, factors, 1.0)",
        tests="tests/privacy/test_clipping.py",
    ),
    Mutant(
        name="noise std without sensitivity",
        path="dpfed_kan/privacy/mechanism.py",
        old="            noise *= total.l2_sensitivity\n",
        new="",
        tests="tests/privacy/test_mechanism.py",
    ),
    Mutant(
        name="noise std without sensitivity, seen from the ledger",
        path="dpfed_kan/privacy/mechanism.py",
        old="            noise *= total.l2_sensitivity\n",
        new="",
        tests="tests/system/test_ledger_tells_the_truth.py",
    ),
    Mutant(
        name="noise reused across rounds",
        path="dpfed_kan/privacy/noising.py",
        old='rng = streams.generator("noise", round_index=round_index)',
        new='rng = streams.generator("noise", round_index=0)',
        tests="tests/privacy/test_noising.py",
    ),
    Mutant(
        name="divided by the batch that came",
        path="dpfed_kan/federated/site.py",
        old="value=total)",
        new="value=total / max(1, len(drawn)))",
        tests="tests/system/test_ledger_tells_the_truth.py",
    ),
    Mutant(
        name="fixed-size instead of Poisson",
        path="dpfed_kan/privacy/sampling.py",
        old="gaps = np.minimum(rng.geometric(self.sampling_prob, size=size), trials + 1)",
        new="gaps = np.full(size, round(1 / self.sampling_prob))",
        tests="tests/system/test_ledger_tells_the_truth.py",
    ),
    Mutant(
        name="recorded rate halved",
        path="dpfed_kan/privacy/ledger.py",
        old='return "infinity" if value == float("inf") else value',
        new="return value / 2 if value == 0.2 else value",
        tests="tests/system/test_ledger_tells_the_truth.py",
    ),
    Mutant(
        name="release not recorded",
        path="dpfed_kan/federated/server.py",
        old="        ledger.record(release.event)\n",
        new="",
        tests="tests/federated/test_server.py",
    ),
    Mutant(
        name="unclipped block",
        path="dpfed_kan/privacy/clipping.py",
        old="    for block in blocks:\n        left =",
        new="    for block in blocks[:1]:\n        left =",
        tests="tests/privacy/test_clipping.py",
    ),
    Mutant(
        name="lambda forgotten in the noise",
        path="dpfed_kan/privacy/noising.py",
        old="current - correlation * previous",
        new="current",
        tests="tests/system/test_ledger_tells_the_truth.py",
    ),
    Mutant(
        name="previous noise not regenerated but drawn anew",
        path="dpfed_kan/privacy/noising.py",
        old="streams, round_index=round_index - 1, dimension=dimension)",
        new="streams, round_index=round_index + 10**6, dimension=dimension)",
        tests="tests/federated/test_algorithm1.py",
    ),
    Mutant(
        name="round beyond the horizon",
        path="dpfed_kan/privacy/mechanism.py",
        old="if not 0 <= round_index < self.num_rounds:",
        new="if round_index < 0:",
        tests="tests/privacy/test_mechanism.py",
    ),
    Mutant(
        name="second sum under the same noise",
        path="dpfed_kan/privacy/ledger.py",
        old="if event != self.events[event.round_index]:",
        new="if False:",
        tests="tests/system/test_resume.py -k other_data",
    ),
    Mutant(
        name="streams shared by the sites",
        path="dpfed_kan/streams.py",
        old='_digest(self.key, "site", site, size=_KEY_BYTES)',
        new='_digest(self.key, "site", "one", size=_KEY_BYTES)',
        tests="tests/test_streams.py",
    ),
    Mutant(
        name="calibration overshoots",
        path="dpfed_kan/privacy/calibration.py",
        old="    while excess(log_multiplier) > 0:",
        new="    log_multiplier -= 1e-4\n    while False:",
        tests="tests/privacy/accounting",
    ),
    Mutant(
        name="estimate instead of upper bound",
        path="dpfed_kan/privacy/accounting/poisson.py",
        old="        sampling_prob=sampling_prob,\n        value_disc",
        new="        sampling_prob=sampling_prob, pessimistic_estimate=False,\n        value_disc",
        tests="tests/privacy/accounting",
    ),
    Mutant(
        name="accounted rate halved",
        path="dpfed_kan/privacy/accounting/poisson.py",
        old="        sampling_prob=sampling_prob,\n        value_disc",
        new="        sampling_prob=sampling_prob / 2,\n        value_disc",
        tests="tests/privacy/accounting",
    ),
    Mutant(
        name="a patient's records clipped one by one",
        path="dpfed_kan/federated/site.py",
        old="groups = None if patients is None else patients[indices]",
        new="groups = None",
        tests="tests/privacy/test_patient_clipping.py",
    ),
    Mutant(
        name="a patient's records clipped one by one in a transform",
        path="dpfed_kan/federated/site.py",
        old="            groups=groups,\n",
        new="",
        tests="tests/federated/test_transform.py",
    ),
    Mutant(
        name="a patient's norm from single records",
        path="dpfed_kan/privacy/clipping.py",
        old="squares[rows] = (np.maximum(total, 0.0) + slack * largest)[:, None]",
        new="squares[rows] = singles[rows]",
        tests="tests/privacy/test_patient_clipping.py",
    ),
    Mutant(
        name="no slack where a patient's gradients cancel",
        path="dpfed_kan/privacy/clipping.py",
        old="slack * largest",
        new="0.0 * largest",
        tests="tests/privacy/test_patient_clipping.py",
    ),
    Mutant(
        name="a patient's records drawn one by one",
        path="dpfed_kan/federated/site.py",
        old="np.flatnonzero(np.isin(patients, units))",
        new="units",
        tests="tests/privacy/test_patient_clipping.py",
    ),
    Mutant(
        name="delta not divided over a patient's sites",
        path="dpfed_kan/privacy/accounting/several_sites.py",
        old="factor = math.fsum(math.exp(k * found.epsilon) for k in range(sites))",
        new="factor = 1.0",
        tests="tests/privacy/test_patient_clipping.py",
    ),
    Mutant(
        name="a patient at several sites passes",
        path="dpfed_kan/simulated_sites.py",
        old="if found > allowed:",
        new="if found > 99:",
        tests="tests/system/test_patients.py",
    ),
    Mutant(
        name="the sites of a patient left out of the account",
        path="dpfed_kan/experiment.py",
        old="            sites_per_unit=self.privacy.sites_per_patient,\n",
        new="",
        tests="tests/system/test_patients.py",
    ),
    Mutant(
        name="train and test share a patient",
        path="dpfed_kan/data/federation.py",
        old="    if records.patients is None:\n        held_out[",
        new="    if True:\n        held_out[",
        tests="tests/data/test_partition.py",
    ),
    Mutant(
        name="a small site passes",
        path="dpfed_kan/data/federation.py",
        old="if brings < self.min_records or not len(shard):",
        new="if not len(shard):",
        tests="tests/data/test_partition.py",
    ),
    Mutant(
        name="the plan shows the best site's ε",
        path="dpfed_kan/training.py",
        old="smallest = min(server.num_records,",
        new="smallest = max(server.num_records,",
        tests="tests/test_planning.py",
    ),
    Mutant(
        name="an error quotes the label's cells",
        path="dpfed_kan/data/reader.py",
        old='"not a code of any class (declare it)"',
        new='f"not a code of any class (declare it): {cells}"',
        tests="tests/data/test_classes.py",
    ),
    Mutant(
        name="an error quotes a cell",
        path="dpfed_kan/data/reader.py",
        old='f"column {place + 1} of the file{after}',
        new='f"column {header[place]!r} of the file{after}',
        tests="tests/data/test_any_bytes.py",
    ),
    Mutant(
        name="a private mean fills missing values",
        path="dpfed_kan/data/encoding.py",
        old="    middle = column.low / 2 + column.high / 2",
        new="    middle = float(np.nanmean(values))",
        tests="tests/data/test_reader.py",
    ),
    Mutant(
        name="features longer than one",
        path="dpfed_kan/data/encoding.py",
        old="np.stack(encoded, axis=1) / math.sqrt(len(encoded))",
        new="np.stack(encoded, axis=1)",
        tests="tests/data/test_reader.py",
    ),
    Mutant(
        name="transformed norm without its slack",
        path="dpfed_kan/privacy/transformed_clipping.py",
        old="np.maximum(first - 2.0 * second + third, 0.0) + slack",
        new="np.maximum(first - 2.0 * second + third, 0.0)",
        tests="tests/privacy/test_transformed_clipping.py -k adversarial",
    ),
    Mutant(
        name="transformed sum without its center",
        path="dpfed_kan/privacy/transformed_clipping.py",
        old="@ block.right - total * center)",
        new="@ block.right)",
        tests="tests/privacy/test_transformed_clipping.py",
    ),
    Mutant(
        name="transformed clip of one block only",
        path="dpfed_kan/privacy/transformed_clipping.py",
        old="        first += _row_dots(",
        new="        first = _row_dots(",
        tests="tests/privacy/test_transformed_clipping.py",
    ),
    Mutant(
        name="transform ignored by the site",
        path="dpfed_kan/federated/site.py",
        old="        if broadcast.transform is None:\n            return",
        new="        if True:\n            return",
        tests="tests/federated/test_transform.py",
    ),
    Mutant(
        name="records of a batch differentiated twice",
        path="dpfed_kan/federated/site.py",
        old="drawn[first : first + rows])",
        new="drawn[:rows])",
        tests="tests/federated/test_transform.py",
    ),
    Mutant(
        name="lambda forgotten in the noise that rules subtract",
        path="dpfed_kan/privacy/noising.py",
        old="spread = 1.0 if first else",
        new="spread = 1.0 if True else",
        tests="tests/update/test_update_rules.py",
    ),
    Mutant(
        name="first variance left as 0/0",
        path="dpfed_kan/update/macadam.py",
        old="if num_steps == 1 or bias <= 0.0:",
        new="if False:",
        tests="tests/update/test_update_rules.py",
    ),
    Mutant(
        name="exact bias with the printed limit",
        path="dpfed_kan/update/variance.py",
        old="1.0 - 2.0 * weight +",
        new="1.0 - 1.0 * weight +",
        tests="tests/update/test_update_rules.py -k bias",
    ),
    Mutant(
        name="batch norm let through",
        path="dpfed_kan/models/checking.py",
        old="if isinstance(part, _BatchNorm) or tracks:",
        new="if False:",
        tests="tests/models -k mixes",
    ),
    Mutant(
        name="unknown mixers let through",
        path="dpfed_kan/models/checking.py",
        old="if not torch.allclose(before[1:], after[1:], rtol=1e-9, atol=1e-12):",
        new="if False:",
        tests="tests/models -k mixes",
    ),
    Mutant(
        name="a configuration runs a user's code",
        path="dpfed_kan/models/spec.py",
        old='if name.partition(".")[0] not in allowed:',
        new="if False:",
        tests="tests/models -k consent",
    ),
    Mutant(
        name="a shared layer factored as if called once",
        path="dpfed_kan/models/gradients.py",
        old="if ours and all(_same(ours[key], exact[key]) for key in ours):",
        new="if ours:",
        tests="tests/models -k vmap",
    ),
    Mutant(
        name="one noise for both layers",
        path="dpfed_kan/update/layered_gd.py",
        old="batch_size) * before.scale * release.value",
        new="batch_size) * before.scale.max() * release.value",
        tests="tests/update/test_layered_gd.py",
    ),
    Mutant(
        name="layer bound without the ball of the second layer",
        path="dpfed_kan/kan/lipschitz.py",
        old="steepest * (second_layer_norm + radius)",
        new="0.2 * steepest * (second_layer_norm + radius)",
        tests="tests/update/test_layered_gd.py",
    ),
    Mutant(
        name="Poisson account for fixed-size batches",
        path="dpfed_kan/privacy/accounting/bounds.py",
        old="return _fixed_size_bounds(mechanism, prob",
        new="return _poisson_bounds(mechanism, prob",
        tests="tests/privacy/accounting/test_fixed_size.py",
    ),
    Mutant(
        name="fixed-size at sensitivity 1",
        path="dpfed_kan/privacy/accounting/fixed_size.py",
        old="mu = 2 / noise_multiplier",
        new="mu = 1 / noise_multiplier",
        tests="tests/privacy/accounting/test_fixed_size.py",
    ),
    Mutant(
        name="remove direction only",
        path="dpfed_kan/privacy/accounting/mixture.py",
        old='else ("remove", "add")',
        new='else ("remove",)',
        tests="tests/privacy/accounting/test_against_oracles.py -k both_directions",
    ),
    Mutant(
        name="sensitivity 1 for replace-one, PLD",
        path="dpfed_kan/privacy/accounting/poisson.py",
        old='"replace_one": DpaRelation.REPLACE_ONE',
        new='"replace_one": DpaRelation.REPLACE_SPECIAL',
        tests="tests/privacy/accounting/test_against_oracles.py -k replace_one",
    ),
    Mutant(
        name="sensitivity 1 for replace-one, one Gaussian",
        path="dpfed_kan/privacy/mechanism.py",
        old="return 2 if self.neigh",
        new="return 1 if self.neigh",
        tests="tests/privacy/accounting/test_against_oracles.py -k replacing",
    ),
    Mutant(
        name="sensitivity 1 for replace-one, revealed pattern",
        path="dpfed_kan/privacy/accounting/bounds.py",
        old='factor = 1 if relation == "zero_out" else 2',
        new="factor = 1",
        tests="tests/privacy/accounting/test_contract.py -k replacing",
    ),
    Mutant(
        name="corner of a block dropped",
        path="dpfed_kan/privacy/accounting/patterns.py",
        old="    diagonal[0] = corner\n",
        new="",
        tests="tests/privacy/accounting/test_mixture.py -k block_norms",
    ),
    Mutant(
        name="corner of the Gram matrix dropped",
        path="dpfed_kan/privacy/accounting/balls_in_bins.py",
        old="        gram += encoded.T @ encoded\n    return gram",
        new="        gram += encoded.T @ encoded\n    gram[0, -1] = gram[-1, 0] = 0\n    return gram",  # noqa: E501
        tests="tests/privacy/accounting/test_balls_in_bins.py -k corner",
    ),
    Mutant(
        name="Monte Carlo estimate as the bound",
        path="dpfed_kan/privacy/accounting/bin_monte_carlo.py",
        old="return self.num_samples * divergence >= -math.log(failure_probability)",
        new="return True",
        tests="tests/privacy/accounting/test_bin_monte_carlo.py -k shown_wrongly",
    ),
    Mutant(
        name="rate halved for one site",
        path="dpfed_kan/privacy/sampling.py",
        old="min(1.0, self.site_batch_size / num_records)",
        new="min(1.0, self.site_batch_size / max(num_records, 40))",
        tests="tests/privacy/accounting/test_sites.py",
    ),
    Mutant(
        name="bins drawn anew in every round",
        path="dpfed_kan/federated/site.py",
        old="return self._block(0).of(round_index % sampling.num_bins)",
        new='rng = self.streams.generator("sampling", round_index=round_index)\n'
        "                drawn = sampling.draw_rounds(num_records=size, rng=rng)\n"
        "                return drawn.of(round_index % sampling.num_bins)",
        tests="tests/system/test_ledger_tells_the_truth.py -k bins",
    ),
    Mutant(
        name="a block of rounds drawn again for the next",
        path="dpfed_kan/federated/site.py",
        old='rng = streams.generator("sampling", round_index=index * rounds)',
        new='rng = streams.generator("sampling", round_index=0)',
        tests="tests/federated/test_fused.py -k blocks",
    ),
    Mutant(
        name="the last gap of a round runs into the next site",
        path="dpfed_kan/privacy/sampling.py",
        old="successes[: np.searchsorted(successes, trials)]",
        new="successes[: np.searchsorted(successes, trials - num_records)]",
        tests="tests/privacy/test_sampling.py",
    ),
    Mutant(
        name="fused sites share the first site's stream",
        path="dpfed_kan/simulated_sites.py",
        old="                streams=self._streams.for_site(name),\n                first=first,",
        new="                streams=self._streams.for_site(names[0]),\n                first=first,",  # noqa: E501
        tests="tests/federated/test_fused.py",
    ),
    Mutant(
        name="fused patients clipped one by one",
        path="dpfed_kan/federated/fused.py",
        old="            patients=self.patients,\n",
        new="            patients=None,\n",
        tests="tests/federated/test_fused.py",
    ),
    Mutant(
        name="a round released before it is reserved",
        path="dpfed_kan/privacy/ledger.py",
        old="            self._reserved = min(ahead, self.mechanism.num_rounds)\n",
        new="            self._reserved = min(ahead, self.mechanism.num_rounds)\n            return\n",  # noqa: E501
        tests="tests/privacy/test_ledger.py",
    ),
    Mutant(
        name="rounds reserved by a run that broke off forgotten",
        path="dpfed_kan/privacy/ledger.py",
        old="return max(len(self.events), self._owed)",
        new="return len(self.events)",
        tests="tests/privacy/test_ledger.py",
    ),
    Mutant(
        name="fixed-size counts that are not a global draw",
        path="dpfed_kan/federated/server.py",
        old="return dict(zip(sites, drawn, strict=True))",
        new="return dict.fromkeys(sites, sampling.batch_size // len(sites))",
        tests="tests/system/test_ledger_tells_the_truth.py -k fixed",
    ),
    Mutant(
        name="add/remove promised by a run that publishes sizes",
        path="dpfed_kan/experiment.py",
        old='if self.neighboring_relation == "add_remove":',
        new="if False:",
        tests="tests/test_config.py -k promise",
    ),
    Mutant(
        name="an exception's text leaves the site",
        path="dpfed_kan/flower/client_app.py",
        old="{type_and_place(error)} (partition-id",
        new="{type_and_place(error)} {error} (partition-id",
        tests="tests/flower/test_client_app.py",
    ),
    Mutant(
        name="a reply of another round counts",
        path="dpfed_kan/flower/exchange.py",
        old="if reply.round_index != round_index:",
        new="if False:",
        tests="tests/flower/test_exchange.py",
    ),
    Mutant(
        name="replies are added up in the order in which they come",
        path="dpfed_kan/federated/server.py",
        old="        order = sorted(self.num_records)\n        early",
        new="        replies = list(replies)\n"
        "        order = [reply.site for reply in replies]\n        early",
        tests="tests/federated/test_server.py",
    ),
    Mutant(
        name="a second reply of a site takes the place of the first",
        path="dpfed_kan/flower/exchange.py",
        old="if reply.value.tobytes() != kept.value.tobytes():",
        new="if False:",
        tests="tests/flower/test_exchange.py",
    ),
    Mutant(
        name="a local reply can be written to",
        path="dpfed_kan/flower/local_reply.py",
        old="        reply.value.flags.writeable = False\n",
        new="",
        tests="tests/flower/test_client_app.py",
    ),
    Mutant(
        name="single precision: its rounding is not charged",
        path="dpfed_kan/privacy/single_precision.py",
        old="    return l2_clip_norm / (1.0 + EXCESS)",
        new="    return l2_clip_norm",
        tests="tests/privacy/test_single_precision.py -k moves",
    ),
    Mutant(
        name="single precision: more rows are added up at once than the bound has",
        path="dpfed_kan/privacy/single_precision.py",
        old="    for first in range(0, len(left), ROWS_AT_ONCE):\n"
        "        rows = slice(first, first + ROWS_AT_ONCE)",
        new="    for first in range(0, len(left), 999):\n        rows = slice(first, first + 999)",
        tests="tests/privacy/test_single_precision.py",
    ),
    Mutant(
        name="single precision: rows are taken out, so that others move to other sums",
        path="dpfed_kan/privacy/single_precision.py",
        old="        left = np.where(out[:, None], 0.0, left)\n"
        "        right = np.where(out[:, None], np.float32(0.0), right)\n",
        new="        left, right, factors = left[~out], right[~out], factors[~out]\n",
        tests="tests/privacy/test_single_precision.py",
    ),
    Mutant(
        name="single precision: used where records are not clipped one by one",
        path="dpfed_kan/privacy/clipping.py",
        old="    if groups is not None or len(blocks) > 1:",
        new="    if len(blocks) > 1:",
        tests="tests/privacy/test_single_precision.py",
    ),
    Mutant(
        name="kept lengths of other rows",
        path="dpfed_kan/kan/gradients.py",
        old="self._squared_lengths[indices]",
        new="self._squared_lengths[: len(indices)]",
        tests="tests/privacy/test_single_precision.py",
    ),
    Mutant(
        name="patients at several sites: only this site's rate",
        path="dpfed_kan/privacy/accounting/sites.py",
        old="fewest if mechanism.sites_per_unit > 1 else size",
        new="size",
        tests="tests/privacy/accounting/test_sites.py -k several",
    ),
    Mutant(
        name="patients at several sites: a site charges its own rate only",
        path="dpfed_kan/sites/spending.py",
        old="    if plan.mechanism.sites_per_unit > 1:",
        new="    if False:",
        tests="tests/sites/test_ledger.py -k several_sites",
    ),
    Mutant(
        name="a cyclic order is said to hide a removal",
        path="dpfed_kan/privacy/mechanism.py",
        old='if isinstance(self.sampling, Cyclic) and self.neighboring_relation == "add_remove":',
        new="if False:",
        tests="tests/privacy/test_mechanism.py -k cyclic",
    ),
    Mutant(
        name="runs of records and of patients are composed",
        path="dpfed_kan/privacy/accounting/composition.py",
        old="    if len(units) > 1:",
        new="    if False:",
        tests="tests/privacy/accounting/test_composition.py -k patients",
    ),
    Mutant(
        name="a run that stopped beside another is charged less",
        path="dpfed_kan/sites/entries.py",
        old="answered if alone or answered == 0 else entry.whole.num_rounds",
        new="answered",
        tests="tests/sites/test_ledger.py -k beside",
    ),
    Mutant(
        name="plans fixed in advance are charged less for stopping",
        path="dpfed_kan/sites/spending.py",
        old='    if plans_chosen == "in_advance":',
        new="    if False:",
        tests="tests/sites/test_ledger.py -k in_advance",
    ),
    Mutant(
        name="long norms: what the lower law has far below is forgotten",
        path="dpfed_kan/privacy/accounting/mixture.py",
        old="low = -_SHORT_REACH if longest <= _SHORT_REACH else -longest - _SHORT_REACH",
        new="low = -_SHORT_REACH",
        tests="tests/privacy/accounting/test_mixture.py",
    ),
    Mutant(
        name="site ledger: reply leaves before its commit",
        path="dpfed_kan/sites/guard.py",
        old="        self.ledger.commit(",
        new="        from threading import Timer\n\n"
        "        (lambda *a, **k: Timer(0.0, self.ledger.commit, a, k).start())(",
        tests="tests/sites/test_guard.py -k before",
    ),
    Mutant(
        name="site ledger: reply without a commit",
        path="dpfed_kan/sites/guard.py",
        old="        self.ledger.commit(",
        new="        (lambda *a, **k: None)(",
        tests="tests/sites/test_guard.py -k killed",
    ),
    Mutant(
        name="site ledger: open reservations not counted",
        path="dpfed_kan/sites/ledger.py",
        old="return [entry for entry in entries if entry.data_set in sharing]",
        new="return [e for e in entries if e.data_set in sharing and e.closed is not None]",
        tests="tests/sites/test_ledger.py",
    ),
    Mutant(
        name="site ledger: refusal after a gradient",
        path="dpfed_kan/sites/guard.py",
        old="    policy.check(plan, site=site.name)\n",
        new="    site.gradients.blocks(np.zeros(plan.num_params), np.arange(1))\n"
        "    policy.check(plan, site=site.name)\n",
        tests="tests/sites/test_guard.py",
    ),
    Mutant(
        name="site ledger: two processes spend the last of the budget",
        path="dpfed_kan/sites/ledger.py",
        old="if _charges(read_runs(self.chain)) != _charges(entries):",
        new="if False:",
        tests="tests/sites/test_ledger.py -k processes",
    ),
    Mutant(
        name="site ledger: a second broadcast is answered",
        path="dpfed_kan/sites/ledger.py",
        old='if json.loads(answered.content)["broadcast"] != broadcast:',
        new="if False:",
        tests="tests/sites/test_guard.py -k another_broadcast",
    ),
    Mutant(
        name="site ledger: a second reply is given",
        path="dpfed_kan/sites/ledger.py",
        old='elif json.loads(answered.content)["reply"] != reply:',
        new="elif False:",
        tests="tests/sites/test_guard.py -k second_reply",
    ),
    Mutant(
        name="site ledger: a closed run answers",
        path="dpfed_kan/sites/ledger.py",
        old='if entry.closed is not None:\n            raise LedgerError(f"{where}: the run',
        new='if False:\n            raise LedgerError(f"{where}: the run',
        tests="tests/sites/test_ledger.py -k closed",
    ),
    Mutant(
        name="site ledger: rounds that were skipped are free",
        path="dpfed_kan/sites/entries.py",
        old="answered = 0 if entry.last_round is None else entry.last_round + 1",
        new='answered = len(chain.rows("commit", run=run))',
        tests="tests/sites/test_ledger.py -k prefix",
    ),
    Mutant(
        name="site ledger: a lowered budget does not count",
        path="dpfed_kan/sites/budget.py",
        old="    if not total.keeps(epsilon=policy",
        new="    if False and not total.keeps(epsilon=policy",
        tests="tests/sites/test_ledger.py -k lowered",
    ),
    Mutant(
        name="site ledger: an early stop takes no delta of its own",
        path="dpfed_kan/sites/spending.py",
        old="delta=stop_delta / NUM_STOPS)",
        new="delta=stop_delta)",
        tests="tests/sites/test_ledger.py -k prefix",
    ),
    Mutant(
        name="site ledger: adaptive plans composed as if fixed",
        path="dpfed_kan/sites/spending.py",
        old='if plans_chosen == "adaptively" or len(counted) < 2:',
        new="if len(counted) < 2:",
        tests="tests/sites/test_ledger.py -k refuses_03",
    ),
    Mutant(
        name="site ledger: delta of the runs not added",
        path="dpfed_kan/sites/spending.py",
        old="delta=math.fsum(run.charge.delta for run in counted),",
        new="delta=max((run.charge.delta for run in counted), default=0.0),",
        tests="tests/sites/test_ledger.py -k delta",
    ),
    Mutant(
        name="site ledger: patients not known again",
        path="dpfed_kan/sites/data_set.py",
        old="            members.add(whose[:_MEMBER_BYTES])\n",
        new="",
        tests="tests/sites/test_ledger.py -k patients",
    ),
    Mutant(
        name="site ledger: plain hashes of records",
        path="dpfed_kan/sites/data_set.py",
        old='return hmac.digest(self.key, purpose.encode() + b"\\0" + content, "sha256")',
        new='return hashlib.sha256(purpose.encode() + b"\\0" + content).digest()',
        tests="tests/sites/test_data_set.py",
    ),
    Mutant(
        name="site ledger: verify skips the links",
        path="dpfed_kan/sites/verifying.py",
        old="        if row.before != before:\n",
        new="        if False:\n",
        tests="tests/sites/test_chain.py",
    ),
    Mutant(
        name="site ledger: verify skips the contents",
        path="dpfed_kan/sites/verifying.py",
        old="        if row.hash != row.own_hash:\n",
        new="        if False:\n",
        tests="tests/sites/test_chain.py",
    ),
    Mutant(
        name="site ledger: a cut goes unseen",
        path="dpfed_kan/sites/verifying.py",
        old="    if len(heads) <= len(rows):\n",
        new="    if True:\n",
        tests="tests/sites/test_chain.py",
    ),
    Mutant(
        name="site ledger: an old copy is gone on with",
        path="dpfed_kan/sites/chain.py",
        old="        if known is None:\n",
        new="        if True:\n",
        tests="tests/sites/test_chain.py -k old_copy",
    ),
    Mutant(
        name="site ledger: streams of an earlier run again",
        path="dpfed_kan/sites/ledger.py",
        old="if not asked.streams_are_seeded and any(",
        new="if False and any(",
        tests="tests/sites/test_ledger.py -k streams",
    ),
    Mutant(
        name="site ledger: another plan under the same run",
        path="dpfed_kan/sites/ledger.py",
        old='"plan": entry.plan.sha256 == asked.plan.sha256,',
        new='"plan": True,',
        tests="tests/sites/test_ledger.py -k goes_on",
    ),
    Mutant(
        name="policy: an unapproved plan passes",
        path="dpfed_kan/sites/policy.py",
        old='if self.allowed_plans != "any" and plan.sha256 not in',
        new="if False and plan.sha256 not in",
        tests="tests/sites/test_policy.py",
    ),
    Mutant(
        name="policy: patients cover records under zero-out",
        path="dpfed_kan/sites/policy.py",
        old=' and given.neighboring_relation == "replace_one"',
        new="",
        tests="tests/sites/test_policy.py",
    ),
    Mutant(
        name="plan: the noise is not in the hash",
        path="dpfed_kan/sites/plan.py",
        old="        return _plain(plain)\n",
        new='        plain["mechanism"]["noise"] = {}\n        return _plain(plain)\n',
        tests="tests/sites/test_plan.py",
    ),
    Mutant(
        name="report: the best site's ε on top",
        path="dpfed_kan/report.py",
        old='stated |= {"epsilon": _json_number(guarantee.epsilon), "sentence": sentence(run)}',
        new='stated |= {"epsilon": min(run.epsilon_per_site.values()), "sentence": sentence(run)}',
        tests="tests/system/test_report_page.py -k headline",
    ),
    Mutant(
        name="report: a bound rounded down",
        path="dpfed_kan/page/values.py",
        old="math.ceil(value * 10**_DIGITS - 1e-9)",
        new="math.floor(value * 10**_DIGITS)",
        tests="tests/system/test_report_page.py -k never_rounded",
    ),
    Mutant(
        name="report: no banner where the noise is seeded",
        path="dpfed_kan/page/page.py",
        old='if report["statement"]["randomness"]["seeded"].content:',
        new="if False:",
        tests="tests/system/test_report_page.py -k overlooked",
    ),
    Mutant(
        name="report: ε without its relation",
        path="dpfed_kan/page/account.py",
        old="f\"{relation(protected['neighboring_relation'])}\",",
        new='"",',
        tests="tests/system/test_report_page.py -k never_alone",
    ),
    Mutant(
        name="report: names are not escaped",
        path="dpfed_kan/page/elements.py",
        old="p if isinstance(p, Markup) else escape(p, quote=True) for p in parts",
        new="parts",
        tests="tests/system/test_report_page.py -k hold_html",
    ),
    Mutant(
        name="report: figures of records unmarked",
        path="dpfed_kan/page/measured.py",
        old='" records are left out. ",\n        NOT_PRIVATE,',
        new='" records are left out. ",',
        tests="tests/system/test_report_page.py -k are_marked",
    ),
    Mutant(
        name="report: ε of the whole plan forgotten",
        path="dpfed_kan/statement/groups.py",
        old="    if not run.finished:\n        whole",
        new="    if run.finished:\n        whole",
        tests="tests/system/test_report_page.py -k whole_plan",
    ),
    Mutant(
        name="report: reporting changes the run's files",
        path="dpfed_kan/run.py",
        old="mechanism=plan.server.mechanism, num_records=plan.server.num_records, path=copy",
        new="mechanism=plan.server.mechanism,\n            num_records=plan.server.num_records,\n"
        "            path=directory.ledger_path,",
        tests="tests/test_cli_report.py -k left_as_it_is",
    ),
    Mutant(
        name="deployed: any session may show a token again",
        path="dpfed_kan/channel/tokens.py",
        old="self._sessions.setdefault(found, owner)",
        new="owner",
        tests="tests/channel/test_channel.py",
    ),
    Mutant(
        name="deployed: a wrong token enters",
        path="dpfed_kan/channel/tokens.py",
        old='            if found is None:\n                return None, "a wrong token"\n',
        new="            found = found or next(iter(self._digests))\n",
        tests="tests/channel/test_channel.py",
    ),
    Mutant(
        name="deployed: a reply of another run is taken",
        path="dpfed_kan/federated/replies.py",
        old="elif run_id != self._run_id:",
        new="elif not run_id and run_id != self._run_id:",
        tests="tests/federated/test_replies.py",
    ),
    Mutant(
        name="deployed: what a reply holds is not looked at",
        path="dpfed_kan/federated/replies.py",
        old="elif (problem := self._problem(reply)) is not None:",
        new="elif (problem := None) is not None:",
        tests="tests/federated/test_replies.py",
    ),
    Mutant(
        name="deployed: a sound reply after a bad one counts",
        path="dpfed_kan/federated/replies.py",
        old="        elif sender not in self.problems:\n            self",
        new="        else:\n            self",
        tests="tests/federated/test_replies.py",
    ),
    Mutant(
        name="deployed: a site that contributed zero is not recorded",
        path="dpfed_kan/federated/replies.py",
        old="                ledger.record_zero(Zeroed(",
        new="                bool(Zeroed(",
        tests="tests/federated/test_replies.py",
    ),
    Mutant(
        name="deployed: a declared seed needs no consent",
        path="dpfed_kan/deployment/site.py",
        old="is not None and not files.allow_seed:",
        new='is not None and files.site == "":',
        tests="tests/deployment/test_training.py",
    ),
    Mutant(
        name="deployed: all runs of a site draw alike",
        path="dpfed_kan/streams.py",
        old='_digest(self.key, "run", run_id, size',
        new='_digest(self.key, "run", size',
        tests="tests/deployment/test_site_files.py",
    ),
    Mutant(
        name="deployed: metrics leave where one side allows it",
        path="dpfed_kan/deployment/site.py",
        old="self.study.source.share_metrics and self",
        new="self.study.source.share_metrics or self",
        tests="tests/deployment/test_training.py",
    ),
    Mutant(
        name="deployed: a policy is not enforced",
        path="dpfed_kan/deployment/site.py",
        old="guarded = files.policy is not None and",
        new='guarded = files.policy == "" and',
        tests="tests/deployment/test_guarded.py",
    ),
    Mutant(
        name="deployed: the plan is not asked about before round 0",
        path="dpfed_kan/deployment/site.py",
        old="    if files.policy is not None and study.num_records is not None:\n        approve(",
        new="    if files.policy is not None and study.num_records == 0:\n        approve(",
        tests="tests/deployment/test_guarded.py -k before_round_0",
    ),
    Mutant(
        name="deployed: a yes before round 0 is a reservation",
        path="dpfed_kan/sites/guard.py",
        old="    ledger.check(_asked(",
        new="    ledger.reserve(_asked(",
        tests="tests/deployment/test_guarded.py -k before_round_0",
    ),
    Mutant(
        name="deployed: a yes before round 0 is a promise",
        path="dpfed_kan/sites/ledger.py",
        old="stop_delta = admitted(related, asked.plan, asked.site, whole, asked.policy)",
        new="stop_delta = 0.0",
        tests="tests/deployment/test_guarded.py -k after_its_yes",
    ),
    Mutant(
        name="deployed: the text of an exception travels",
        path="dpfed_kan/flower/deployed_client.py",
        old='reason = f"{type_and_place(error)} (site {name})"',
        new="reason = str(error)",
        tests="tests/deployment/test_training.py",
    ),
    Mutant(
        name="deployed: another schema is taken",
        path="dpfed_kan/deployment/training.py",
        old="if said.columns != wanted:",
        new="if len(said.columns) > 99:",
        tests="tests/deployment/test_training.py",
    ),
    Mutant(
        name="audit: releases are not whitened",
        path="dpfed_kan/privacy/auditing.py",
        old="    whitened = encode(noise, seen, horizon=horizon)\n",
        new="    whitened = seen\n",
        tests="tests/privacy/test_auditing.py",
    ),
    Mutant(
        name="audit: the row scales are forgotten in whitening",
        path="dpfed_kan/privacy/auditing.py",
        old="noise.correlation], rounds / scales, axis=0)",
        new="noise.correlation], rounds, axis=0)",
        tests="tests/privacy/test_auditing.py",
    ),
    Mutant(
        name="audit: the rates enter without their limits",
        path="dpfed_kan/privacy/auditing.py",
        old="return float(beta.ppf((1.0 - confidence) / 2, successes, trials - successes + 1))",
        new="return successes / trials * (1 - 1e-9)",
        tests="tests/privacy/test_auditing.py",
    ),
    Mutant(
        name="audit: one run is not charged for delta",
        path="dpfed_kan/privacy/auditing.py",
        old="if num_correct > 0 and delta > 0:",
        new="if False:",
        tests="tests/privacy/test_auditing.py",
    ),
    Mutant(
        name="audit: the canary is no longer than the clip, so that no clip is audited",
        path="dpfed_kan/federated/canaries.py",
        old="_OVERSHOOT = 1e6",
        new="_OVERSHOOT = 1.0",
        tests="tests/system/test_audit.py",
    ),
    Mutant(
        name="audit: halved noise, seen by the audit",
        path="dpfed_kan/privacy/mechanism.py",
        old="            noise *= total.l2_sensitivity\n",
        new="            noise *= total.l2_sensitivity / 2\n",
        tests="tests/system/test_audit.py -k two_runs",
    ),
    Mutant(
        name="audit: unclipped in the transform, seen by the audit",
        path="dpfed_kan/privacy/transformed_clipping.py",
        old="np.minimum(1.0, l2_clip_norm / (norms * (1.0 + 4 * _UNIT_ROUNDOFF)))",
        new="np.minimum(1.0, 3 * l2_clip_norm / (norms * (1.0 + 4 * _UNIT_ROUNDOFF)))",
        tests="tests/system/test_audit.py -k two_runs",
    ),
    Mutant(
        name="audit: previous noise drawn anew, seen by the audit",
        path="dpfed_kan/privacy/noising.py",
        old="streams, round_index=round_index - 1, dimension=dimension)",
        new="streams, round_index=round_index + 10**6, dimension=dimension)",
        tests="tests/system/test_audit.py -k two_runs",
    ),
    Mutant(
        name="audit: a bound above the account is not an error",
        path="dpfed_kan/cli_audit.py",
        old="    if found.found.exceeding:\n        sys.exit(",
        new="    if False:\n        sys.exit(",
        tests="tests/system/test_audit.py -k false_epsilon",
    ),
    Mutant(
        name="sweep: the cost of one run stands for all",
        path="dpfed_kan/sweep_cost.py",
        old="repetitions[met, num_rounds] = repetitions.get((met, num_rounds), 0) + 1",
        new="repetitions = {(met, num_rounds): 1}",
        tests="tests/system/test_sweep.py",
    ),
    Mutant(
        name="sweep: seeds are no looks of their own",
        path="dpfed_kan/sweep_cost.py",
        old="repetitions.get((met, num_rounds), 0) + 1",
        new="1",
        tests="tests/system/test_sweep.py",
    ),
    Mutant(
        name="sweep: only finished runs are looks",
        path="dpfed_kan/sweep_cost.py",
        old="        if not ledger.is_file():\n",
        new='        if not ledger.is_file() or run.status != "ok":\n',
        tests="tests/system/test_sweep.py",
    ),
    Mutant(
        name="sweep: rounds that were reserved are not spent",
        path="dpfed_kan/privacy/ledger.py",
        old="return plan, max([released, *last])",
        new="return plan, released",
        tests="tests/system/test_sweep.py",
    ),
    Mutant(
        name="sweep: failed runs are hidden",
        path="dpfed_kan/sweep.py",
        old='status = "failed"',
        new='status = "ok"',
        tests="tests/system/test_sweep.py tests/simulations/test_sweeps.py",
    ),
    Mutant(
        name="sweep: a failure does not show in the exit code",
        path="simulations/sweeping.py",
        old="    if bad:\n        raise",
        new="    if False:\n        raise",
        tests="tests/simulations/test_sweeps.py",
    ),
    Mutant(
        name="sweep: an unfinished run is skipped",
        path="simulations/sweeping.py",
        old="report.is_file() and json.loads(",
        new="not report.is_file() or json.loads(",
        tests="tests/simulations/test_sweeps.py",
    ),
    Mutant(
        name="sweep: a run of other settings is taken for this one",
        path="simulations/sweeping.py",
        old='!= plain:\n        raise ValueError(\n            f"{directory} holds a run',
        new='== "":\n        raise ValueError(\n            f"{directory} holds a run',
        tests="tests/simulations/test_sweeps.py",
    ),
    Mutant(
        name="sweep: text of a log becomes a page's markup",
        path="dpfed_kan/sweep_page.py",
        old='return f"<td{kind}>{html.escape(str(value))}</td>"',
        new='return f"<td{kind}>{value}</td>"',
        tests="tests/system/test_sweep.py",
    ),
    Mutant(
        name="deployed: two processes work on one run",
        path="dpfed_kan/run_directory.py",
        old="fcntl.LOCK_EX | fcntl.LOCK_NB",
        new="fcntl.LOCK_SH | fcntl.LOCK_NB",
        tests="tests/deployment/test_one_process.py",
    ),
    Mutant(
        name="deployed: a start that was killed is stuck for ever",
        path="dpfed_kan/deployment/training.py",
        old="if named.exists() or begun.ledger_path.exists():",
        new="if begun.config_path.exists():",
        tests="tests/deployment/test_one_process.py",
    ),
    Mutant(
        name="deployed: a zero of a round is forgotten by a crash",
        path="dpfed_kan/federated/replies.py",
        old="if known.round_index == round_index}",
        new="if known.round_index > round_index}",
        tests="tests/federated/test_replies.py",
    ),
    Mutant(
        name="deployed: a released round is run again with another zero",
        path="dpfed_kan/federated/replies.py",
        old=" or round_index < len(ledger.events)",
        new="",
        tests="tests/federated/test_replies.py",
    ),
)
CONTROL = Mutant(
    name="none: the tests of a copy pass",
    path="dpfed_kan/federated/server.py",
    old="        ledger.record(release.event)\n",
    new="        ledger.record(release.event)\n",
    tests="tests/federated tests/test_streams.py tests/privacy/test_mechanism.py",
)


def planted(mutant: Mutant, scratch: Path) -> Path:
    """Return a copy of the project that holds the bug; compiled files that still fit come along.

    Raises:
        ValueError: If the old text is not there exactly once.
    """
    copy = scratch / "project"
    for name in ("dpfed_kan", "tests", "conf", "simulations"):
        shutil.copytree(ROOT / name, copy / name)
    shutil.copy(ROOT / "pyproject.toml", copy)
    if (ROOT.parent / "shared").is_dir():
        (scratch / "shared").symlink_to((ROOT.parent / "shared").resolve())
    target = copy / mutant.path
    source = target.read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        raise ValueError(f"{mutant.path} holds the old text {source.count(mutant.old)} times")
    target.unlink()
    target.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
    return copy


def is_caught(mutant: Mutant) -> tuple[bool, str]:
    """Return whether the tests of a bug fail, and the end of what they print."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            copy = planted(mutant, Path(scratch))
        except ValueError as error:
            return False, str(error)
        output = Path(scratch) / "output"
        process = _FORKED.Process(target=run_tests, args=(copy, mutant.tests.split(), output))
        process.start()
        process.join(TIMEOUT)
        if process.is_alive():
            process.kill()
            process.join()
        said = output.read_text(errors="replace") if output.exists() else ""
        return process.exitcode == TESTS_FAILED, said[-900:]


def timed(mutant: Mutant) -> tuple[bool, str, float]:
    """Return what `is_caught` does, and the seconds that it took."""
    start = time.monotonic()
    return *is_caught(mutant), time.monotonic() - start


def run_tests(copy: Path, tests: list[str], output: Path) -> None:
    """Run tests of a copy in this process, which has the heavy libraries and none of our modules.

    Args:
        copy: Of the project.
        tests: Arguments of pytest.
        output: File for what is printed.
    """
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("dpfed_kan", "simulations", "tests"):
            del sys.modules[name]
    sys.path[:] = [str(copy), *(entry for entry in sys.path if entry not in ("", str(ROOT)))]
    os.environ |= {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    os.chdir(copy)
    code = BROKEN
    try:
        code = int(pytest.main(["-x", "-n", "0", "-p", "no:cacheprovider", *tests]))
    finally:
        sys.stdout.flush()
        os._exit(code)


def main(words: list[str]) -> int:
    chosen = [m for m in MUTANTS if all(word.lower() in m.name.lower() for word in words)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        results = []
        for mutant, result in zip(chosen, pool.map(timed, chosen), strict=True):
            results.append(result[:2])
            caught, output, seconds = result
            print(f"{'caught' if caught else 'MISSED'} {seconds:4.0f} s  {mutant.name}", flush=True)
            if not caught:
                print(output)
    if is_caught(CONTROL)[0]:
        print("the tests fail without a planted bug: nothing is shown")
        return 1
    num_caught = sum(caught for caught, _ in results)
    print(f"{num_caught} of {len(chosen)} planted bugs caught")
    return 0 if num_caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
