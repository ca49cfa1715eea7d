"""Starts, supervises and ends a run. This includes its workdir, its processes, preemption and time accounting.

In: flags and a configuration. Out: a Run with a locked workdir, connected processes, a watchdog and time accounting.

    flags.py            the flags for the workdir and the processes of a run
    launch.py           start_run: from the parsed flags to the training loop
    environment.py      setup of every command: logging, quiet libraries, compilation cache
    messages.py         JSON messages over TCP connections
    hosts.py            finds the processes of a run, from flags or from TPU slices
    processes.py        communication between processes: the roll call, heartbeats, agreements, shared work
    interruptions.py    Preemption (SIGTERM) and Watchdog (hangs)
    workdir.py          the directory of a run: the names of its files, its lock and its configuration
    restarts.py         restarts a command if its exit status is one that a restart may fix
    goodput.py          GoodputRecorder: the seconds of every category over all starts of a run, in ledger.jsonl
    profile.py          profiles of a few steps, for XProf
"""
