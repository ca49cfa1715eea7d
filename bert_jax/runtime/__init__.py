"""How a run starts, lives and ends.

In: flags and a configuration. Out: a Run with a locked workdir, connected processes, a watchdog and a ledger of its time.

    flags.py                   the flags that say where and with which processes a run starts
    launch.py                  begin: the start of a run, from the parsed flags to the training loop
    log_setup.py               logging to stderr: our own lines, and errors of libraries
    compilation_cache.py       compiled XLA programs on disk between starts
    code_version.py            the commit of this package, and a digest of its files
    messages.py                short texts over a TCP connection
    slices.py                  the TPU slice of this process, and the other slices of its run
    processes.py               the processes of a run: their addresses, and the check that all are there and run the same code
    gathering.py               a JSON value of every process, in all of them
    independent_processes.py   divides the runs of a sweep among processes, without collectives
    workdir.py                 the directory of a run: the names of its files, locked, and bound to one configuration
    restarts.py                starts a verb again after an exit status that a restart may mend
    interruptions.py           Preemption (SIGTERM) and Watchdog (hangs)
    heartbeats.py              finds out which process has ended or is silent, and ends the others
    goodput.py                 Ledger: the seconds of every activity over all starts of a run, kept in ledger.jsonl
    profile.py                 profiles of a few steps, for XProf
"""
