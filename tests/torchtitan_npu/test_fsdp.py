"""FSDP on 2 and 4 ranks against 1 rank, from one seed checkpoint, in float32."""

from pathlib import Path

import pytest

from tests.torchtitan_npu.layouts import Curves, Layouts, assert_trains_as
from tests.torchtitan_npu.runs import LLAMA


@pytest.fixture(scope="module")
def layouts(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Layouts:
    return Layouts.make(tmp_path_factory.mktemp("fsdp"), data, LLAMA)


@pytest.fixture(scope="module")
def one_rank(layouts: Layouts) -> Curves:
    return layouts.train("one", 1, 1)


@pytest.mark.parametrize("degree", [2, 4])
def test_more_ranks_train_as_one(layouts: Layouts, one_rank: Curves, degree: int) -> None:
    assert_trains_as(layouts.train(f"ranks-{degree}", degree, degree), one_rank)
