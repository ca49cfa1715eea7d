"""NamedArray: an array whose axes have names and whose entries have labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Num

from bert_jax.errors import UserError, nearest

Label = str | int
Axes = Mapping[str, Sequence[Label]]


@dataclasses.dataclass(frozen=True, eq=False)
class NamedArray:
    """An array with named axes. `axes` maps the name of each axis to the labels of its entries. The axes are in the order of
    the dimensions of `values`.

    `xarray.DataArray(a.values, a.axes, list(a.axes))` creates the same array in xarray.

    >>> weights["layer"]                                # the labels of an axis: (1, 2, ..., 12)
    >>> weights.sel(layer=8, head=10).values            # float32 [from, to]
    """

    values: Num[np.ndarray, "*shape"]
    axes: Axes

    def __post_init__(self) -> None:
        sizes = tuple(len(labels) for labels in self.axes.values())
        if sizes != np.shape(self.values):
            raise ValueError(f"axes of {sizes} labels for an array of shape {np.shape(self.values)}")

    def __getitem__(self, axis: str) -> Sequence[Label]:
        """Returns the labels of an axis."""
        return self.axes[axis]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype, copy=copy)

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return tuple(np.shape(self.values))

    def sel(self, **labels: Label) -> NamedArray:
        """Returns the part of the array at the given labels. The axes of these labels are dropped. Raises UserError if a label
        or an axis does not exist."""
        values, axes = self.values, dict(self.axes)
        for axis, label in labels.items():
            if axis not in axes:
                raise UserError(f"there is no axis {axis!r}: {nearest(axis, axes)}")
            known = list(axes[axis])
            if label not in known:
                raise UserError(
                    f"{axis} {label!r} does not exist; known: {known[0]} to {known[-1]}" if known else f"no {axis} exists"
                )
            values = np.asarray(values.take(known.index(label), axis=list(axes).index(axis)))
            del axes[axis]
        return NamedArray(values, axes)
