"""Which operators a model gets, and that no copy of its weights outlives them."""

import copy

import pytest
import torch
import torch.nn.functional as F

from tinyengine import Engine, load_model
from tinyengine.operators import PLAIN, PackedForOneDNN, PackedForOneThread, plain


@pytest.fixture(params=[PackedForOneThread, PackedForOneDNN])
def model(request, random_model, monkeypatch):
    """For which `plain` has operators of the kind."""
    if request.param is PackedForOneDNN:
        monkeypatch.setattr(PackedForOneThread, "suits", lambda model: False)
    if type(plain(random_model)) is not request.param:
        pytest.skip(f"{request.param.__name__} needs numba and an x86 CPU")
    return copy.deepcopy(random_model)


def write_in_place(model):
    with torch.no_grad():
        for weight in model.parameters():
            weight.neg_()


def replace(model):
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight = torch.nn.Parameter(-module.weight.detach())


def assign(model):
    model.load_state_dict({name: -weight for name, weight in model.state_dict().items()}, assign=True)


def round_off(model):
    for _ in range(4):  # some weight comes to lie where an earlier one lay
        model.bfloat16().float()


@pytest.mark.parametrize("change", [write_in_place, replace, assign, round_off])
@torch.inference_mode()
def test_products_are_those_of_the_weights_as_they_are(model, change):
    before = plain(model)
    assert plain(model) is before
    with torch.inference_mode(False):
        change(model)
    after = plain(model)
    assert after is not before and plain(model) is after
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            x = torch.randn(5, module.in_features)
            for operators in before, after:  # the first serve engines that were made before
                torch.testing.assert_close(operators.linear(x, module.weight), F.linear(x, module.weight))


def test_a_model_that_was_loaded_in_inference_mode_is_served(random_folder, random_model):
    with torch.inference_mode():
        model = load_model(random_folder, device="cpu")
    prompts = [[1, 2, 3], [4] * 20]
    got, wanted = ([o.token_ids for o in Engine(own, num_slots=64).generate(prompts)] for own in (model, random_model))
    assert got == wanted


def test_bfloat16_has_the_operators_of_torch(model):
    assert plain(model.bfloat16()) is PLAIN
