"""The 569 diagnostic records that scikit-learn bundles (Wisconsin breast cancer, UCI)."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from dpfed_kan.data.records import Records
from dpfed_kan.data.scaling import scale_by_public_range
from dpfed_kan.streams import Streams

_MALIGNANT = 0
_ROW = re.compile(r"^\s*([a-z ]+) \((mean|standard error|worst)\):\s+([\d.]+)\s+([\d.]+)\s*$", re.M)


@dataclass(frozen=True, kw_only=True)
class BreastCancer:
    """Thirty measurements of cell nuclei, label +1 for malignant; needs no file.

    The data set's published description states every feature's minimum and maximum; these
    public numbers scale the features.
    """

    def load(self, streams: Streams) -> Records:
        """Return all records.

        Raises:
            ValueError: If the bundled description no longer lists 30 ranges.
        """
        from sklearn.datasets import load_breast_cancer  # heavy: when loaded, not when configured

        bundle = load_breast_cancer()
        ranges = np.array(
            [[float(low), float(high)] for *_, low, high in _ROW.findall(bundle.DESCR)]
        )
        if ranges.shape != (30, 2):
            raise ValueError(
                "scikit-learn's description of the breast cancer data no longer lists 30 public "
                "ranges; install the version range that this package asks for"
            )
        return Records(
            features=scale_by_public_range(bundle.data, low=ranges[:, 0], high=ranges[:, 1]),
            labels=np.where(bundle.target == _MALIGNANT, 1.0, -1.0),
            feature_names=tuple(str(name) for name in bundle.feature_names),
        )
