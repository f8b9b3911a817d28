"""Compile Linformer attention to operations of the engine.

The functions add operations to ``program``. Operations read and write ``Columns`` of *registers*,
which are matrices of floats.
"""

import numpy as np

from fairseq_ext.engine.compilers import ATTENTIONS, linear
from fairseq_ext.engine.program import NOTHING, Columns
from fairseq_ext.engine.writer import Writer
from fairseq_ext.linformer.attention import LinformerAttention


def attention(
    layer: LinformerAttention, x: Columns, source: Columns, added: Columns, program: Writer
) -> Columns:
    """Compile ``added + softmax(Q (E K)^T · scale) F V W_O + b``; return the columns of the result.

    Queries are computed from ``x``; keys and values from ``source``, or from ``x`` if ``source`` is
    ``NOTHING``. ``added`` is the residual.
    """
    read = x if source is NOTHING else source
    projection = layer.projection
    if projection.kind == "learned":
        matrices = program.array(projection.weight)  # [M, K, N]
        of_keys, of_values = (
            program.derive("part", matrices, i) for i in (0, projection.matrices - 1)
        )
    else:
        matrices = projection(projection.max_len).detach().float().cpu().numpy()
        of_keys, of_values = (np.ascontiguousarray(matrices[i]) for i in (0, -1))
    keys = program.mix(linear(layer.k_proj, read, program), of_keys)
    values = program.mix(linear(layer.v_proj, read, program), of_values)
    query = linear(layer.q_proj, x, program)
    context = program.attend(query, keys, values, layer.num_heads, scale=layer.scaling)
    return linear(layer.out_proj, context, program, added=added)


ATTENTIONS[LinformerAttention] = attention
