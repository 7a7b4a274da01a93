# SPDX-License-Identifier: MIT
"""python use.py VENDORED_TREE LIBRARY_DIR BUILD_DIR: builds the extension over a vendored library and calls it."""

import pathlib
import sys

import torch
from torch.utils import cpp_extension

tree, libraries, build = sys.argv[1:]
cpp_extension.load(
    "tilekiln_consumer",
    [str(pathlib.Path(__file__).with_name("attention.cpp"))],
    extra_cflags=["-O1", "-g0"],
    extra_include_paths=[f"{tree}/include"],
    extra_ldflags=[f"-L{libraries}", "-ltilekiln_flash", f"-Wl,-rpath,{libraries}"],
    build_directory=build,
    is_python_module=False,
)
torch.manual_seed(0)
q, k, v = torch.randn(2, 33, 4, 40), torch.randn(2, 65, 2, 40), torch.randn(2, 65, 2, 40)
out = torch.ops.tilekiln_consumer.attention(q, k, v, False)
grouped = (tensor.repeat_interleave(2, dim=2) for tensor in (k, v))
expected = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, *grouped))).transpose(1, 2)
torch.testing.assert_close(out, expected)
# A transposed view is read by its strides.
torch.testing.assert_close(
    torch.ops.tilekiln_consumer.attention(q.transpose(1, 2).contiguous().transpose(1, 2), k, v, False), out
)
try:
    torch.ops.tilekiln_consumer.attention(q, k[..., :32], v, False)
except RuntimeError as error:
    print(str(error).splitlines()[0])
