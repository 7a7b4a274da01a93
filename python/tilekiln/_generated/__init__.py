"""Tables and types of every operator, made by `python -m codegen operators --write`."""
