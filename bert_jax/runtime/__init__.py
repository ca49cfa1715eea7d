"""The start, life and end of a run: its workdir, processes, preemption and time.

In: flags and a configuration. Out: a Run with a locked workdir, connected processes, a watchdog and the accounting of its time.

    flags.py            the flags for the workdir and the processes of a run
    launch.py           start_run: from the parsed flags to the training loop
    environment.py      setup of every command: logging, quiet libraries, compilation cache
    messages.py         JSON messages over TCP connections
    hosts.py            the processes of a run: from flags, or from the TPU slices of this host
    processes.py        communication between processes: the roll call, heartbeats, agreements, shared work
    interruptions.py    Preemption (SIGTERM) and Watchdog (hangs)
    workdir.py          the directory of a run: the names of its files, locked, and bound to one configuration
    restarts.py         restarts a command after exit statuses for which that may help
    goodput.py          GoodputRecorder: the seconds of every category over all starts of a run, in ledger.jsonl
    profile.py          profiles of a few steps, for XProf
"""
