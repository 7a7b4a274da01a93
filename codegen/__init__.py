"""The generator: YAML to plan to rendered sources. `python -m codegen --help` says what people can ask it.

Programs use codegen.plan.resolve, codegen.render.generate and codegen.inputs.prepare.
"""
