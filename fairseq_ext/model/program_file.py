"""Encode and read ``program.json``, the file of a bundle with the model's program for the engine.

A program is the model as a list of operations (:mod:`fairseq_ext.engine.program`). This module does
not need torch. The file is a JSON object with these entries:

- ``begins``, whether each source begins with ``<s>``;
- ``cut``, the length in tokens to which longer sources are cut; 0 if they are never cut;
- ``affixes``, the token ids that are put around sentences; none if the entry is left out;
- ``program``, from :func:`~fairseq_ext.engine.program.encode_program`;
- ``weights``, a list with an entry for each array of the program. The entry has the ``recipe`` by
  which the array is computed from the model's weights (:mod:`fairseq_ext.engine.recipes`). Its
  ``plain`` is true for a vector or table that the engine reads in fp32.

An entry of ``weights`` for a binary or ternary weight ``[N, K]`` has other entries:

- ``signs``, the weight's name;
- ``levels``, the recipe of the magnitude of each row ``[N]``; null if the bundle stores the
  magnitudes with the signs;
- ``ternary``, true for a ternary weight; left out for a binary one;
- ``inputs``, the number of columns ``K``;
- ``reading``, how the inputs of this weight are binarized
  (:class:`~fairseq_ext.engine.program.Reading`).
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_ext.checkpoints import bundle, dictionaries
from fairseq_ext.engine import shortlist
from fairseq_ext.engine.engine_model import NO_AFFIXES, EngineModel
from fairseq_ext.engine.program import (
    Matrix,
    Program,
    Reading,
    Signs,
    decode_program,
    encode_program,
    int32,
)
from fairseq_ext.engine.recipes import Evaluator
from fairseq_ext.engine.tensors import Tensors
from fairseq_ext.engine.verify import verify
from fairseq_ext.engine.weights import PIECE, Pool, pack
from fairseq_ext.utils.errors import CheckpointError, DataError, EnvironmentProblem, FairseqExtError
from fairseq_ext.utils.json_files import read_json

# A model's arrays are at most as large as all its weights in fp32, plus a table of positions. From
# one bit to fp32 a weight grows 32 times.
GROWTH, SPARE = 32, 1 << 27


def encode(
    program: Program,
    begins: bool,
    cut: int,
    in_bits: Collection[str] = (),
    affixes: tuple[tuple[int, ...], ...] = NO_AFFIXES,
) -> tuple[str, dict[str, np.ndarray]]:
    """Return the text of ``program.json``, and constants to add to the file of weights, by name.

    Constants are arrays of the program that are not computed from the model's weights. ``begins``,
    ``cut`` and ``affixes`` are fields of :class:`EngineModel`. ``in_bits`` has the names of the
    weights whose signs and magnitudes the bundle stores packed.
    """
    constants: dict[str, np.ndarray] = {}

    def named(recipe: Any) -> Any:
        if isinstance(recipe, list):
            return [named(part) for part in recipe]
        if not isinstance(recipe, np.ndarray):
            return recipe
        for name, array in constants.items():
            if array is recipe:
                return name
        name = f"{bundle.CONSTANT}{len(constants)}"
        constants[name] = recipe
        return name

    entries: list[dict[str, Any]] = []
    for matrix in program.matrices:
        if not isinstance(matrix, Signs):
            entries.append({"recipe": named(matrix.recipe), "plain": matrix.plain})
            continue
        levels = None if matrix.name in in_bits else named(matrix.levels)
        ternary = {"ternary": True} if matrix.plus is not None else {}
        entry = {"signs": matrix.name, "reading": matrix.reading, "inputs": matrix.inputs}
        entries.append({**entry, "levels": levels, **ternary})
    content = {
        **{"begins": begins, "cut": cut, "affixes": affixes},
        **{"program": encode_program(program), "weights": entries},
    }
    return json.dumps(content, separators=(",", ":")) + "\n", constants


def read(path: str | Path, numbers: str | None = None) -> EngineModel:
    """Read a bundle, with all checks, as a model for the engine with packed weights.

    ``numbers`` is the number format of the weights in the engine (``fp32``, ``bf16`` or ``int8``);
    None for the bundle's format. Raise CheckpointError if the bundle has no program, is damaged, or
    contradicts itself.
    """
    with bundle.unchanged(path) as manifest:
        manifest.check()
        if bundle.PROGRAM not in manifest.files:
            raise CheckpointError(f"{manifest.folder} has no program for the engine.")
        try:
            return _model(manifest, numbers or bundle.ENGINE_NUMBERS[manifest.numbers])
        except (EnvironmentProblem, OSError):
            raise
        except Exception as error:  # damaged data can cause any error
            explained = isinstance(error, FairseqExtError)
            reason = str(error) if explained else type(error).__name__
            if str(manifest.folder) in reason:
                raise CheckpointError(reason) from error
            raise CheckpointError(
                f"{manifest.folder / bundle.PROGRAM} cannot be used "
                f"({reason.rstrip('.'):.200}). Update fairseq-ext, or make the bundle again."
            ) from error


def _model(manifest: bundle.Bundle, numbers: str) -> EngineModel:
    content = read_json(manifest.folder / bundle.PROGRAM)
    program = decode_program(content["program"])
    tensors = Tensors(manifest.folder / bundle.WEIGHTS)
    pool = Pool(tensors.size + PIECE)
    matrices = _matrices(content["weights"], tensors, numbers)
    weights = [pack(matrix, numbers, pool) for matrix in matrices]
    words = [f"dict.{language}.txt" for language in (manifest.src, manifest.tgt)]
    source = target = dictionaries.symbols(manifest.folder / words[0])
    if manifest.files[words[0]] != manifest.files[words[1]]:
        target = dictionaries.symbols(manifest.folder / words[1])
    listed = None
    if bundle.SHORTLIST in manifest.files:
        listed = shortlist.read(manifest.folder / bundle.SHORTLIST, source, target)
    verify(program, weights)
    model = EngineModel(
        *(program, weights, manifest.architecture, manifest.src, manifest.tgt),
        *(source, target, content["begins"], content["cut"]),
        affixes=tuple(map(tuple, content.get("affixes", NO_AFFIXES))),
        search=manifest.search,
        shortlist=listed,
        path=manifest.folder,
    )
    model.check()
    return model


def _matrices(
    entries: list[dict[str, Any]], tensors: Tensors, numbers: str
) -> Iterator[Matrix | Signs]:
    """Yield the arrays of a program one at a time, so that memory never holds them all unpacked.

    ``entries`` are the ``weights`` of ``program.json``; ``numbers`` is the engine's number format.
    """
    evaluator = Evaluator(tensors, GROWTH * tensors.size + SPARE)
    for entry in entries:
        if "signs" not in entry:
            plain = entry["plain"]
            if type(plain) is not bool:
                raise DataError("an array is neither plain nor of a product")
            compact = None if plain or numbers != "int8" else evaluator.int8(entry["recipe"])
            if compact is not None:
                values, units = compact
                yield Matrix(values, units=units)
                continue
            matrix = evaluator.array(entry["recipe"])
            if not plain and matrix.ndim != 2:
                raise DataError("an array of a product is not a matrix")
            yield Matrix(matrix, plain)
            continue
        inputs, (method, *sizes) = int32(entry["inputs"]), entry["reading"]
        ternary = entry.get("ternary", False)
        signs = tensors.signs(entry["signs"], inputs)
        if signs is None:
            weight, levels = tensors.array(entry["signs"]), evaluator.array(entry["levels"])
            if weight.ndim != 2 or levels.shape != (len(weight),) or weight.shape[1] != inputs:
                raise DataError("the signs have a wrong size")
            # A ternary weight rounds to 0 up to half of the level; a binary weight has no zeros.
            limit = 0.5 * levels[:, None] if ternary else 0
            values = (weight > limit).astype(np.int8) - (weight < -limit)
            signs = Signs.packed(values, levels, ternary)
        if ternary is not (signs.plus is not None):
            raise DataError("an array is neither binary nor ternary")
        yield replace(signs, reading=Reading(method, *map(float, sizes)))
