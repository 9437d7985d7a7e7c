"""Makes operators.npz: the models of the modules beside it, some inputs, and what LiteRT's plain kernels compute.

Needs the package ai-edge-litert; run it in this folder. What is made is kept, so that the tests do not need it.
"""

from __future__ import annotations

from importlib import import_module

import mediapipe
import numpy as np
import refused
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from cases import CASES
from writer import File

CALLS = 3


def sample(random, name, shape, dtype):
    if np.issubdtype(dtype, np.floating):
        return random.normal(size=shape).astype(dtype)
    if dtype in (np.int8, np.uint8) or (dtype == np.int16 and name == "sixteen_bits"):
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max + 1, shape).astype(dtype)
    small = {
        "unique": 4,
        "one_hot": 6,
        "bitwise_xor": 99,
        "hlo_bits": 9,
        "right_shift": 9,
        "floor_div": 20,
        "floor_mod": 20,
    }
    low = {"floor_div": -20, "floor_mod": -20, "one_hot": -1, "tile_computed": 1}
    return random.integers(low.get(name, 0), small.get(name, 2), shape).astype(dtype)


def run(name, content):
    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=content, experimental_op_resolver_type=plain, num_threads=1)
    interpreter.allocate_tensors()
    interpreter.reset_all_variables()
    random = np.random.default_rng(len(name))
    made = {}
    for call in range(CALLS):
        for place, tensor in enumerate(interpreter.get_input_details()):
            value = sample(random, name, tensor["shape"], tensor["dtype"])
            made[f"{name}/in/{call}/{place}"] = value
            interpreter.set_tensor(tensor["index"], value)
        interpreter.invoke()
        for place, tensor in enumerate(interpreter.get_output_details()):
            made[f"{name}/out/{call}/{place}"] = interpreter.get_tensor(tensor["index"])
    return made


def main():
    made = {}
    for name in ("operators", "recurrent", "integers", "graphs"):
        import_module(name)
    for name, fill in CASES.items():
        file = File()
        fill(file.graph())
        content = file.to_bytes()
        try:
            made |= run(name, content)
        except (RuntimeError, ValueError) as error:
            print(name, error)
            continue
        made[f"{name}/model"] = np.frombuffer(content, np.uint8)
    for name, fill in (mediapipe.CASES | refused.CASES).items():
        file = File()
        fill(file.graph())
        made[f"{name}/model"] = np.frombuffer(file.to_bytes(), np.uint8)
    np.savez_compressed("operators.npz", **made)


if __name__ == "__main__":
    main()
