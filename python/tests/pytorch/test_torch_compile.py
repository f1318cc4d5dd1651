"""What `torch.compile(..., backend="hologram")` does besides models: inputs, options, errors, devices."""

import copy
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import hologram_torch  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function, **options):
    return torch.compile(function, backend="hologram", **({"options": options} if options else {}))


def same(function, *inputs, **tolerance):
    expected = function(*inputs)
    torch._dynamo.reset()
    got = compiled(function)(*inputs)
    torch.testing.assert_close(got, expected, **tolerance)


def test_an_unknown_operation_is_named_with_its_line():
    def model(x):
        y = x + 1
        return torch.linalg.svdvals(y)  # the line

    with pytest.raises(Exception, match="aten._linalg_svd.default") as caught:
        compiled(model)(torch.randn(4, 4))
    assert "torch.linalg.svdvals(y)  # the line" in str(caught.value)
    assert 'options={"fallback": "eager"}' in str(caught.value)


def test_the_fallback_splits_the_graph_and_says_so():
    def model(x):
        y = torch.sin(x) * 2
        return (torch.linalg.svdvals(y) + 1).sum()

    x = torch.randn(4, 4, requires_grad=True)
    expected = model(x)
    expected.backward()
    wanted, x.grad = x.grad, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = compiled(model, fallback="eager")(x)
        got.backward()
    assert any("torch runs aten._linalg_svd.default" in str(w.message) for w in caught)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(x.grad, wanted)


@pytest.mark.parametrize(
    "options, reason", [({"devise": "cpu"}, "no option devise"), ({"fallback": "x"}, "fallback is")]
)
def test_wrong_options_are_errors(options, reason):
    with pytest.raises(Exception, match=reason):
        compiled(lambda x: x + 1, **options)(torch.ones(2))


def test_mutated_inputs_and_buffers_change():
    def step(x, y):
        x.mul_(2).add_(y)
        return x.sum()

    x, y = torch.randn(5), torch.randn(5)
    expected = x.clone()
    total = step(expected, y)
    address = x.data_ptr()
    torch.testing.assert_close(compiled(step)(x, y), total)
    torch.testing.assert_close(x, expected)
    assert x.data_ptr() == address
    model = nn.BatchNorm1d(3)
    own = copy.deepcopy(model)
    inputs = torch.randn(8, 3)
    torch.testing.assert_close(compiled(own)(inputs), model(inputs))
    torch.testing.assert_close(own.running_mean, model.running_mean)
    assert own.num_batches_tracked == 1


def test_strided_inputs_and_results_keep_their_strides():
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    same(conv, image, rtol=1e-4, atol=1e-5)
    x = torch.randn(6, 8)
    for view in (x.t(), x[:, 1:7:2], x[1:, 3], x.expand(3, 6, 8), x[0, 0], x[:0]):
        same(lambda x: x * 2 + 1, view)
    result = compiled(lambda x: x.t() * 2)(x)
    assert result.stride() == (x.t() * 2).stride()
    # The same code with other strides of the same shape.
    call = compiled(lambda x: x @ x)
    for square in (torch.randn(4, 4), torch.randn(4, 4).t(), torch.randn(4, 8)[:, ::2], torch.randn(17)[1:].view(4, 4)):
        torch.testing.assert_close(call(square), square @ square)


def test_inference_mode_and_views_of_results():
    with torch.inference_mode():
        x = torch.randn(3, 4)
        got = compiled(lambda x: (x + 1, (x + 1).view(2, 6), x, x[1]))(x)
    torch.testing.assert_close(got[1], (x + 1).view(2, 6))
    assert got[2] is x
    torch.testing.assert_close(got[3], x[1])


def test_batches_of_any_size():
    model = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 2))
    call = compiled(model)
    for n in (2, 3, 4, 9, 1, 3):
        x = torch.randn(n, 5, requires_grad=True)
        got = call(x)
        got.square().sum().backward()
        grad, x.grad = x.grad, None
        expected = model(x)
        expected.square().sum().backward()
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(grad, x.grad)


