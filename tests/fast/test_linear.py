"""Our own matrix product against float64, for any number of rows and columns; and that a row has the same bits in any
batch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="numba is not installed: pip install numba")

from tinyengine.fast.kernels.cpu.linear import WIDTH, linear, pack

SIZES = st.one_of(st.integers(1, 40), st.sampled_from([WIDTH - 1, WIDTH, WIDTH + 1, 2 * WIDTH, 3 * WIDTH + 5, 300]))


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return linear(x, pack(weight), len(weight))


@settings(max_examples=150, deadline=None)
@given(rows=st.integers(0, 14), size=SIZES, out=SIZES, seed=st.integers(0, 99))
def test_a_product_is_that_of_float64(rows, size, out, seed):
    rng = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(rows, size, generator=rng), torch.randn(out, size, generator=rng)
    y = product(x, weight)
    assert y.shape == (rows, out) and y.is_contiguous() and y.dtype == torch.float32
    torch.testing.assert_close(y.double(), x.double() @ weight.double().T, atol=2e-5, rtol=1e-5)


def test_a_product_of_many_rows_and_numbers_is_that_of_float64():
    x, weight = torch.randn(130, 1100), torch.randn(2 * WIDTH + 1, 1100)
    torch.testing.assert_close(product(x, weight).double(), x.double() @ weight.double().T, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("out", [WIDTH // 2, 3 * WIDTH + 5])
def test_no_bit_of_a_row_depends_on_the_others(out):
    x, weight = torch.randn(11, 100), torch.randn(out, 100)
    packed = pack(weight)
    whole = linear(x, packed, out)
    for row in range(11):
        assert torch.equal(linear(x[row : row + 1], packed, out)[0], whole[row])
        assert torch.equal(linear(x[: row + 1], packed, out)[-1], whole[row])


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_row_of_nan_or_infinity_stays_in_its_row(poison):
    x, weight = torch.randn(6, 100), torch.randn(WIDTH + 3, 100)
    right = product(x, weight)
    x[4] = poison
    others = [0, 1, 2, 3, 5]
    y = product(x, weight)
    assert not y[4].isfinite().any() and torch.equal(y[others], right[others])


def test_x_need_not_be_contiguous_and_is_left_as_it_was():
    x, weight = torch.randn(100, 7).T, torch.randn(WIDTH, 100)
    before = x.clone()
    assert torch.equal(product(x, weight), product(x.contiguous(), weight)) and torch.equal(x, before)


def test_a_packed_weight_holds_each_column_where_the_product_looks_for_it():
    weight = torch.arange(3.0 * (WIDTH + 2)).view(WIDTH + 2, 3)
    packed = pack(weight)
    assert packed.shape == (2, 3, WIDTH) and packed.is_contiguous()
    assert torch.equal(packed[0].T, weight[:WIDTH]) and torch.equal(packed[1].T, weight[2:])
    assert not pack(weight[:2])[0, :, 2:].any()
