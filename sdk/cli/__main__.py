"""`python -m sdk.cli`: the same as `toolbake`."""

from . import main

if __name__ == "__main__":
    main()
