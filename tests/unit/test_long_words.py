"""Long words are encoded in nearly linear time, into the pieces that subword-nmt gives."""

from __future__ import annotations

import io
import random
import time
from pathlib import Path

import pytest
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from fairseq_ext.text import subwords
from tests.support.harness import write_lines


@pytest.fixture(scope="module", params=["0.1", "0.2"])
def codes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(1)
    words = ["".join(draw.choices("abc", k=draw.randint(1, 9))) for _ in range(400)]
    merges = io.StringIO()
    learn_bpe(io.StringIO(" ".join(words) + "\n"), merges, 60)
    lines = merges.getvalue().splitlines()
    header = f"#version: {request.param}"
    return write_lines(tmp_path_factory.mktemp("codes") / "codes", [header, *lines[1:]])


def test_the_pieces_are_those_of_subword_nmt(codes: Path):
    with codes.open(encoding="utf-8") as file:
        library = BPE(file)
    encode, draw = subwords.Merges(codes), random.Random(2)
    words = ["".join(draw.choices("abcd", k=draw.randint(1, 300))) for _ in range(60)]
    words += ["", "a", "a" * 101, "ab" * 70, "aab" * 51 + "é"]
    for word in words:
        assert encode(word) == " ".join(library.segment_tokens([word]))


def test_a_word_of_many_letters_takes_no_longer_than_its_letters(codes: Path):
    encode = subwords.Merges(codes)
    start = time.process_time()
    assert encode("abcab" * 20_000).replace("@@ ", "") == "abcab" * 20_000
    assert time.process_time() - start < 20  # subword-nmt takes hours
