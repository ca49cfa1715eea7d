"""A log sink that writes the numbers of a run as a table, WORKDIR/log.csv, for a spreadsheet.

    tpu_scripts/run.sh pretrain --config=experiments/pretrain/quickstart.py --workdir=runs/csv \
        --config.log.sinks=tensorboard,experiments/extensions/csv_log.py:Csv

The table has one row for each step and number. If a run is continued, the table is written again, with the numbers from all of
its starts."""

import csv


class Csv:
    """Rows of step, name, value."""

    def __init__(self, workdir, config):
        self._file = (workdir / "log.csv").open("w", newline="")
        self._rows = csv.writer(self._file)
        self._rows.writerow(["step", "name", "value"])

    def write(self, step, numbers):
        """Adds a row for each number."""
        self._rows.writerows([step, name, value] for name, value in numbers.items())
        self._file.flush()

    def close(self):
        """Closes the table."""
        self._file.close()
