"""Makes the .tflite files beside it, and what TensorFlow Lite's interpreter computes from them (expected.npz).

Needs TensorFlow (the extra `tensorflow`); run it in this folder. The files are small and kept, so that the tests need
neither TensorFlow nor its interpreter.
"""

import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

random = np.random.default_rng(0)


def weights(*shape):
    return tf.constant(random.normal(size=shape).astype("float32") * 0.3)


KERNEL, DEPTHWISE, BIAS = weights(3, 3, 3, 16), weights(3, 3, 16, 1), weights(16)
POINT, DENSE = weights(1, 1, 16, 128), weights(128, 5)
UP = weights(3, 3, 4, 3)
IMAGE = tf.TensorSpec([None, 8, 8, 3], tf.float32, name="image")


@tf.function
def network(image):
    y = tf.nn.relu6(tf.nn.bias_add(tf.nn.conv2d(image, KERNEL, 2, "SAME"), BIAS))
    y = tf.nn.depthwise_conv2d(y, DEPTHWISE, [1, 1, 1, 1], "SAME") + y
    y = tf.nn.relu(tf.nn.conv2d(y, POINT, 1, "VALID"))
    y = tf.reduce_mean(tf.nn.max_pool2d(y, 2, 2, "VALID"), [1, 2])
    return {"probs": tf.nn.softmax(tf.matmul(y, DENSE)), "feat": tf.nn.tanh(y)}


@tf.function
def moves(image):
    half = tf.split(image, 2, axis=1)
    first, second = tf.unstack(image[:, :2], axis=1)
    flat = tf.reshape(image, [-1, 64, 3])
    return {
        "split": tf.concat([half[1], half[0]], axis=1),
        "parts": tf.concat(tf.split(image, [1, 2], axis=3)[::-1], axis=3),
        "stack": tf.stack([first, second], axis=1),
        "slice": image[:, 1:7:2, ::-1, 0],
        "sliced": tf.slice(image, [0, 1, 2, 0], [-1, 3, 4, 2]),
        "gather": tf.gather(image, [2, 0], axis=3),
        "pad": tf.pad(image, [[0, 0], [1, 2], [0, 1], [0, 0]], constant_values=0.5),
        "mirror": tf.pad(image, [[0, 0], [2, 1], [1, 1], [0, 0]], mode="REFLECT"),
        "tile": tf.tile(image, [1, 2, 1, 1]),
        "transpose": tf.transpose(image, [0, 3, 1, 2]),
        "squeeze": tf.squeeze(image[:, :1], axis=1)[:, :, None],
        "depth": tf.nn.depth_to_space(tf.concat([image, image[..., :1]], axis=3), 2),
        "space": tf.nn.space_to_depth(image, 2),
        "linear": tf.compat.v1.image.resize_bilinear(image, [11, 5], half_pixel_centers=True),
        "corners": tf.compat.v1.image.resize_bilinear(image, [15, 15], align_corners=True),
        "plain": tf.compat.v1.image.resize_bilinear(image, [16, 12]),
        "nearest": tf.compat.v1.image.resize_nearest_neighbor(image, [13, 5]),
        "centers": tf.compat.v1.image.resize_nearest_neighbor(image, [13, 5], half_pixel_centers=True),
        "cast": tf.cast(image * 3, tf.int32),
        "best": tf.argmax(flat, axis=1),
        "where": tf.where(image > 0, image, -2 * image),
        "fill": tf.fill([2, 3], 1.5) + image[0, :2, 0, :3],
    }


