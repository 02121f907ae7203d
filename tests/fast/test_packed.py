"""Which operators a model gets, and that no copy of its weights outlives them."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F

from tinyengine import Engine, load_model
from tinyengine.fast import operators
from tinyengine.fast.operators import PackedForOneDNN, PackedForOneThread, fastest
from tinyengine.operators import TORCH


@pytest.fixture(params=[PackedForOneThread, PackedForOneDNN])
def model(request, random_model, monkeypatch):
    """For which `fastest` has operators of the kind."""
    if request.param is PackedForOneDNN:
        monkeypatch.setattr(PackedForOneThread, "why_not", lambda model: "it is not to be")
    if type(fastest(random_model)) is not request.param:
        pytest.skip(f"{request.param.__name__} needs numba and an x86 CPU")
    return copy.deepcopy(random_model)


def write_in_place(model):
    with torch.no_grad():
        for weight in model.parameters():
            weight.neg_()


def write_unnoticed(model):
    for weight in model.parameters():
        weight.data.neg_()


def replace(model):
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight = torch.nn.Parameter(-module.weight.detach())


def assign(model):
    model.load_state_dict({name: -weight for name, weight in model.state_dict().items()}, assign=True)


def round_off(model):
    for _ in range(4):  # some weight comes to lie where an earlier one lay
        model.bfloat16().float()


@pytest.mark.parametrize("change", [write_in_place, write_unnoticed, replace, assign, round_off])
@torch.inference_mode()
def test_a_new_engine_multiplies_by_the_weights_as_they_are(model, change):
    before = fastest(model)
    assert fastest(model) is before
    with torch.inference_mode(False):
        change(model)
    after = fastest(model)
    assert after is not before and fastest(model) is after
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            x = torch.randn(5, module.in_features)
            torch.testing.assert_close(after.linear(x, module.weight), F.linear(x, module.weight))


@torch.inference_mode()
def test_a_weight_that_was_replaced_meets_no_copy_of_the_old_one(model):
    """An engine that was made before goes on with what it is given."""
    before = fastest(model)
    with torch.inference_mode(False):
        replace(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            x = torch.randn(5, module.in_features)
            torch.testing.assert_close(before.linear(x, module.weight), F.linear(x, module.weight))


def test_another_number_of_threads_has_operators_of_its_own(model):
    threads, before = torch.get_num_threads(), fastest(model)
    try:
        torch.set_num_threads(threads % 2 + 1)
        assert fastest(model) is not before
    finally:
        torch.set_num_threads(threads)


def test_copies_end_with_their_model(model):
    other = copy.deepcopy(model)
    fastest(other)
    gc.collect()  # the models of other tests
    count = len(operators._made)
    del other
    gc.collect()
    assert len(operators._made) == count - 1


def test_a_model_that_was_loaded_in_inference_mode_is_served(random_folder, random_model):
    with torch.inference_mode():
        model = load_model(random_folder, device="cpu")
    prompts = [[1, 2, 3], [4] * 20]
    got, wanted = ([o.token_ids for o in Engine(own, num_slots=64).generate(prompts)] for own in (model, random_model))
    assert got == wanted


def test_bfloat16_has_the_operators_of_torch(model):
    assert fastest(model.bfloat16()) is TORCH
