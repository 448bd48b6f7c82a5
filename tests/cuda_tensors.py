"""PyTorch with CUDA beside JAX without it, which `pip install "jaxenvs[sb3]"` gives on a machine with a GPU.

Tensors in the CPU's memory play the part: their `device` is cuda, NumPy and JAX cannot read them, and an operation that
mixes them with tensors on the CPU fails.
"""

import contextlib
from unittest import mock

import torch
from torch.nn.functional import one_hot
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map_only

from bridge.translate.pytorch import modules

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
# Operations that take tensors on two devices.
MIX = {"copy_", "_to_copy", "_foreach_copy_", "index", "index_put_", "_index_put_impl_"}


class CudaTensor(torch.Tensor):
    """Tensor on cuda, as far as Python can see."""

    @staticmethod
    def __new__(cls, inner):
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        self = torch.Tensor._make_wrapper_subclass(cls, inner.shape, **layout)
        self.inner = inner
        return self

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)

    def data_ptr(self):
        return self.inner.data_ptr()

    def numpy(self, **_):
        raise TypeError("can't convert cuda:0 device type tensor to numpy.")

    def __array__(self, dtype=None):
        return self.numpy()

    def __deepcopy__(self, memo):
        return CudaTensor(self.detach().inner.clone())

    def __repr__(self, **_):
        return f"CudaTensor({self.inner})"

    def tolist(self):
        return self.detach().inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        leaves = [leaf for leaf in tree_flatten((args, kwargs or {}))[0] if isinstance(leaf, torch.Tensor)]
        name = function.overloadpacket.__name__
        if name not in MIX and any(leaf.dim() and not isinstance(leaf, cls) for leaf in leaves):
            raise RuntimeError(f"Expected all tensors to be on the same device: {name}")
        args, kwargs = tree_map_only(cls, lambda tensor: tensor.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, cls, function(*args, **kwargs))


class CudaMode(TorchFunctionMode):
    """Mode in which functions that are given the device cuda return a CudaTensor.

    Attributes:
      to_cpu: the number of tensors that were copied from cuda to the CPU.
    """

    to_cpu = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is one_hot and isinstance(args[0], CudaTensor):  # creates a tensor inside
            return CudaTensor(function(args[0].inner, *args[1:], **kwargs))
        if function is torch.Tensor.cpu:
            function, args = torch.Tensor.to, (*args, CPU)
        elif function is torch.Tensor.cuda:
            function, args = torch.Tensor.to, (args[0], CUDA)
        is_to = function is torch.Tensor.to
        given = args[1] if is_to and len(args) > 1 else None
        device = kwargs.get("device", given if isinstance(given, str | torch.device) else None)
        if device is None:
            return function(*args, **kwargs)
        is_cuda = torch.device(device).type == "cuda"
        if is_to and isinstance(args[0], CudaTensor) is is_cuda:
            dtype = kwargs.get("dtype", next((each for each in args if isinstance(each, torch.dtype)), None))
            return args[0] if dtype is None else function(args[0], dtype)
        if is_to and not is_cuda:
            self.to_cpu += 1
            args = (args[0].detach().inner.clone(), *args[1:])
        if is_cuda:
            args = tuple(CPU if each is device else each for each in args)
            kwargs |= {"device": CPU} if "device" in kwargs else {}
        result = function(*args, **kwargs)
        return CudaTensor(result.detach().clone()) if is_cuda else result


@contextlib.contextmanager
def cuda_beside_jax_on_the_cpu():
    """Give PyTorch such a GPU in this context."""
    known = mock.patch.object(modules, "PARAMETERS", modules.PARAMETERS | {CudaTensor})
    with known, CudaMode() as mode, mock.patch.object(torch.cuda, "is_available", return_value=True):
        torch.__future__.set_swap_module_params_on_conversion(True)  # modules keep their parameters, as on a GPU
        try:
            yield mode
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
