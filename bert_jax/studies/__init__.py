"""Studies: arms x seeds of pretraining, each fine-tuned on a set of tasks, compared in one table.

In: a StudyExperiment (`configs/study.py`). Out: table.md, table.json and figure.png in the study's workdir.

    tasks.py         the tasks of the shipped studies
    phases.py        the phases of arms that predict every token, and ModernBERT's recipe
    arms.py          the experiments of every arm, each built and checked before anything is trained
    budget.py        the steps of an arm: equal tokens or equal seconds
    parts.py         the parts of a study, their experiment files, and the records of those that are done
    calibration.py   plan.json: the steps of every arm, from a measured speed for equal seconds
    children.py      the process of a part
    running.py       runs the parts that are not done, shows the time that is left, and stops when asked to
    statistics.py    means, deviations, paired intervals, expected orders
    table.py         the records of the parts -> table.json
    report.py        table.md, the table on a terminal, and sentences on what the numbers show and what they do not
    figure.py        figure.png
"""
