"""`python -m treadle` is the command `treadle`."""

from treadle.cli.main import main

if __name__ == "__main__":
    main()
