# SPDX-License-Identifier: MIT
"""The generator: YAML to plan to rendered sources. `python -m codegen --help` says what people can ask it.

Programs use codegen.plan.plan.resolve, codegen.emit.render.generate and codegen.emit.inputs.prepare.
"""
