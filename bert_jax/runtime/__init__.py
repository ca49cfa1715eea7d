"""How a run starts, saves, exports and ends.

In: flags and a configuration. Out: a Run with a locked workdir, connected processes and a watchdog; exported models.

    flags.py                   the command line of `pretrain` and `finetune`
    launch.py                  begin: everything between the command line and the loop
    log_setup.py               our log lines to stderr, those of libraries only when they are errors
    compilation_cache.py       compiled XLA programs on disk between starts
    processes.py               the processes of a run: their addresses, the roll call, whether they agree
    independent_processes.py   processes that share the runs of a sweep, without collectives
    workdir.py                 the directory of a run: locked, and bound to one configuration
    interruptions.py           Preemption (SIGTERM) and Watchdog (hangs)
    memory_advice.py           the settings that make a step smaller, for the message when it does not fit
    step_sums.py               the sums of the steps since the last log line; ends a run that diverges
    saving.py                  when the state is saved, and the record of saves that fail
    exporting.py               the trained model to the workdir, or to another disk where that one is full
"""
