"""No string is ever evaluated: `literal` against Python itself, and where fairseq finds it."""

import ast
import importlib
import importlib.util
import math
import re
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairseq_ext.plugin.security import loading
from fairseq_ext.utils.literals import MOST_ELEMENTS, LiteralError, literal
from tests.support.harness import run

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
# Texts in Python's grammar, most of which stand for something and some for an error.
TEXTS = st.recursive(
    PLAIN.map(repr).filter(
        lambda text: not re.search(r"nan|inf|\d{4}", text)
    )  # products stay small
    | st.sampled_from(["(512, 3)", "[(512, 10, 5)]", "True", "-0.0", "'a'", "1e3", "0x1f", "1_0"])
    | st.integers(-99, 99).map(str),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", " + ", "*", " * "]), inner).map("".join)
        | st.tuples(inner, st.sampled_from("+*"), st.sampled_from("01234")).map(" ".join)
        | inner.map("({})".format)
        | inner.map("[{}]".format)
        | inner.map("-{}".format)
    ),
    max_leaves=6,
)
RUNS = (
    *("__import__('os')", "open", "().__class__", "[x for x in ()]", "lambda: 1", "f'{1}'"),
    *("b''", "{1}", "{**{}}", "[*()]", "(1)(2)", "[1][0]", "1 if 1 else 2", "not 1", "a := 1"),
    *("1;2", "...", "1j", "2 ** 9", "9 // 2", "1 - 1", "~1", "1 < 2", "print`1`", "", "#", "$"),
    *("'a' * 1.5", "{} + {}", "[] + ()", "-'a'", "{[]: 1}", "'\\x", "\x00", "\ud800", "1\n+2"),
)
HUGE = {
    "a product": "[0] * 1000000000000",
    "products of products": "[[[0] * 1000] * 1000] * 1000",
    "a string": "'ab' * 99999999",
    "brackets": "(" * 90_000,
    "signs": "-" * 90_000 + "1",
    "sums": "1+" * 45_000 + "1",
    "digits": "1" * 90_000,
    "a power": "0x" + "f" * 90_000,
    "characters": " " * 200_000,
}


def size(value: object) -> int:
    """1, and the size of each element: what `MOST_ELEMENTS` limits."""
    match value:
        case str():
            return 1 + len(value)
        case list() | tuple():
            return 1 + sum(map(size, value))
        case dict():
            return size(list(value)) + size(list(value.values()))
    return 1


def evaluated(text: str) -> object:
    """What Python gives, as a text that tells 1 from True and -0.0 from 0.0.

    None for an error, and for what is larger than anything of ours may be.
    """
    try:
        value = eval(text, {"__builtins__": {}})
    except Exception:
        return None
    return None if size(value) > MOST_ELEMENTS else repr(value)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(TEXTS)
@example("[(512,10,5)] + [(512,3,2)] * 4 + [(512,2,2)] * 2")
@example("{'left': [True, None], 'right': -1e-3}")
@example("[(1, 2)] * 33333")
@example("33334 * [(1, 2)]")
@example("'a' * 99999 + 'b'")
def test_what_python_evaluates(text: str):
    """The same value as from `eval`, and a refusal just where that ends in an error."""
    expected = evaluated(text)
    if expected is None:
        with pytest.raises(LiteralError):
            literal(text)
    else:
        assert repr(literal(text)) == expected


@settings(max_examples=300, deadline=None, derandomize=True)
@given(PLAIN)
@example({"nan": None})
@example([float("nan"), "inf"])
def test_what_ast_literal_eval_reads(value: object):
    text = repr(value)
    try:
        expected = ast.literal_eval(text)
    except ValueError:  # a number that is not finite: its text is a name
        with pytest.raises(LiteralError):
            literal(text)
    else:
        assert repr(literal(text)) == repr(expected) == text


@pytest.mark.parametrize("text", RUNS)
def test_nothing_else(text: str):
    with pytest.raises(LiteralError, match="must be a literal") as refused:
        literal(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", HUGE)
def test_huge_ones_are_refused(kind: str):
    with pytest.raises(LiteralError) as refused:
        literal(HUGE[kind])
    assert len(str(refused.value)) < 400


def test_no_string():
    """`eval_bool` of fairseq takes this error for "use the default"."""
    with pytest.raises(TypeError):
        literal(5)  # type: ignore[arg-type]


def test_fairseq_reads_options_as_before():
    from fairseq import utils

    assert utils.eval_str_list("(0.9, 0.98)") == [0.9, 0.98]
    assert utils.eval_str_list("3", type=int) == [3]
    assert utils.eval_str_dict("{'left': 1}") == {"left": 1}
    assert utils.eval_bool("True") is True
    assert utils.eval_bool(5, default=True) is True
    with pytest.raises(LiteralError, match=r"has `__import__\('os'\)` in it"):
        utils.eval_bool("__import__('os')")


def sources() -> dict[str, Path]:
    """Every module of fairseq and of its commands, by its name."""
    result = {}
    for package in loading.PACKAGES:
        (folder,) = importlib.util.find_spec(package).submodule_search_locations
        for path in Path(folder).rglob("*.py"):
            parts = path.relative_to(Path(folder).parent).with_suffix("").parts
            result[".".join(parts).removesuffix(".__init__")] = path
    return result


def test_every_module_of_fairseq_has_it():
    count = 0
    for name in sources():
        if name in sys.modules:
            assert sys.modules[name].__dict__["eval"] is literal, name
            count += 1
    assert count > 300


def test_a_module_imported_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is there before the module's first line, and the loader's other methods still work."""
    import fairseq

    (tmp_path / "later.py").write_text("FIRST = eval\ndef read(text):\n    return eval(text)\n")
    monkeypatch.setattr(fairseq, "__path__", [*fairseq.__path__, str(tmp_path)])
    module = importlib.import_module("fairseq.later")
    try:
        assert module.FIRST is literal
        assert module.read("[1] * 2") == [1, 1]
        assert "FIRST" in module.__loader__.get_source("fairseq.later")
    finally:
        del sys.modules["fairseq.later"]


def test_python_itself_is_untouched():
    import builtins
    import collections

    assert builtins.eval is not literal
    assert "eval" not in math.__dict__
    assert collections.namedtuple("Pair", "a b")(1, 2).b == 2


@pytest.mark.system
def test_under_python_m(tmp_path: Path):
    """`python -m fairseq_cli.train` has its own copy of the command, in `__main__`."""
    plugin = tmp_path / "plugin_main"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(
        "import fairseq_ext, sys\nfairseq_ext.register()\n"
        "sys.exit(sys.modules['__main__'].eval.__module__)\n"
    )
    words = ("-m", "fairseq_cli.eval_lm", tmp_path, "--user-dir", plugin)
    done = run(sys.executable, *words, ok=False)
    assert done.stderr.splitlines()[-1] == "fairseq_ext.utils.literals"
