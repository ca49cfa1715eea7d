"""The start, life and end of a run: its workdir, processes, preemption and time.

In: flags and a configuration. Out: a Run with a locked workdir, connected processes, a watchdog and the accounting of its time.

    flags.py            the flags that say where and with which processes a run starts
    launch.py           begin: the start of a run, from the parsed flags to the training loop
    environment.py      what every command does first: logging, quiet libraries, compiled programs on disk
    messages.py         JSON over TCP connections: calls, answers, and who is heard
    hosts.py            the processes of a run: from flags, or from the TPU slices of this host
    processes.py        all that processes say to each other: the roll call, signs of life, agreements, shared work
    interruptions.py    Preemption (SIGTERM) and Watchdog (hangs)
    workdir.py          the directory of a run: the names of its files, locked, and bound to one configuration
    restarts.py         starts a command again after an exit status that a restart may mend
    goodput.py          GoodputRecorder: the seconds of every category over all starts of a run, kept in ledger.jsonl
    profile.py          profiles of a few steps, for XProf
"""
