"""`python -m toolbake`: the same as `toolbake`."""

from sdk.cli import main

if __name__ == "__main__":
    main()
