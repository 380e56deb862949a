"""The basis against reference tables, scipy, exact arithmetic and its own properties."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import BSpline

from dpfed_kan.kan import MAX_NUM_BASIS, MAX_SPLINE_DEGREE, BSplineBasis
from dpfed_kan.kan.basis import CHUNK_SIZE

SHAPES = [(2, 1), (7, 1), (3, 2), (9, 2), (4, 3), (8, 3), (64, 3), (6, 5), (12, 11), (64, 11)]


def clamped_knots(num_basis: int, degree: int, low: float, high: float) -> np.ndarray:
    inner = np.linspace(low, high, num_basis - degree + 1)
    return np.concatenate([[low] * degree, inner, [high] * degree])


def exact_basis(num_basis: int, degree: int, x: Fraction) -> list[Fraction]:
    """Cox-de Boor in rational arithmetic on [-1, 1]."""
    num_intervals = num_basis - degree
    inner = [Fraction(2 * i, num_intervals) - 1 for i in range(num_intervals + 1)]
    knots = [inner[0]] * degree + inner + [inner[-1]] * degree
    row = [Fraction(int(a <= x < b)) for a, b in pairwise(knots)]
    if x == 1:
        row[num_basis - 1] = Fraction(1)
    for level in range(1, degree + 1):
        lifted = []
        for i in range(len(row) - 1):
            total = Fraction(0)
            if knots[i + level] > knots[i]:
                total += (x - knots[i]) / (knots[i + level] - knots[i]) * row[i]
            if knots[i + level + 1] > knots[i + 1]:
                gap = knots[i + level + 1] - knots[i + 1]
                total += (knots[i + level + 1] - x) / gap * row[i + 1]
            lifted.append(total)
        row = lifted
    return row


def test_values_and_derivatives_equal_the_reference_tables(shared_dir: Path) -> None:
    tables = json.loads((shared_dir / "oracles" / "bspline.json").read_text())["tables"]
    assert len(tables) == 4
    for table in tables:
        basis = BSplineBasis(num_basis=table["p"], spline_degree=table["degree"])
        x = torch.tensor(table["x"], dtype=torch.float64)
        np.testing.assert_allclose(basis.values(x), table["b"], rtol=0, atol=1e-13)
        np.testing.assert_allclose(basis.derivatives(x), table["db"], rtol=0, atol=1e-11)


@pytest.mark.parametrize(("num_basis", "degree"), SHAPES)
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 1.0), (-0.107, 0.107), (-3.0, 7.5)])
def test_the_basis_equals_scipys(num_basis: int, degree: int, low: float, high: float) -> None:
    basis = BSplineBasis(num_basis=num_basis, spline_degree=degree, low=low, high=high)
    # away from the knots, where a derivative of degree 1 has two values
    offsets = np.random.default_rng(0).uniform(0.02, 0.98, size=(20, basis.num_intervals))
    x = low + (np.arange(basis.num_intervals) + offsets) * (high - low) / basis.num_intervals
    knots = clamped_knots(num_basis, degree, low, high)
    reference = BSpline(knots, np.eye(num_basis), degree)
    points = torch.from_numpy(x)
    np.testing.assert_allclose(basis.values(points), reference(x), rtol=0, atol=1e-12)
    derivatives = reference(x, nu=1)
    scale = np.abs(derivatives).max()
    np.testing.assert_allclose(
        basis.derivatives(points) / scale, derivatives / scale, rtol=0, atol=1e-11
    )


@pytest.mark.parametrize(("num_basis", "degree"), [(64, 11), (MAX_SPLINE_DEGREE + 1, 20), (64, 20)])
def test_high_degrees_equal_exact_arithmetic(num_basis: int, degree: int) -> None:
    basis = BSplineBasis(num_basis=num_basis, spline_degree=degree)
    x = [-1.0, -0.9375, -0.5, -0.1, 0.0, 0.3, 0.77, 0.999, 1.0]
    exact = [[float(b) for b in exact_basis(num_basis, degree, Fraction(value))] for value in x]
    values = basis.values(torch.tensor(x, dtype=torch.float64))
    np.testing.assert_allclose(values, exact, rtol=0, atol=1e-13)


def test_more_points_than_a_chunk_are_evaluated_like_a_few() -> None:
    basis = BSplineBasis(num_basis=8)
    x = torch.linspace(-1.1, 1.1, 2 * CHUNK_SIZE + 5, dtype=torch.float64).reshape(-1, 1)
    few = slice(CHUNK_SIZE - 2, CHUNK_SIZE + 2)
    assert basis.values(x).shape == (2 * CHUNK_SIZE + 5, 1, 8)
    assert torch.equal(basis.values(x)[few], basis.values(x[few]))
    assert torch.equal(basis.derivatives(x)[few], basis.derivatives(x[few]))


@st.composite
def bases(draw: st.DrawFn) -> BSplineBasis:
    degree = draw(st.integers(1, MAX_SPLINE_DEGREE))
    low = draw(st.floats(-100, 100))
    return BSplineBasis(
        num_basis=degree + draw(st.integers(1, 64)),
        spline_degree=degree,
        low=low,
        high=low + draw(st.floats(0.01, 100)),
    )


@settings(deadline=None)
@given(bases(), st.lists(st.floats(-1e300, 1e300), max_size=20), st.floats(0, 1))
def test_values_are_non_negative_local_and_sum_to_one(
    basis: BSplineBasis, points: list[float], share: float
) -> None:
    inside = basis.low + share * (basis.high - basis.low)
    x = torch.tensor([*points, basis.low, inside, basis.high], dtype=torch.float64)
    values, derivatives = basis.values(x), basis.derivatives(x)
    assert (values >= 0).all()
    np.testing.assert_allclose(values.sum(-1), 1.0, rtol=0, atol=1e-12)
    slope = derivatives.abs().max()
    np.testing.assert_allclose(derivatives.sum(-1) / slope, 0.0, rtol=0, atol=1e-12)
    assert ((values != 0).sum(-1) <= basis.spline_degree + 1).all()
    interval = ((x.clamp(basis.low, basis.high) - basis.low) / (basis.high - basis.low)).mul(
        basis.num_intervals
    )
    row, column = torch.nonzero(values, as_tuple=True)
    assert (column >= interval[row].floor() - 1).all()
    assert (column <= interval[row].ceil() + basis.spline_degree).all()


@settings(deadline=None)
@given(bases(), st.sampled_from([torch.float32, torch.float64]))
def test_both_ends_are_closed(basis: BSplineBasis, dtype: torch.dtype) -> None:
    ends = torch.tensor([basis.low, basis.high], dtype=torch.float64)
    values, derivatives = basis.values(ends), basis.derivatives(ends)
    assert values[0, 0] == 1.0
    assert values[1, -1] == 1.0
    slope = basis.spline_degree * basis.num_intervals / (basis.high - basis.low)
    expected = torch.zeros(2, basis.num_basis, dtype=torch.float64)
    expected[0, :2] = torch.tensor([-slope, slope], dtype=torch.float64)
    expected[1, -2:] = torch.tensor([-slope, slope], dtype=torch.float64)
    np.testing.assert_allclose(derivatives / slope, expected / slope, rtol=0, atol=1e-12)
    rounded = basis.values(ends.to(dtype))
    assert rounded.dtype == dtype
    np.testing.assert_allclose(rounded.sum(-1), 1.0, rtol=0, atol=1e-6)


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(1, 30), st.floats(-0.99, 0.99))
def test_derivatives_are_the_limits_of_differences(degree: int, extra: int, x: float) -> None:
    basis = BSplineBasis(num_basis=degree + extra, spline_degree=degree)
    step = 1e-6
    around = torch.tensor([x - step, x, x + step], dtype=torch.float64)
    if len(set(basis.locate(around)[0].tolist())) > 1:
        return  # a knot in between: one-sided there
    values = basis.values(around)
    differences = (values[2] - values[0]) / (2 * step)
    scale = max(1.0, float(differences.abs().max()))
    np.testing.assert_allclose(
        basis.derivatives(around[1]) / scale, differences / scale, rtol=0, atol=2e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_trial_k01_points_outside_follow_the_rule_and_are_counted(
    shared_dir: Path, dtype: torch.dtype
) -> None:
    path = shared_dir / "cases" / "inputs" / "k01_outside_points.csv"
    x = torch.from_numpy(np.loadtxt(path, skiprows=1)).to(dtype)
    basis = BSplineBasis(num_basis=8)
    ends = x.sign()
    assert len(x) == 6
    assert torch.equal(basis.values(x), basis.values(ends))
    assert torch.equal(basis.derivatives(x), basis.derivatives(ends))
    assert (basis.derivatives(x) != 0).any(-1).all()
    np.testing.assert_allclose(basis.values(x).sum(-1), 1.0, rtol=0, atol=1e-6)
    columns = torch.stack([x, x / 50, torch.full_like(x, torch.nan)], dim=1)
    assert basis.count_outside(columns).tolist() == [6, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_trial_k02_the_basis_sums_to_one_at_every_knot(
    shared_dir: Path, dtype: torch.dtype
) -> None:
    path = shared_dir / "cases" / "inputs" / "k02_knot_points.csv"
    x = torch.from_numpy(np.loadtxt(path, skiprows=1)).to(dtype)
    basis = BSplineBasis(num_basis=8)
    values = basis.values(x)
    np.testing.assert_allclose(values.sum(-1), 1.0, rtol=0, atol=1e-6)
    assert x[-1] == 1.0
    assert values[-1, -1] == 1.0
    assert basis.derivatives(x)[-1, -1] > 0


@pytest.mark.parametrize("num_basis", [2, 4, 9, 21, 23])
@pytest.mark.parametrize("degree", [1, 3, 11, 20])
def test_trial_k03_any_order_and_grid_is_finite_or_refused(num_basis: int, degree: int) -> None:
    if num_basis <= degree:
        with pytest.raises(ValueError, match=f"num_basis={num_basis} to be > spline_degree"):
            BSplineBasis(num_basis=num_basis, spline_degree=degree)
        return
    basis = BSplineBasis(num_basis=num_basis, spline_degree=degree)
    x = torch.linspace(-2, 2, 101, dtype=torch.float64)
    assert basis.values(x).isfinite().all()
    assert basis.derivatives(x).isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_basis": 3}, "expected num_basis=3 to be > spline_degree=3; raise num_basis to 4"),
        ({"num_basis": 4, "spline_degree": 0}, "spline_degree=0 in"),
        ({"num_basis": 4, "spline_degree": -1}, "spline_degree=-1 in"),
        ({"num_basis": 4, "spline_degree": 1.5}, "spline_degree=1.5 in"),
        ({"num_basis": 4, "spline_degree": True}, "spline_degree=True in"),
        ({"num_basis": 30, "spline_degree": 21}, r"spline_degree=21 in \[1, 20\]"),
        ({"num_basis": MAX_NUM_BASIS + 1}, r"num_basis=257 in \[1, 256\]"),
        ({"num_basis": 8.0}, "num_basis=8.0 in"),
        ({"num_basis": 8, "low": 1.0}, r"high=1.0 in \(1, inf\)"),
        ({"num_basis": 8, "low": float("nan")}, "low=nan in"),
        ({"num_basis": 8, "high": float("inf")}, "high=inf in"),
    ],
)
def test_a_setting_out_of_range_is_refused_and_named(
    arguments: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        BSplineBasis(**arguments)  # type: ignore[arg-type]


def test_nan_stays_nan_and_infinity_is_an_end() -> None:
    basis = BSplineBasis(num_basis=8)
    x = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=torch.float64)
    values = basis.values(x)
    assert values[0].isnan().any()
    assert values[1:].tolist() == [[0.0] * 7 + [1.0], [1.0] + [0.0] * 7]
    assert basis.values(torch.empty(0, 3)).shape == (0, 3, 8)


def test_tensors_that_are_not_columns_of_floats_are_refused() -> None:
    basis = BSplineBasis(num_basis=8)
    with pytest.raises(ValueError, match="floating-point"):
        basis.values(torch.arange(3))
    with pytest.raises(ValueError, match="1 axes"):
        basis.count_outside(torch.zeros(3))
