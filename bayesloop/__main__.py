"""`python -m bayesloop` is the command `bayesloop`."""

from bayesloop.cli import main

if __name__ == "__main__":
    main()
