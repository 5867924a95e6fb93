"""`python -m mixview` is the program `mixview`."""

from mixview.cli import main

main()
