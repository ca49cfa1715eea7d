"""Studies. A study pretrains several arms with several seeds, fine-tunes each model on a set of tasks, and compares the scores
in one table.

In: a StudyExperiment (`configs/study.py`). Out: table.md, table.json and figure.png in the study's workdir.

    tasks.py         the tasks of the shipped studies
    phases.py        the phases of arms that predict every token, and ModernBERT's recipe
    arms.py          the experiments of every arm, each built and checked before anything is trained
    budget.py        the steps of an arm, for equal tokens or equal seconds
    parts.py         the parts of a study, their experiment files, and the records of finished parts
    calibration.py   plan.json, the steps of every arm; for equal seconds, they follow from a measured speed
    children.py      the process of a part
    running.py       runs the parts that are not done, shows the remaining time, and stops when it is asked to
    statistics.py    means, deviations, paired intervals, expected orders
    table.py         the records of the parts -> table.json
    report.py        table.md, the table on a terminal, and sentences that interpret the numbers
    figure.py        figure.png
"""
