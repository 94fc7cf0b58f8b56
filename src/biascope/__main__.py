"""``python -m biascope``: the command line."""

from biascope.cli import main

if __name__ == "__main__":
    main("python -m biascope")