def test_autocast_computes_in_bfloat16():
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    own = copy.deepcopy(model)
    x = torch.randn(8, 16)
    results = []
    for call, parameters in ((model, model), (compiled(own), own)):
        with torch.autocast("cpu", torch.bfloat16):
            y = call(x)
        y.float().square().mean().backward()
        results.append((y, [p.grad for p in parameters.parameters()]))
    assert results[1][0].dtype == torch.bfloat16
    torch.testing.assert_close(results[1][0], results[0][0], rtol=3e-2, atol=3e-2)
    for got, expected in zip(results[1][1], results[0][1], strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, expected, rtol=6e-2, atol=2e-2)


def test_random_numbers_follow_the_seed():
    call = compiled(lambda x: nn.functional.dropout(x, 0.25))
    x = torch.ones(10_000)
    torch.manual_seed(1)
    first, second = call(x), call(x)
    torch.manual_seed(1)
    again = call(x)
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    assert (first != second).any()
    assert first.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert 0.23 < (first == 0).float().mean() < 0.27
    two = compiled(lambda x: (torch.rand_like(x), torch.rand_like(x)))(x)
    assert (two[0] != two[1]).any()


def test_dropout_drops_the_gradients_of_what_it_dropped():
    x = torch.ones(1000, requires_grad=True)
    y = compiled(lambda x: nn.functional.dropout(x, 0.5))(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())


def test_parameters_on_another_device_are_copied_once_per_change(monkeypatch):
    model = nn.Linear(4, 3)
    uploads = []
    upload = hologram_torch._call._upload
    monkeypatch.setattr(hologram_torch._call, "_upload", lambda t, d: uploads.append(t.shape) or upload(t, d))
    monkeypatch.setattr(hologram_torch._call, "_works_in_memory_of", lambda device, own: False)
    call = compiled(model, device="reference")
    x = torch.randn(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        del uploads[:]
        with torch.no_grad():
            torch.testing.assert_close(call(x), model(x))
            torch.testing.assert_close(call(x), model(x))
        # The input twice, the weight and the bias once, and again after the optimiser wrote them.
        assert sorted(map(len, uploads)) == [1, 2, 2, 2], step
        model(x).sum().backward()
        optimizer.step()


def test_an_index_out_of_range_is_an_error():
    call = compiled(lambda table, i: table[i])
    table = torch.arange(10.0).view(5, 2)
    torch.testing.assert_close(call(table, torch.tensor([4, -5, -1])), table[[4, 0, 4]])
    for wrong in (5, -6, 2**40):
        with pytest.raises(Exception, match="out of|outside|bounds"):
            call(table, torch.tensor([0, wrong, 1]))


def test_optimisers_compile():
    model = nn.Linear(4, 3)
    own = copy.deepcopy(model)
    for parameters, compile_it in ((model, False), (own, True)):
        optimizer = torch.optim.AdamW(parameters.parameters(), lr=0.1)
        step = compiled(optimizer.step) if compile_it else optimizer.step
        for k in range(3):
            for p in parameters.parameters():
                p.grad = torch.full_like(p, 0.1 * (k + 1))
            step()
    for got, expected in zip(own.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got, expected)


def test_assertions_of_a_model_hold_or_raise():
    def twice_one_hot(i):
        return torch.nn.functional.one_hot(i, num_classes=3) * 2

    call = compiled(twice_one_hot)
    torch.testing.assert_close(call(torch.tensor([0, 2])), torch.tensor([[2, 0, 0], [0, 0, 2]]))
    # Whether the graph has the assertion is torch's choice: with a GPU its versions differ.
    try:
        torch.compile(twice_one_hot, backend="aot_eager")(torch.tensor([0, 3]))
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match="num_classes"):
            call(torch.tensor([0, 3]))
        assert "num_classes" in str(error)


@pytest.mark.skipif(sys.platform != "linux", reason="torch's threads are not those of GCC's runtime elsewhere")
def test_graphs_on_the_cpu_run_on_torchs_threads():
    from hologram_torch._call import _openmp

    assert _openmp() != 0
    model, x = nn.Sequential(nn.Linear(300, 500), nn.Softmax(-1)), torch.randn(70, 300)
    call, threads = compiled(model), torch.get_num_threads()
    results = []
    try:
        for n in (1, 2, 5):
            torch.set_num_threads(n)
            results.append(call(x))
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(results[0], model(x))
    assert all(torch.equal(results[0], other) for other in results[1:])
