"""Writes models of PyTorch and Keras into the current folder, with what they compute; run by the fixture `made`."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.dense = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def features(self, image):
        return torch.relu(self.norm(self.conv(image))).mean((2, 3))

    def forward(self, image):
        y = self.features(image)
        return {"logits": self.dense(y), "features": y}


class Script(Net):
    def forward(self, image):
        return self.dense(torch.relu(self.norm(self.conv(image))).mean((2, 3)))


class Stateful(nn.Module):
    """Keeps a state, which each call moves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x):
        y = torch.tanh(x + self.state)
        self.state.copy_(y[0])
        return y


class Assigning(Stateful):
    def forward(self, x):
        self.state = torch.tanh(x + self.state)[0]
        return x + self.state


class InPart(Stateful):
    def forward(self, x):
        if bool(x.sum() > 1e9):
            self.state[1:].add_(1)
        return x + self.state


class Detached(Stateful):
    def forward(self, x):
        self.state.data.add_(x[0])
        return x + self.state


class Scratch(Stateful):
    def forward(self, x):
        y = self.state.clone()
        y.add_(1)
        return x * y


class Loop(nn.Module):
    def forward(self, x):
        while bool(x.sum() * 0 == 0):
            x = x + 1
        return x


class Crash(nn.Module):
    def forward(self, x):
        return torch.as_strided(x, [4], [1], 1 << 40)


class Writer(nn.Module):
    def forward(self, x):
        return x + torch.from_file("written", True, 4)


@keras.saving.register_keras_serializable(package="mine")
class Twice(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def torch_models(random: np.random.Generator) -> None:
    image = random.standard_normal((3, 3, 8, 8)).astype("float32")
    net = Net().eval()
    program = torch.export.export(
        net, (torch.from_numpy(image),), dynamic_shapes={"image": {0: torch.export.Dim("batch")}}
    )
    torch.export.save(program, "net.pt2")
    outputs = {name: value.detach().numpy() for name, value in net(torch.from_numpy(image)).items()}
    script = Script().eval()
    torch.jit.save(torch.jit.script(script), "net.pt")
    scripted = script(torch.from_numpy(image)).detach().numpy()
    np.savez("torch.npz", image=image, scripted=scripted, **outputs)
    for name, module in (("loop", Loop()), ("writer", Writer())):
        torch.jit.save(torch.jit.script(module), f"{name}.pt")
    torch.save(net.state_dict(), "state.pt")
    row = torch.ones(1, 4)
    for module in (Stateful(), Assigning(), InPart(), Detached(), Scratch()):  # a trace leaves Detached's write out
        torch.jit.save(torch.jit.script(module.eval()), f"{type(module).__name__}.pt")
    torch.export.save(torch.export.export(Stateful().eval(), (row,)), "Stateful.pt2")
    torch.export.save(torch.export.export(Stateful().eval(), (row,)).run_decompositions({}), "Decomposed.pt2")
    packed = nn.Sequential(torch.ao.nn.quantized.Linear(4, 4))  # holds a class that only a C++ library can make
    torch.jit.save(torch.jit.script(packed), "packed.pt")


def keras_models(random: np.random.Generator) -> None:
    layers = keras.layers
    image = keras.Input((12, 12, 3), name="image")
    y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", strides=2)(image)))
    y = layers.Flatten()(layers.MaxPool2D()(layers.DepthwiseConv2D(3, padding="same")(y)))
    model = keras.Model(image, {"probs": layers.Dense(5, activation="softmax", name="probs")(y)})
    for weight in model.weights:
        shape = tuple(weight.shape)
        weight.assign(np.abs(random.standard_normal(shape)).astype("float32") * 0.3 + 0.1)
    feed = random.standard_normal((3, 12, 12, 3)).astype("float32")
    np.savez("keras.npz", image=feed, probs=model(feed, training=False)["probs"].detach().numpy())
    model.save("net.keras")
    plain = keras.Model(image, layers.Dense(5, activation="softmax", name="probs")(y))
    plain.set_weights(model.get_weights())
    plain.save("net.h5")
    for name, layer in (("lambda", layers.Lambda(lambda x: x * 2)), ("custom", Twice())):
        inputs = keras.Input((4,))
        unsafe = keras.Model(inputs, layer(inputs))
        unsafe.save(f"{name}.keras")
        unsafe.save(f"{name}.h5")
    chain = keras.Sequential([keras.Input((2,), name="x"), layers.Dense(1, name="y")])
    chain.save_weights("only.weights.h5")
    chain.save("chain.keras")
    chain.save("chain.h5")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch_models(np.random.default_rng(0))
    keras_models(np.random.default_rng(1))
