"""`python -m rhobust` is the command."""

from rhobust.commands.app import main

if __name__ == "__main__":
    main()
