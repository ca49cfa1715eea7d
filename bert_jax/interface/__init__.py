"""The commands' interface: what a person may type, and what is printed.

In: a command line, counts, errors. Out: parsed flags, checked values, lines of text, an exit status. Below all other folders.

    words.py          counts, sizes and durations in words: "3 epochs", "2h07m"
    ranges.py         the range of every setting and flag, declared beside its type and checked here
    flags.py          FlagParser: argparse whose mistakes are UserErrors
    progress.py       Progress: one line with an estimate of the time left
    python_files.py   experiment files and task modules: loaded, their faults shown with their own lines alone
    command.py        run_verb: runs a command's `main`; errors become one sentence and an exit status
"""
