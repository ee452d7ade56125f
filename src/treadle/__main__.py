"""`python -m treadle` is the command `treadle`."""

import os
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]  # `treadle.cli.process` says when the current folder is searched
    from treadle.cli.main import main

    main()
