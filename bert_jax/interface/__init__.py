"""The command-line interface: flags, ranges of values, progress lines and figures.

In: a command line, counts, errors. Out: parsed flags, checked values, lines of text, an exit status. Imports no other folder.

    words.py          counts, sizes and durations as text: "3 epochs", "2h07m"
    axes.py           AXES: the letters and words of array shapes in signatures
    ranges.py         ranges of settings and flags, declared in type annotations; whole_number and decimal_number
    flags.py          FlagParser: argparse that raises UserError; flags made of an options dataclass
    progress.py       Progress: one line with an estimate of the time left
    output.py         checks the path of an output file or directory, and explains errors of writing it
    drawing.py        draws figures: panels, heat maps, names; PNG, PDF, SVG, with all text drawn literally
    python_files.py   loads a user's files, and the files that they import; an exception becomes a UserError that shows the lines
    named.py          load_named: loads what a key names, a built-in object or FILE.py:NAME in the user's file
    command.py        run_command: imports a command and runs its `main`; turns errors into one sentence and an exit status
"""
