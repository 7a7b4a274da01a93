# SPDX-License-Identifier: MIT
import gc
import sys

gc.disable()  # a command ends before there is garbage worth a pass

try:
    from codegen.schema.uninterrupted import uninterrupted

    with uninterrupted():
        from codegen.cli import main

    sys.exit(main(sys.argv[1:]))
except KeyboardInterrupt:  # Ctrl-C; what is written is written whole or not at all
    sys.exit(130)
