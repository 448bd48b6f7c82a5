"""Convolutions as in PyTorch, in JAX, and fast inside compiled loops on a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bridge.errors import NotCompilable
from jaxenvs.compilation.default_device import platform

# The most bytes of windows at a time, so that they stay in a core's cache. The windows of a minibatch of 256 images of
# Atari have 105 MB.
CHUNK = 2**20


def conv(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | str | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> jax.Array:
    """Compute `conv1d` or `conv2d` of `torch.nn.functional`, depending on the rank of the weight.

    XLA's own convolution is slow on a CPU, and slower inside a loop: a gradient of SB3's NatureCNN for 256 images takes
    0.7 s, and 4.5 s in `jax.lax.scan`; PyTorch takes 0.2 s (two cores, jaxlib 0.10.2). Products of matrices are fast in
    either place. So on a CPU a convolution is a sum of products: each number of the kernel, a matrix from input to
    output channels, is multiplied with the window of the image that it sees. Convolutions with a dilation or groups are
    left to XLA.

    Args:
      x: (batch, in_channels, width) or (batch, in_channels, height, width).
      weight: (out_channels, in_channels // groups, *kernel).
      bias: (out_channels,).
      stride, dilation: one number for all axes, or one for each.
      padding: zeros on either side of all axes, or of each; or "valid" for none; or "same", for a stride of 1.
      groups: of channels that do not see each other.
      padding_mode: only "zeros" has a translation.
    """
    if padding_mode != "zeros":
        raise NotCompilable(f"{padding_mode=} cannot be translated to JAX.")
    out, _, *kernel = weight.shape
    strides, dilations = of_each_axis(stride, len(kernel)), of_each_axis(dilation, len(kernel))
    if padding == "same":
        totals = [step * (size - 1) for step, size in zip(dilations, kernel)]
        pads = [(total // 2, total - total // 2) for total in totals]
    else:
        pads = [(pad, pad) for pad in of_each_axis(0 if isinstance(padding, str) else padding, len(kernel))]
    bias = jnp.zeros(out, weight.dtype) if bias is None else bias
    if platform() != "cpu" or groups != 1 or set(dilations) != {1}:
        y = jax.lax.conv_general_dilated(x, weight, strides, pads, rhs_dilation=dilations, feature_group_count=groups)
        return y + bias.reshape(-1, *[1] * len(kernel))
    if len(kernel) == 1:
        return _conv2d(x[:, :, None], weight[:, :, None], bias, (1, *strides), [(0, 0), *pads])[:, :, 0]
    return _conv2d(x, weight, bias, strides, pads)


def of_each_axis(number: int | tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return one number for each axis. PyTorch accepts a number, a tuple of one, or one for each axis."""
    return (number,) * rank if isinstance(number, int) else tuple(number) * (rank // len(number))


def _conv2d(
    x: jax.Array, weight: jax.Array, bias: jax.Array, strides: tuple[int, ...], pads: list[tuple[int, int]]
) -> jax.Array:
    """Compute a convolution in two dimensions as a convolution of blocks with a stride of 1.

    A block is as large as the strides, and its pixels are channels: a kernel of 8x8 with a stride of 4 becomes one of
    2x2, and has 4 windows instead of 64.

        stride 2:   a b | c d         one block (a, b, e, f) is one pixel with 4 times the channels,
                    e f | g h         so a kernel of 4x4 covers 2x2 blocks and moves by one block
    """
    batch, channels, *size = x.shape
    kernel, (s, t) = weight.shape[2:], strides
    kh, kw = -(-kernel[0] // s), -(-kernel[1] // t)
    # Blocks of the image. Padding is negative where the kernel has no position.
    h, w = ((n + sum(pad) - window) // step for n, pad, window, step in zip(size, pads, kernel, strides))
    h, w = h + kh, w + kw
    last = [blocks * step - n - pad[0] for blocks, step, n, pad in zip((h, w), strides, size, pads)]
    edges = [(0, 0, 0), *((pad[0], after, 0) for pad, after in zip(pads, last)), (0, 0, 0)]
    # Channels are moved last first of all, and back at the very end, so that this cancels out between two convolutions.
    x = jax.lax.pad(x.transpose(0, 2, 3, 1), jnp.zeros((), x.dtype), edges)
    x = x.reshape(batch, h, s, w, t * channels).transpose(0, 1, 3, 2, 4).reshape(batch, h, w, -1)
    weight = jnp.pad(weight, [(0, 0), (0, 0), (0, kh * s - kernel[0]), (0, kw * t - kernel[1])])
    weight = weight.reshape(-1, channels, kh, s, kw, t).transpose(2, 4, 3, 5, 1, 0)
    return _convolve(x, weight.reshape(kh, kw, s * t * channels, -1), bias).transpose(0, 3, 1, 2)


def _convolve(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    """Convolve x, (batch, height, width, in), with weight, (*kernel, in, out): stride 1, no padding."""
    kh, kw, channels, out = weight.shape
    h, w = x.shape[1] - kh + 1, x.shape[2] - kw + 1

    def products(images: jax.Array) -> jax.Array:
        # What each number of the kernel sees as it slides over the images: (batch, h, w, channels).
        windows = (images[:, i : i + h, j : j + w] for i in range(kh) for j in range(kw))
        numbers = weight.reshape(-1, channels, out)
        return sum((window @ number for window, number in zip(windows, numbers)), bias)

    # The gradient computes the windows again. Otherwise it would keep the windows of all images: 247 MB for 256 of
    # Atari's.
    y: jax.Array = jax.lax.map(jax.checkpoint(products, prevent_cse=False), _in_chunks(x, x.size * kh * kw))
    return y.reshape(-1, *y.shape[2:])


def _in_chunks(images: jax.Array, size: int) -> jax.Array:
    """Divide images into chunks whose windows fit in CHUNK bytes: (chunks, images, ...).

    Args:
      size: how many numbers the windows of all images have.
    """
    batch = len(images)
    most = max(1, CHUNK * batch // (size * images.dtype.itemsize))
    chunk = max(n for n in range(1, min(batch, most) + 1) if batch % n == 0)
    return images.reshape(batch // chunk, chunk, *images.shape[1:])
