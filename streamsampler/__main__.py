"""The command line: ``python -m streamsampler``."""

from streamsampler.cli import main

if __name__ == "__main__":
    main()
