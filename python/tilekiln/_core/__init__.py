"""What all other modules stand on: the binding, environment variables, shapes, dtypes, tensors of frameworks."""
