"""Makes the files beside it that start with "keras", and two_signatures.tflite, with TensorFlow.

In an environment of its own: `pip install tensorflow-cpu`, then `python tests/data/shipped/make_tensorflow.py`.
The committed files were made with TensorFlow 2.21.0 and Keras 3.15.1.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE = Path(__file__).parent
GAIN = 600.0
"""Puts the squares in `block1_norm` past 65504 and leaves everything else in range."""


def keras_model() -> tf.keras.Model:
    tf.keras.utils.set_random_seed(0)
    image = tf.keras.Input((8, 8, 3), name="image")
    x = tf.keras.layers.Conv2D(8, 3, padding="same", activation="relu", name="block0_conv")(image)
    x = tf.keras.layers.Conv2D(8, 3, padding="same", name="block1_conv")(x)
    x = tf.keras.layers.Rescaling(GAIN, name="block1_scale")(x)
    x = tf.keras.layers.RMSNormalization(name="block1_norm")(x)
    x = tf.keras.layers.Conv2D(8, 3, padding="same", activation="relu", name="block2_conv")(x)
    x = tf.keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return tf.keras.Model(image, tf.keras.layers.Dense(4, name="head")(x), name="tiny")


def plain_model() -> tf.keras.Model:
    tf.keras.utils.set_random_seed(1)
    image = tf.keras.Input((8, 8, 3), name="image")
    x = tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu", name="block0_conv")(image)
    x = tf.keras.layers.DepthwiseConv2D(3, padding="same", activation="relu", name="block1_conv")(x)
    x = tf.keras.layers.Conv2D(32, 1, activation="relu", name="block2_conv")(x)
    x = tf.keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return tf.keras.Model(image, tf.keras.layers.Dense(64, name="head")(x), name="plain")


class TwoSignatures(tf.Module):
    def __init__(self):
        super().__init__()
        tf.random.set_seed(0)
        self.weight = tf.Variable(tf.random.normal([8, 8]) * 0.3)

    @tf.function(input_signature=[tf.TensorSpec([1, 8], tf.float32, name="x")])
    def encode(self, x):
        with tf.name_scope("encoder"):
            for i in range(3):
                with tf.name_scope(f"layer_{i}"):
                    x = tf.tanh(tf.matmul(x, self.weight))
        return {"state": x}

    @tf.function(input_signature=[tf.TensorSpec([1, 8], tf.float32, name="state")])
    def decode(self, state):
        with tf.name_scope("decoder"):
            return {"logits": tf.nn.softmax(tf.matmul(state, self.weight) * 2.0)}


class Bias(tf.Module):
    """A constant of rank 3 whose rows differ is added, which the GPU of LiteRT 2.3 gets wrong."""

    def __init__(self):
        super().__init__()
        tf.random.set_seed(0)
        self.weight, self.other = tf.random.normal([8, 8]) * 0.3, tf.random.normal([8, 8]) * 0.3
        self.rows = tf.reshape(tf.linspace(-1.0, 1.0, 4), [4, 1, 1]) * tf.ones([1, 1, 8])

    @tf.function(input_signature=[tf.TensorSpec([4, 6, 8], tf.float32, name="x")])
    def __call__(self, x):
        with tf.name_scope("net"):
            with tf.name_scope("first"):
                x = tf.nn.relu(tf.matmul(x, self.weight))
            with tf.name_scope("rows"):
                x = x + self.rows
            with tf.name_scope("last"):
                return tf.nn.relu(tf.matmul(x, self.other))


def calibration(*shape):
    rng = np.random.default_rng(0)
    return lambda: ([rng.standard_normal(shape).astype(np.float32)] for _ in range(50))


def to_int8(converter, *shape):
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = calibration(*shape)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


def main() -> None:
    (HERE / "keras.tflite").write_bytes(tf.lite.TFLiteConverter.from_keras_model(keras_model()).convert())
    converter = tf.lite.TFLiteConverter.from_keras_model(plain_model())
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    (HERE / "keras_dynamic.tflite").write_bytes(converter.convert())
    converter.target_spec.supported_types = [tf.float16]
    (HERE / "keras_fp16.tflite").write_bytes(converter.convert())
    converter = tf.lite.TFLiteConverter.from_keras_model(plain_model())
    (HERE / "keras_int8.tflite").write_bytes(to_int8(converter, 1, 8, 8, 3))
    bias = Bias()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([bias.__call__.get_concrete_function()], bias)
    (HERE / "rows_int8.tflite").write_bytes(to_int8(converter, 4, 6, 8))
    with tempfile.TemporaryDirectory() as folder:
        module = TwoSignatures()
        tf.saved_model.save(module, folder, signatures={"encode": module.encode, "decode": module.decode})
        both = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["encode", "decode"])
        (HERE / "two_signatures.tflite").write_bytes(both.convert())


if __name__ == "__main__":
    main()
