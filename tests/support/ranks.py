"""Start a job of N processes, like a cluster: `ranks.py N PORT SCRIPT ARGUMENTS …`.

Each process is a fork of this one, which may itself be a fork of `forking.py`, so that none of them
has to import fairseq.
"""

import os
import runpy
import signal
import sys

LONGEST = 300  # seconds until a process that hangs is ended


def main() -> int:
    """Start the processes and wait; if one exits with a status other than 0, kill the others."""
    size, port, *words = sys.argv[1:]
    children = set()
    for rank in range(int(size)):
        child = os.fork()
        if child == 0:
            signal.alarm(LONGEST)
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size}
            os.environ.update(place, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
            return 0
        children.add(child)
    while children:
        child, status = os.wait()
        children.remove(child)
        if status:
            for other in children:
                os.kill(other, signal.SIGKILL)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
