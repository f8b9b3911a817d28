"""Products with 1-bit weights on the CPU, from packed bits (section 3.1 of the BMT paper).

A binarized weight is ``W_b[n, k] = ±B_W[n] / 2``, an input ``A_b[m, k] = ±B_A[m] / 2`` with
``B_A[m] = max_k |a[m, k]|``. The sign ``s`` of zero is ``+``. There are two products::

    linear_1bit:       y[m, n] = B_W[n] / 2 · Σ_k s_W[n, k] a[m, k]                + bias[n]
    linear_1bit_1bit:  y[m, n] = B_W[n] B_A[m] / 4s · (K - 2 popcount(s_A ^ s_W))  + bias[n]

``packing.py`` has the layout of the bits, ``native.py`` the C kernels and the choice of the
instruction set (``*.c`` is compiled when the package is installed, if there is a compiler),
``portable.py`` the same in torch for installations without a compiler, and ``functional.py`` the
two functions.

Letters: ``M`` rows (positions), ``K`` inputs, ``N`` output channels.
"""

from fairseq_ext.binary.kernels.functional import linear_1bit, linear_1bit_1bit
from fairseq_ext.binary.kernels.native import PATHS, active_path, available_paths
from fairseq_ext.binary.kernels.packing import PackedWeight, pack_signs, unpack_signs

__all__ = [
    "PATHS",
    "PackedWeight",
    "active_path",
    "available_paths",
    "linear_1bit",
    "linear_1bit_1bit",
    "pack_signs",
    "unpack_signs",
]
