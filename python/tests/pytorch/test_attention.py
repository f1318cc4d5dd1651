"""Fused attention: what a graph is made of it, and its results on a GPU."""

import pytest

torch = pytest.importorskip("torch")

from torch import fx  # noqa: E402

import hologram_torch  # noqa: E402, F401
from hologram_torch import _attention  # noqa: E402

aten = torch.ops.aten
EFFICIENT = aten._scaled_dot_product_efficient_attention.default


def module_of(mask):
    """A graph with attention whose mask `mask` makes of the graph and a placeholder."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = mask(graph, x)
    made.meta["val"] = torch.empty(2, 1, 5, 5, device="meta")
    attention = graph.call_function(EFFICIENT, (x, x, x, made, True))
    graph.output((attention,))
    return fx.GraphModule(torch.nn.Module(), graph)


def attention_of(module):
    (node,) = (node for node in module.graph.nodes if node.target is EFFICIENT)
    return node


def hides(after):
    """A mask that hides keys more than `after` positions after a query."""

    def mask(graph, x):
        places = graph.call_function(aten.arange.default, (5,))
        own = graph.call_function(aten.view.default, (places, [5, 1]))
        own = graph.call_function(aten.add.Tensor, (own, after))
        seen = graph.call_function(aten.le.Tensor, (places, own))
        seen = graph.call_function(aten.expand.default, (seen, [2, 1, 5, 5]))
        numbers = [graph.call_function(aten.full.default, ([], n)) for n in (0.0, -float("inf"))]
        return graph.call_function(aten.where.self, (seen, *numbers))

    return mask


def test_a_causal_mask_is_no_operand():
    module = module_of(hides(0))
    _attention.simplify(module)
    attention = attention_of(module)
    assert attention.args[3] is None and attention.kwargs == {"is_causal": True}
    assert not any(node.target is aten.arange.default for node in module.graph.nodes)


@pytest.mark.parametrize("mask", [hides(1), hides(-1), lambda graph, x: x], ids=["later", "earlier", "unknown"])
def test_other_masks_stay(mask):
    module = module_of(mask)
    _attention.simplify(module)
    assert isinstance(attention_of(module).args[3], fx.Node) and not attention_of(module).kwargs


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("n", "m", "d", "options"),
    [
        (70, 70, 64, {"is_causal": True}),
        (70, 70, 128, {"is_causal": True}),
        (33, 70, 64, {}),
        (40, 56, 64, {"is_causal": True}),
        (40, 40, 80, {"is_causal": True, "scale": 0.2}),
        (40, 40, 64, {"attn_mask": "bias"}),
        (40, 40, 64, {"attn_mask": "bool"}),
    ],
)
def test_attention_has_torchs_gradients_on_a_gpu(dtype, n, m, d, options):
    torch._dynamo.reset()
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, size, d, device="cuda", dtype=dtype, requires_grad=True) for size in (n, m, m))
    options = dict(options)
    match options.get("attn_mask"):
        case "bias":
            options["attn_mask"] = torch.randn(2, 1, n, m, device="cuda", dtype=dtype)
        case "bool":
            options["attn_mask"] = torch.rand(n, m, device="cuda") < 0.8

    def attention(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    grad = torch.randn(2, 4, n, d, device="cuda", dtype=dtype)
    got = torch.compile(attention, backend="hologram")(q, k, v)
    got = [got, *torch.autograd.grad(got, (q, k, v), grad)]
    if isinstance(mask := options.get("attn_mask"), torch.Tensor) and mask.is_floating_point():
        options["attn_mask"] = mask.double()
    wanted = attention(q.double(), k.double(), v.double())
    wanted = [wanted, *torch.autograd.grad(wanted, (q, k, v), grad.double())]
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4}[dtype]
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance * b.abs().max().item())
