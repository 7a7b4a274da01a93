import gc
import sys

gc.disable()  # a command ends before there is garbage worth a pass

from codegen.cli import main

sys.exit(main(sys.argv[1:]))
