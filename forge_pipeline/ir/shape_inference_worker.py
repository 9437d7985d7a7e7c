"""The child process of ``inference``: a model on standard input, the model with inferred types on standard output.

It runs as a script of its own, so that it imports little but onnx. Its exit status says how it ended: 0 done,
3 the model is invalid (why: on standard error), 4 out of memory; a signal where it crashed or ran out of time.
"""

from __future__ import annotations

import resource
import sys

from forge_pipeline.limits import end_with_parent, lower

INVALID = 3
OUT_OF_MEMORY = 4


def main(memory: int, seconds: int, propagate: int) -> int:
    """Check and infer within ``memory`` bytes of address space and ``seconds`` of processor time.

    With ``propagate``, shapes that the model computes from other shapes are followed as well.
    """
    end_with_parent()
    lower(resource.RLIMIT_CPU, seconds, 1)
    lower(resource.RLIMIT_CORE, 0)
    import onnx

    lower(resource.RLIMIT_AS, memory)
    try:
        model = onnx.load_model_from_string(sys.stdin.buffer.read())
        inferred = onnx.shape_inference.infer_shapes(
            model, check_type=True, strict_mode=True, data_prop=bool(propagate)
        )
        onnx.checker.check_model(inferred)  # after inference: the checker demands a shape of each output
        sys.stdout.buffer.write(inferred.SerializeToString(deterministic=True))
    except MemoryError:
        return OUT_OF_MEMORY
    except (  # what onnx raises, and what pybind11 makes of the standard library's exceptions
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        RuntimeError,
        ValueError,
        IndexError,
    ) as error:
        sys.stderr.write(str(error))
        return INVALID
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
