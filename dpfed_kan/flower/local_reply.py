"""A reply that stays in this process: the vector itself, in Flower's records, without a copy."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from dpfed_kan.flower._compat import filled
from dpfed_kan.privacy.clipping import Vector

_NO_ARRAYS, _NO_CONFIG, _NO_CONTENT = ArrayRecord(), ConfigRecord(), RecordDict()


class LocalArray(Array):
    """A vector as a Flower array that is not for a wire: it has no bytes.

    Args:
        vector: float64, shape (D,); seen read-only by whoever decodes it.

    Raises:
        TypeError: When it is serialized.
    """

    def __init__(self, vector: Vector) -> None:
        self.dtype, self.shape, self.stype = "float64", vector.shape, "numpy.ndarray"
        self.vector = vector.view()
        self.vector.flags.writeable = False

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """Refuse: the bytes of a reply are made by `encode_reply`."""
        raise TypeError("an array of this process has no bytes")


def local_record(arrays: dict[str, Array], config: dict[str, int | str]) -> RecordDict:
    """Return the records arrays and config, without the checks of Flower's constructors.

    Args:
        arrays: By name.
        config: By name.
    """
    return filled(
        _NO_CONTENT,
        {"arrays": filled(_NO_ARRAYS, arrays), "config": filled(_NO_CONFIG, config)},
    )