@tf.function
def numbers(image):
    y = tf.nn.conv2d(image, KERNEL[..., :4], 1, "SAME")
    positive = tf.abs(image) + 0.5
    flat = tf.reshape(image, [-1, 64, 3])
    return {
        "up": tf.nn.conv2d_transpose(image[:, :4, :4], tf.transpose(UP, [0, 1, 2, 3]), [1, 8, 8, 4], 2, "SAME"),
        "pool": tf.nn.avg_pool2d(y, 3, 2, "SAME"),
        "dilated": tf.nn.depthwise_conv2d(image, KERNEL[..., :2], [1, 1, 1, 1], "SAME"),
        "leaky": tf.nn.leaky_relu(y, 0.1),
        "elu": tf.nn.elu(y),
        "swish": y * tf.nn.relu6(y + 3) / 6,
        "gelu": tf.nn.gelu(y),
        "normal": tf.math.l2_normalize(image, axis=-1),
        "softmax": tf.nn.log_softmax(y),
        "product": tf.matmul(flat, flat, transpose_a=True),
        "difference": tf.math.squared_difference(image, image[:, ::-1]),
        "powers": tf.pow(positive, 1.7) + tf.sqrt(positive) * tf.math.rsqrt(positive),
        "waves": tf.sin(image) + tf.cos(image) - tf.exp(-image) + tf.math.log(positive),
        "round": tf.round(image * 3) + tf.floor(image) + tf.math.ceil(image) + tf.sign(image),
        "modulo": tf.math.floormod(image, 0.7) + tf.math.floordiv(image, 0.3),
        "bounds": tf.maximum(tf.minimum(y, 0.8), -0.6) - tf.square(y),
        "sums": tf.reduce_sum(y, [1, 2]) + tf.reduce_max(y, [1, 2]) - tf.reduce_min(y, [1, 2]),
        "kept": tf.reduce_mean(y, [1, 2], keepdims=True) * y,
        "flags": tf.logical_and(image > 0, tf.logical_not(tf.equal(image, 1.0))),
    }


def convert(name, function, inputs, **settings):
    folder, holder = tempfile.mkdtemp(), tf.Module()
    holder.function = function
    tf.saved_model.save(holder, folder, signatures=function.get_concrete_function(IMAGE))
    converter = tf.lite.TFLiteConverter.from_saved_model(folder)
    for key, value in settings.items():
        setattr(converter, key, value)
    content = converter.convert()
    Path(f"{name}.tflite").write_bytes(content)
    interpreter = tf.lite.Interpreter(model_content=content)
    runner = interpreter.get_signature_runner()
    return {f"{name}/{key}": value for key, value in runner(image=inputs).items()}


def plain_kernels(name, inputs):
    """Return what the interpreter computes without XNNPACK."""
    kernels = tf.lite.experimental.OpResolverType.BUILTIN_REF
    interpreter = tf.lite.Interpreter(f"{name}.tflite", experimental_op_resolver_type=kernels)
    return interpreter.get_signature_runner()(image=inputs)


def samples():
    for _ in range(50):
        yield [random.normal(size=(1, 8, 8, 3)).astype("float32")]


def main():
    image = random.normal(size=(1, 8, 8, 3)).astype("float32")
    default, lite = [tf.lite.Optimize.DEFAULT], tf.lite.OpsSet
    half = tf.lite.TargetSpec(supported_types=[tf.float16])
    integers = tf.lite.TargetSpec(supported_ops=[lite.TFLITE_BUILTINS_INT8])
    expected = {"image": image}
    expected |= convert("float", network, image)
    expected |= convert("float16", network, image, optimizations=default, target_spec=half)
    expected |= convert("dynamic", network, image, optimizations=default)
    settings = {"optimizations": default, "representative_dataset": samples, "target_spec": integers}
    integer_image = np.clip(np.round(image / 0.03), -128, 127).astype("int8")
    expected["integer_image"] = integer_image
    settings |= {"inference_input_type": tf.int8, "inference_output_type": tf.int8}
    expected |= convert("int8", network, integer_image, **settings)
    expected |= convert("moves", moves, image)
    expected |= convert("numbers", numbers, image)
    np.savez_compressed("expected.npz", **expected)
    np.savez_compressed("dynamic_plain.npz", **plain_kernels("dynamic", image))


if __name__ == "__main__":
    main()
