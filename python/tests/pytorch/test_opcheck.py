"""The functionals as operators of torch: `torch.library.opcheck` finds operands that are changed or handed back,
results of another layout than torch's, and gradients that are others within AOTAutograd's graphs.

On the CPU only: on a GPU torch's engine would wait in its own thread for the gradients that it is to compute there.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import test_functional  # noqa: E402
from test_functional import CASES  # noqa: E402

# What an operator runs is below autograd, which is a state of its thread.
ABOVE = ThreadPoolExecutor(1)


@pytest.fixture(autouse=True)
def cpu_tensors(monkeypatch):
    monkeypatch.setattr(test_functional, "DEVICE", "cpu")
    monkeypatch.setattr(test_functional, "CLASSES", test_functional.CLASSES.cpu())


def operator(name, function, result, count):
    """An operator of `count` operands that computes `function`; its results are laid out as `result`."""
    name = "hologram_opcheck::" + re.sub(r"\W+", "_", name)
    operands = ", ".join(f"Tensor x{i}" for i in range(count))

    def value(*operands):
        return ABOVE.submit(lambda: function(*(x.detach() for x in operands))).result()

    def gradients(grad, *operands):
        def run():
            leaves = [x.detach().requires_grad_() for x in operands]
            return [x.contiguous() for x in torch.autograd.grad(function(*leaves), leaves, grad.detach())]

        return ABOVE.submit(run).result()

    own = torch.library.custom_op(name, value, mutates_args=(), schema=f"({operands}) -> Tensor")
    backward = torch.library.custom_op(
        f"{name}_gradients", gradients, mutates_args=(), schema=f"(Tensor grad, {operands}) -> Tensor[]"
    )
    own.register_fake(lambda *operands: operands[0].new_empty_strided(result.shape, result.stride()))
    backward.register_fake(lambda grad, *operands: [torch.empty_like(x) for x in operands])
    own.register_autograd(
        lambda ctx, grad: tuple(backward(grad, *ctx.saved_tensors)),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return own


@pytest.mark.parametrize("name", CASES)
def test_functionals_are_operators(name):
    torch.manual_seed(0)
    ours, torchs, make = CASES[name]
    operands = make()
    torch.library.opcheck(operator(name, ours, torchs(*operands).detach(), len(operands)), operands)


def test_a_changed_operand_is_found():
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    changing = operator("changing", lambda x: x.mul_(2) + 0, x.detach(), 1)
    with pytest.raises(Exception, match="not defined as mutable"):
        torch.library.opcheck(changing, (x,), test_utils="test_schema")
