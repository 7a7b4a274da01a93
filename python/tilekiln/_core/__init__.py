# SPDX-License-Identifier: MIT
"""Foundation of all other modules: the binding, environment variables, shapes, dtypes, tensors of frameworks."""
