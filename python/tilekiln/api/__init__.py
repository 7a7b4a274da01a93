"""What `import tilekiln as tk` offers: libraries, operators over all of them, packed weights, KV caches, JIT."""
