"""Gradients against central differences, optimizers against their formulas, and layers that learn."""

import math

import pytest

import hologram as hg
from hologram import nn, optim


def numbers(shape, seed):
    hg.random.seed(seed)
    x = hg.random.normal(shape, dtype=hg.float32)
    # Not close to 0, where some functions have a corner.
    return hg.where(hg.abs(x) < 0.1, x + 0.3, x)


def close(a, b, tolerance=1e-5):
    assert a.shape == b.shape and a.dtype == b.dtype
    assert float(hg.max(hg.abs(a - b))) <= tolerance


FUNCTIONS = {
    "arithmetic": lambda x: hg.sum(hg.exp(x) * x / (x * x + 1) - hg.abs(x) ** 3),
    "where": lambda x: hg.sum(hg.where(x > 0, x * x, hg.sin(x))),
    "std": lambda x: hg.std(x) + hg.mean(hg.var(x, axis=0)),
    "indexing": lambda x: hg.sum(x[1:, 0] * x[0, 1:3]) + x[-1, -1] ** 2,
    "matmul": lambda x: hg.sum(hg.tanh(x @ hg.matrix_transpose(x))),
    "vectors": lambda x: x[0] @ x[1] + hg.sum((x @ x[2]) * (hg.asarray([1.0, 2.0, 3.0]) @ x)[0]),
    "concat": lambda x: hg.sum(hg.concat([x, x * 2], axis=1)[:, 2:5] ** 2),
    "take": lambda x: hg.sum(hg.take(x, hg.asarray([0, 2, 0]), axis=0) ** 2),
    "softmax": lambda x: nn.softmax(x)[0, 0] + nn.log_softmax(x, axis=0)[1, 1],
    "losses": lambda x: nn.cross_entropy(x, hg.asarray([0, 3, 1])) + nn.mse_loss(x, x * 0.5),
    "attention": lambda x: hg.sum(nn.attention(x[None, None], x[None, None], x[None, None], causal=True) ** 2),
    "norm": lambda x: hg.sum(nn.RMSNorm(4)(x)[:, 1:] ** 3) + hg.sum(nn.LayerNorm(4)(x)[:, 1:] ** 3),
    "max": lambda x: hg.max(x) * hg.min(x) + hg.sum(hg.cumulative_sum(x, axis=1) ** 2) + hg.prod(x[0]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_slopes(name):
    function, x = FUNCTIONS[name], numbers((3, 4), 7)
    value, slopes = hg.value_and_grad(function)(x)
    close(value, function(x))
    assert slopes.shape == x.shape and slopes.dtype == x.dtype
    step = 1e-2
    for i in range(3):
        for j in range(4):

            def moved(by):
                y = hg.asarray(x, copy=True)
                y[i, j] = float(x[i, j]) + by
                return float(function(y))

            # A difference of the fourth order, so that the step need not be small.
            want = (8 * (moved(step) - moved(-step)) - (moved(2 * step) - moved(-2 * step))) / (12 * step)
            assert float(slopes[i, j]) == pytest.approx(want, rel=5e-3, abs=5e-3)


def test_structures_and_arguments():
    def loss(p, scale, ids):
        return hg.sum(p["w"][0] * scale) + p["b"] * scale[0], "more"

    p = {"w": [hg.ones(2), hg.asarray([1, 2])], "b": hg.asarray(2.0), "name": "x"}
    scale = hg.asarray([3.0, 4.0])
    (value, more), (of_p, of_scale) = hg.value_and_grad(loss, argnums=(0, 1))(p, scale, ids=3)
    assert float(value) == 13 and more == "more"
    assert of_p["w"][0].tolist() == [3, 4] and of_p["w"][1] is None and of_p["b"].item() == 3 and of_p["name"] == "x"
    assert of_scale.tolist() == [3, 1]
    x = hg.asarray(2.0)
    assert [g.item() for g in hg.grad(lambda a, b: a * b * b, argnums=(0, 1))(x, x)] == [4, 8]
    # A gradient of gradients.
    assert hg.grad(lambda x: hg.grad(lambda y: y * y * y)(x))(x).item() == 12


def test_no_gradient_passes():
    x = hg.asarray([0.4, 1.6])
    assert hg.grad(lambda x: hg.sum(x * hg.stop_gradient(x)))(x).tolist() == x.tolist()
    assert hg.grad(lambda x: hg.sum(hg.straight_through(x, hg.round(x)) ** 2))(x).tolist() == [0, 4]
    assert hg.grad(lambda x: hg.sum(hg.round(x)))(x).tolist() == [0, 0]
    with pytest.raises(ValueError, match="does not depend"):
        hg.grad(lambda x: hg.asarray(1.0))(x)
    with pytest.raises(ValueError, match="not one float: hg.sum"):
        hg.grad(lambda x: x * 2)(x)
    with pytest.raises(TypeError, match="no tensors of floats"):
        hg.grad(lambda x: x)(hg.asarray([1]))
    with pytest.raises(ValueError, match="depends on the elements"):
        hg.grad(lambda x: x[0] if x[0] > 0 else x[1])(x)
    with pytest.raises(ValueError, match="no argument 1"):
        hg.grad(lambda x: x, argnums=1)(x)
    assert not hg._native.is_recording()


@pytest.mark.parametrize(
    "optimizer, first, second",
    [
        (optim.SGD(0.1), 0.8, 0.64),
        (optim.SGD(0.1, momentum=0.5), 0.8, 0.54),
        (optim.SGD(0.1, momentum=0.5, nesterov=True), 0.7, 0.44),
        (optim.SGD(0.1, weight_decay=1.0), 0.7, 0.49),
        (optim.Adam(0.1), 0.9, 0.800414),
        (optim.AdamW(0.1, weight_decay=1.0), 0.8, 0.621189),
        (optim.SGD(lambda step: 0.1 / step), 0.8, 0.72),
    ],
)
def test_optimizers_follow_their_formulas(optimizer, first, second):
    p, state = {"p": hg.asarray(1.0)}, None
    state = optimizer.init(p)
    for want in (first, second):
        grads = hg.grad(lambda p: p["p"] * p["p"])(p)
        p, state = optimizer.update(p, grads, state)
        assert p["p"].item() == pytest.approx(want, abs=2e-4)


def test_clipping():
    grads, norm = optim.clip_grad_norm([hg.asarray([3.0]), hg.asarray([4.0])], 1.0)
    assert norm.item() == 5 and grads[0].item() == pytest.approx(0.6) and grads[1].item() == pytest.approx(0.8)


class Model(nn.Module):
    def __init__(self):
        self.embedding = nn.Embedding(8, 16)
        self.blocks = [nn.MultiHeadAttention(16, 4, key_heads=2, causal=True), nn.Linear(16, 16)]
        self.norms = {"a": nn.RMSNorm(16), "b": nn.LayerNorm(16)}
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(16, 8, bias=False)

    def __call__(self, ids):
        x = self.embedding(ids)
        x = x + self.dropout(self.blocks[0](self.norms["a"](x)))
        x = x + nn.gelu(self.blocks[1](self.norms["b"](x)))
        return self.head(x)


def test_a_model_learns():
    hg.random.seed(1)
    model, optimizer = Model(), optim.AdamW(1e-2)
    ids = hg.asarray([[(i * i + row) % 8 for i in range(9)] for row in range(4)])
    step = nn.value_and_grad(model, lambda x, y: nn.cross_entropy(model(x), y))
    losses = []
    for _ in range(30):
        loss, grads = step(ids[:, :-1], ids[:, 1:])
        losses.append(float(loss))
        optimizer.step(model, grads)
    assert losses[0] == pytest.approx(math.log(8), rel=0.3) and losses[-1] < 0.5 * losses[0]
    assert len(model.state_dict()) == 11 and "blocks.0.query.weight" in model.state_dict()
    model.eval()
    again = Model().eval().load_state_dict(model.state_dict())
    close(again(ids), model(ids), 0.0)
    with pytest.raises(KeyError, match="head.weight"):
        again.load_state_dict({k: v for k, v in model.state_dict().items() if k != "head.weight"})


def test_a_compiled_step_is_the_step():
    hg.random.seed(2)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.relu, lambda x: hg.reshape(x, (x.shape[0], -1)), nn.Linear(27, 2)
    )
    optimizer = optim.Adam(1e-2)
    x, y = numbers((5, 1, 6, 5), 3), hg.asarray([0, 1, 1, 0, 1])

    def step(parameters, state, x, y):
        def loss(parameters):
            return nn.cross_entropy(model.update(parameters)(x), y)

        value, grads = hg.value_and_grad(loss)(parameters)
        return value, *optimizer.update(parameters, grads, state)

    first = model.parameters()
    compiled = hg.compile(step)
    results = []
    for run in (step, compiled):
        parameters, state = first, optimizer.init(first)
        for _ in range(4):
            value, parameters, state = run(parameters, state, x, y)
        results.append((value, parameters))
    close(results[0][0], results[1][0])
    close(results[0][1]["layers"][0]["weight"], results[1][1]["layers"][0]["weight"])
    assert float(results[0][0]) < float(nn.cross_entropy(model.update(first)(x), y))
    model.update(first)


def test_arguments_may_be_changed_in_place() -> None:
    def of(change):
        def function(x):
            change(x)
            return hg.sum(x**2)

        plain, compiled = hg.grad(function), hg.compile(lambda x: hg.grad(function)(x))
        x = hg.asarray([1.0, 2.0])
        assert compiled(x).tolist() == plain(x).tolist()
        assert x.tolist() == [1.0, 2.0]
        return plain(x).tolist()

    def times(x):
        x *= 3

    def set_first(x):
        x[0] = 7.0

    def double_first(x):
        x[0] *= 2

    assert [of(times), of(set_first), of(double_first)] == [[18.0, 36.0], [0.0, 4.0], [8.0, 4.0]]

    def in_dict(p):
        p["w"] *= 3
        return hg.sum(p["w"])

    assert hg.grad(in_dict)({"w": hg.ones(2)})["w"].tolist() == [3.0, 3.0]
    with pytest.raises(ValueError, match="asked for twice"):
        hg.grad(lambda x: hg.sum(x), argnums=(0, -1))(hg.ones(1))


def test_slopes_at_corners_are_numbers():
    """As PyTorch's std and norms; where a root of 0 has no slope it is 0."""
    norm, flat, zeros = hg.linalg.vector_norm, hg.full((2, 2), 3.0), hg.zeros((2, 2))
    table = [
        (hg.std, flat),
        (lambda x: hg.std(x, correction=1), flat),
        (lambda x: hg.sum(hg.std(x, axis=0)), flat),
        (hg.var, flat),
        (norm, zeros),
        (lambda x: norm(x, ord=3), zeros),
        (hg.linalg.matrix_norm, zeros),
        (lambda x: hg.sum(hg.hypot(x, zeros)), zeros),
    ]
    for function, x in table:
        assert hg.grad(function)(x).tolist() == [[0.0, 0.0], [0.0, 0.0]]
        assert hg.compile(lambda x: hg.grad(function)(x))(x).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    # One column of equal elements, one of others; NaN stays NaN.
    slopes = hg.grad(lambda x: hg.sum(hg.std(x, axis=0)))(hg.asarray([[1.0, 1.0], [1.0, 3.0]]))
    assert slopes.tolist() == [[0.0, -0.5], [0.0, 0.5]]
    assert math.isnan(hg.grad(hg.std)(hg.asarray([math.nan, 1.0]))[0])
    assert hg.grad(lambda x: norm(x, ord=3))(hg.asarray([0.0, 2.0])).tolist() == pytest.approx([0.0, 1.0])
    for shape in ((0,), (0, 3), (3, 0)):
        for axis in range(len(shape)):
            assert hg.grad(lambda x: hg.sum(hg.sort(x, axis=axis) ** 2))(hg.zeros(shape)).shape == shape


class Counted(nn.Module):
    """A layer with state beside its parameters."""

    def __init__(self):
        self.weight = hg.asarray([2.0])
        self.mean, self.steps, self.seen, self.last, self._hidden = hg.asarray([0.0]), hg.asarray(0), [], None, None
        self.pair = (hg.asarray([1.0]), "name")

    def __call__(self, x):
        self.mean = 0.5 * self.mean + 0.5 * x
        self.steps += 1
        self.seen.append(x * self.weight)
        self._hidden = x + 1
        if self.last is None:
            self.last = {"x": x * 3}
        return hg.sum(x * self.weight * self.pair[0])


def test_state_that_forward_sets_stays():
    model = nn.Sequential(Counted())
    layer = model.layers[0]
    weight, steps = layer.weight, layer.steps
    value, grads = nn.value_and_grad(model, lambda x: model(x))(hg.asarray([4.0]))
    assert value.item() == 8.0 and grads["layers"][0]["weight"].tolist() == [4.0]
    layer = model.layers[0]
    assert layer.weight is weight and layer.steps is steps and layer.pair[0].tolist() == [1.0]
    assert layer.mean.tolist() == [2.0] and steps.item() == 1 and layer._hidden.tolist() == [5.0]
    assert [x.tolist() for x in layer.seen] == [[8.0]] and layer.last["x"].tolist() == [12.0]

    def fails():
        model(hg.asarray([4.0]))
        raise KeyError("expected")

    with pytest.raises(KeyError, match="expected"):
        nn.value_and_grad(model, fails)()
    assert layer.weight is weight and steps.item() == 2 and not hg._native.is_recording()
    with pytest.raises(TypeError, match="Module"):
        nn.value_and_grad(lambda x: x, model)
