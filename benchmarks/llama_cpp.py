"""Decoders in llama.cpp, through the package llama-cpp-python, and ours with caches kept, for `benchmarks.turns`.

`pip install llama-cpp-python==0.3.36 gguf` compiles llama.cpp for the machine at hand (`-march=native`), which is its
best form: weights are packed anew when they are loaded, and llamafile's products are on. Caches are in half precision,
as they are by default.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

CONTEXT = 1024
"""Tokens that the caches have room for."""


def why_not() -> str:
    """Return why llama.cpp cannot be measured here; empty where it can."""
    try:
        import gguf
        import llama_cpp  # noqa: F401 - loads its library

        return "" if hasattr(gguf, "GGUFWriter") else "gguf: another package of this name"
    except Exception as error:  # noqa: BLE001 - a library that does not load is its reason too
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def ours(model: Path, threads: int, given: Mapping[str, np.ndarray]) -> Callable[[], Any]:
    """Return a call of Engine on ``tokens`` that goes on from ``past`` each time."""
    from forge_runtime.engine import Engine

    engine = Engine(model, threads=threads)
    before, tokens = given["past"], given["tokens"]
    if before.size:
        engine(before)

    def run() -> np.ndarray:
        engine.truncate(before.size)
        scores: np.ndarray = engine(tokens)[0]
        return scores.reshape(-1)

    return run


def llama_cpp(model: Path, threads: int, given: Mapping[str, np.ndarray]) -> Callable[[], Any]:
    """Return a call of llama_decode on ``tokens`` that goes on from ``past`` each time; scores of the newest token."""
    import llama_cpp as api

    silent = api.llama_log_callback(lambda *_: None)
    api.llama_log_set(silent, ctypes.c_void_p(0))
    api.llama_backend_init()
    loaded = api.llama_model_load_from_file(str(model).encode(), api.llama_model_default_params())
    settings = api.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = CONTEXT, CONTEXT, CONTEXT
    settings.n_threads = settings.n_threads_batch = threads
    context = api.llama_init_from_model(loaded, settings)
    if not context:
        raise RuntimeError("llama.cpp did not make a context")
    memory, count = api.llama_get_memory(context), api.llama_vocab_n_tokens(api.llama_model_get_vocab(loaded))
    before, tokens = (np.ascontiguousarray(given[name].reshape(-1), np.int32) for name in ("past", "tokens"))

    def decode(ids: np.ndarray) -> None:
        batch = api.llama_batch_get_one(ids.ctypes.data_as(ctypes.POINTER(api.llama_token)), ids.size)
        if api.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")

    if before.size:
        decode(before)

    def run(kept: Any = silent) -> np.ndarray:
        api.llama_memory_seq_rm(memory, 0, before.size, -1)
        decode(tokens)
        return np.ctypeslib.as_array(api.llama_get_logits(context), (count,))

    return run
