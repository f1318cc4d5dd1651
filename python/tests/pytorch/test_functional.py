"""`hologram_torch.functional` and `hologram_torch.nn`, against torch.

HOLOGRAM_TORCH_DEVICE names the device of torch's tensors, "cpu" or "cuda".
"""

import os

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import hologram_torch  # noqa: E402
from hologram_torch import functional as f  # noqa: E402
from hologram_torch import nn  # noqa: E402

DEVICE = os.environ.get("HOLOGRAM_TORCH_DEVICE", "cpu")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64, device=DEVICE, requires_grad=True)


CLASSES = torch.tensor([2, 0, 3], device=DEVICE)

#: Name: our function, torch's, operands in double precision.
CASES = {
    "linear": (f.linear, F.linear, lambda: (numbers(2, 3, 4), numbers(5, 4), numbers(5))),
    "linear, no bias": (f.linear, F.linear, lambda: (numbers(3, 4), numbers(5, 4))),
    "matmul": (f.matmul, torch.matmul, lambda: (numbers(2, 3, 4), numbers(4, 5))),
    "matmul of batches": (f.matmul, torch.matmul, lambda: (numbers(2, 1, 3, 4), numbers(3, 4, 2))),
    "matmul of vectors": (f.matmul, torch.matmul, lambda: (numbers(4), numbers(4))),
    "embedding": (lambda w: f.embedding(CLASSES, w), lambda w: F.embedding(CLASSES, w), lambda: (numbers(5, 3),)),
    "relu": (f.relu, F.relu, lambda: (numbers(3, 4),)),
    "sigmoid": (f.sigmoid, torch.sigmoid, lambda: (numbers(3, 4),)),
    "tanh": (f.tanh, torch.tanh, lambda: (numbers(3, 4),)),
    "silu": (f.silu, F.silu, lambda: (numbers(3, 4),)),
    "gelu": (f.gelu, F.gelu, lambda: (numbers(3, 4),)),
    "gelu tanh": (
        lambda x: f.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh"), lambda: (numbers(3, 4),)
    ),
    "softmax": (lambda x: f.softmax(x, dim=0), lambda x: x.softmax(0), lambda: (numbers(3, 4),)),
    "log_softmax": (lambda x: f.log_softmax(x, dim=1), lambda x: x.log_softmax(1), lambda: (numbers(3, 4, 2),)),
    "layer_norm": (
        lambda x, w, b: f.layer_norm(x, 4, w, b, 1e-3), lambda x, w, b: F.layer_norm(x, (4,), w, b, 1e-3),
        lambda: (numbers(3, 4), numbers(4), numbers(4)),
    ),
    "layer_norm, no weight": (
        lambda x: f.layer_norm(x, (3, 4)), lambda x: F.layer_norm(x, (3, 4)), lambda: (numbers(2, 3, 4),)
    ),
    "cross_entropy": (
        lambda x: f.cross_entropy(x, CLASSES), lambda x: F.cross_entropy(x, CLASSES), lambda: (numbers(3, 4),)
    ),
    "cross_entropy, smooth": (
        lambda x: f.cross_entropy(x, CLASSES, "sum", label_smoothing=0.1, ignore_index=0),
        lambda x: F.cross_entropy(x, CLASSES, reduction="sum", label_smoothing=0.1, ignore_index=0),
        lambda: (numbers(3, 4),),
    ),
    **{
        f"mse_loss {reduction}": (
            lambda x, t, reduction=reduction: f.mse_loss(x, t, reduction),
            lambda x, t, reduction=reduction: F.mse_loss(x, t, reduction=reduction),
            lambda: (numbers(3, 4), numbers(3, 4)),
        )
        for reduction in ("none", "mean", "sum")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    ours, torchs, make = CASES[name]
    operands = make()
    torch.testing.assert_close(ours(*operands), torchs(*operands), rtol=1e-9, atol=1e-12)
    assert torch.autograd.gradcheck(ours, operands)


@pytest.mark.parametrize("name", CASES)
def test_single_precision(name):
    ours, torchs, make = CASES[name]
    sides = []
    operands = make()
    for function in (ours, torchs):
        own = [x.detach().float().requires_grad_() for x in operands]
        result = function(*own)
        result.square().sum().backward()
        sides.append((result, *(x.grad for x in own)))
    for got, expected in zip(*sides, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", [None, "auto", "cpu", "reference"])
def test_a_linear_layer_learns(backend):
    # A backend without a name is the device of the tensors.
    device = DEVICE if backend in (None, "auto") else "cpu"
    layer = nn.Linear(16, 8, backend=backend).to(device)
    target = torch.nn.Linear(16, 8).to(device)
    x = torch.randn(64, 16, device=device)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(60 if backend != "reference" else 3):
        optimizer.zero_grad()
        loss = f.mse_loss(layer(x), target(x).detach(), backend=backend)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * (0.05 if backend != "reference" else 1)


def test_modules_have_torchs_state_and_compile():
    own = torch.nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Softmax(dim=-1))
    other = torch.nn.Sequential(
        torch.nn.Embedding(7, 8), torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Softmax(-1)
    )
    other.load_state_dict(own.state_dict())
    own, other = own.to(DEVICE), other.to(DEVICE)
    ids = torch.tensor([[1, 2, 6]], device=DEVICE)
    torch.testing.assert_close(own(ids), other(ids))
    compiled = torch.compile(own, backend="hologram", fullgraph=True)
    torch.testing.assert_close(compiled(ids), other(ids))
    loss = nn.CrossEntropyLoss()(own(ids)[0], CLASSES)
    torch.testing.assert_close(loss, torch.nn.CrossEntropyLoss()(other(ids)[0], CLASSES))
    assert "Linear" in hologram_torch.nn.__all__
