"""Studies: arms x seeds of pretraining, each fine-tuned on a set of tasks, compared in one table.

In: a StudyExperiment (`configs/study.py`). Out: table.md, table.json and figure.png in the study's workdir.

    tasks.py         the tasks of the shipped studies
    phases.py        the phases of arms that predict every token
    arms.py          the experiments of every arm, each built and checked before anything is trained
    budget.py        the steps of an arm: equal tokens or equal seconds
    parts.py         the parts of a study, their experiment files, and the records of those that are done
    calibration.py   plan.json: the steps of every arm, from a measured speed for equal seconds
    children.py      the process of a part
    progress.py      the time that is left
    running.py       runs the parts that are not done, and stops when asked to
    statistics.py    means, deviations, paired intervals, expected orders
    table.py         the records of the parts -> table.json
    words.py         sentences on what the numbers show, and what they do not
    report.py        table.md, and the table on a terminal
    figure.py        figure.png
"""
