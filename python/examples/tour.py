"""A tour of Hologram for Python, in cells as editors and notebooks run them. From a shell:

    python tour.py [MODEL]

A model, such as model.gguf, is only for the last cell."""

# %% Devices. A device that cannot be used says why.
import os
import sys

import hologram as hg
from hologram import nn, optim

for device in hg.devices():
    print(device["name"], device["description"] if device["available"] else device["reason"])

# %% Tensors, by the Python array API standard, on the best device that works.
x = hg.reshape(hg.arange(12.0), (3, 4))
print(x @ x.mT, x.device)
print(hg.mean(x, axis=0), x[:, ::-1][0], x[x > 6])
x[0] = 100
print(x.sum(1))

# %% One memory with NumPy, PyTorch, JAX and CuPy: no copy.
try:
    import numpy as np
except ImportError:
    print("no NumPy")
else:
    n = np.arange(4.0)
    shared = hg.from_dlpack(n)
    n[0] = 9.0
    print(shared, shared.data_ptr == n.ctypes.data)

# %% A function as one graph: its elementwise operations are one launch.
@hg.compile
def wave(t, frequency):
    return hg.sin(t * frequency) * hg.exp(-t) + 1


print(wave(hg.linspace(0, 1, 5), 6.28))

# %% Gradients and training.
hg.random.seed(1)
model, optimizer = nn.Sequential(nn.Linear(2, 16), nn.relu, nn.Linear(16, 1)), optim.AdamW(1e-2)
points = hg.random.normal((256, 2))
products = points[:, :1] * points[:, 1:]
step = nn.value_and_grad(model, lambda x, y: nn.mse_loss(model(x), y))
losses = []
for _ in range(100):
    loss, grads = step(points, products)
    optimizer.step(model, grads)
    losses.append(loss.item())
print(f"loss {losses[0]:.3f}, then {losses[-1]:.3f}")
assert losses[-1] < losses[0] / 2

# %% A kernel of one's own: the same bits on every device.
square = hg.kernel("""
kernel square(x: buffer<f32>, y: buffer<f32, write>, n: u32) workgroup(64) {
  %i = global.x
  %inside = lt.u32 %i, n
  if %inside {
    %v = load.f32 x[%i]
    %v2 = mul.f32 %v, %v
    store.f32 y[%i], %v2
  }
}
""")
numbers, squares = hg.arange(100.0), hg.zeros(100)
square(numbers, squares, 100, grid=2)
print(squares[:10])

# %% A wrong number is an error where it is read, and other tensors are unaffected.
try:
    print((hg.asarray([1, 2]) // hg.asarray([1, 0])).tolist())
except ValueError as error:
    print(error)

# %% A language model.
path = sys.argv[1] if len(sys.argv) > 1 else "model.gguf"
if os.path.exists(path):
    with hg.llm.load(path, ctx=512) as llm:
        for piece in llm.stream("A closure in Rust is", max_tokens=24, temperature=0):
            print(piece.text, end="", flush=True)
        print()
        numbers = {"type": "array", "items": {"type": "integer"}}
        print(llm.generate("As JSON: ", max_tokens=40, json_schema=numbers).text)
else:
    print(f"there is no {path}: give a model's path")
