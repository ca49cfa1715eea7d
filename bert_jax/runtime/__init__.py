"""Starts, saves, exports and ends a run.

In: flags and a configuration. Out: a Run with a locked workdir, connected processes and a watchdog; exported models.

    flags.py                   the command line of `pretrain` and `finetune`
    launch.py                  begin: the start of a run, from the parsed flags to the training loop
    log_setup.py               logging to stderr: our own lines, and errors of libraries
    compilation_cache.py       compiled XLA programs on disk between starts
    code_version.py            the commit of this package, and a digest of its files
    messages.py                JSON over TCP connections: calls, answers, and who is heard
    hosts.py                   the processes of a run: from flags, or from the TPU slices of this host
    processes.py               all that processes say to each other: the roll call, signs of life, agreements, shared work
    interruptions.py           Preemption (SIGTERM) and Watchdog (hangs)
    workdir.py                 the directory of a run: locked, and bound to one configuration
    restarts.py                starts a verb again after an exit status that a restart may mend
    memory_advice.py           the settings that lower a step's memory, for the message when a step does not fit
    step_sums.py               the sums of the steps since the last log line; ends a run that diverges
    saving.py                  saves checkpoints, and records failed saves in metrics.jsonl
    exporting.py               writes the trained model to the workdir, or to another disk where that one is full
"""
