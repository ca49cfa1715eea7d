"""Starts, saves, exports and ends a run.

In: flags and a configuration. Out: a Run with a locked workdir, connected processes and a watchdog; exported models.

    flags.py                   the command line of `pretrain` and `finetune`
    launch.py                  begin: the start of a run, from the parsed flags to the training loop
    log_setup.py               logging to stderr: our own lines, and errors of libraries
    compilation_cache.py       compiled XLA programs on disk between starts
    code_version.py            the commit of this package, and a digest of its files
    messages.py                short texts over a TCP connection
    slices.py                  the TPU slice of this process, and the other slices of its run
    processes.py               the processes of a run: their addresses, and the check that all are there and run the same code
    gathering.py               a JSON value of every process, in all of them
    independent_processes.py   divides the runs of a sweep among processes, without collectives
    workdir.py                 the directory of a run: locked, and bound to one configuration
    restarts.py                starts a verb again after an exit status that a restart may mend
    interruptions.py           Preemption (SIGTERM) and Watchdog (hangs)
    heartbeats.py              finds out which process has ended or is silent, and ends the others
    memory_advice.py           the settings that lower a step's memory, for the message when a step does not fit
    step_sums.py               the sums of the steps since the last log line; ends a run that diverges
    saving.py                  saves checkpoints, and records failed saves in metrics.jsonl
    exporting.py               writes the trained model to the workdir, or to another disk where that one is full
"""
