"""`python -m rhobust` is the command."""

from rhobust.cli import main

if __name__ == "__main__":
    main()
