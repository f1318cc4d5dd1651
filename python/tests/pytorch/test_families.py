"""Families of models compiled by `torch.compile(model, backend="hologram")`, against torch.

HOLOGRAM_TORCH_DEVICE names the device of torch's tensors, "cpu" or "cuda".
"""

import copy
import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from families import MORE, MUST  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import hologram_torch  # noqa: E402

EXACT = {"rtol": 1e-3, "atol": 1e-5}
DEVICE = os.environ.get("HOLOGRAM_TORCH_DEVICE", "cpu")
# torch's convolutions on a GPU would round to 10 bits.
torch.backends.cudnn.allow_tf32 = False


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def made(name):
    make, inputs = (MUST | MORE)[name]
    model = make().to(DEVICE)
    return model, {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in inputs().items()}


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MUST | MORE)
def test_outputs_and_gradients_are_torchs(name):
    model, inputs = made(name)
    expected = model(**inputs)
    expected.loss.backward()
    wanted = gradients(model)
    model.zero_grad()
    got = torch.compile(copy.deepcopy(model), backend="hologram")
    outputs = got(**inputs)
    outputs.loss.backward()
    torch.testing.assert_close(outputs.loss, expected.loss, **EXACT)
    torch.testing.assert_close(outputs.logits, expected.logits, **EXACT)
    found = {name.removeprefix("_orig_mod."): grad for name, grad in gradients(got).items()}
    assert found.keys() == wanted.keys()
    for key, grad in wanted.items():
        torch.testing.assert_close(found[key], grad, **EXACT, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", MUST)
def test_fifty_steps_of_adamw_give_torchs_losses(name):
    model, inputs = made(name)
    losses = []
    for compiled in (False, True):
        own = copy.deepcopy(model)
        call = torch.compile(own, backend="hologram") if compiled else own
        optimizer = torch.optim.AdamW(own.parameters(), lr=1e-3)
        curve = []
        for _ in range(50):
            optimizer.zero_grad()
            loss = call(**inputs).loss
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        losses.append(curve)
    for step, (expected, got) in enumerate(zip(*losses, strict=True)):
        assert got == pytest.approx(expected, rel=5e-3), f"step {step}"
    assert losses[0][-1] < losses[0][0]


class Counted(TorchDispatchMode):
    """Counts torch's own kernels."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        # New memory needs no kernel.
        if not str(function).startswith("aten.empty"):
            self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", MUST)
def test_no_kernel_of_torch_runs_and_graphs_are_as_many_as_dynamos(name, monkeypatch):
    model, inputs = made(name)
    # Dynamo's graphs, and those of them that a call runs. Some models are compiled again in the second call.
    made_of, run_of = [], []

    def counting(module, examples):
        made_of.append(module)
        return lambda *args: (run_of.append(module), module(*args))[1]

    counted_model = torch.compile(copy.deepcopy(model), backend=counting)
    for _ in range(3):
        run_of.clear()
        counted_model(**inputs).loss.backward()
    torch._dynamo.reset()
    graphs, calls = [], []
    # Dynamo does not run compiled code where such a mode is active already, so it begins in the call.
    counted, run = Counted(), hologram_torch._call.Callable.__call__

    def watched(self, args):
        calls.append(self)
        with counted:
            return run(self, args)

    def backend(module, examples, **options):
        graphs.append(module)
        return hologram_torch.backend(module, examples, **options)

    monkeypatch.setattr(hologram_torch._call.Callable, "__call__", watched)
    compiled = torch.compile(model, backend=backend)
    for _ in range(3):
        # Earlier calls also move constants to the device.
        calls.clear()
        counted.names.clear()
        compiled(**inputs).loss.backward()
    assert len(graphs) == len(made_of)
    assert len(calls) == 2 * len(run_of), "a forward and a backward graph each"
    assert not counted.names, counted.names
