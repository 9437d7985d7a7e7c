"""``python -m forge_pipeline`` is the command line."""

from forge_pipeline.cli import main

if __name__ == "__main__":
    main()
