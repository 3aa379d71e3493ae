"""A trainer does not outlive its agent, whatever state it is in."""

import subprocess
import sys

PROGRAM = """
import os, signal, subprocess, sys, threading
from trainingjob_agent.orphans import become_subreaper
become_subreaper()
TRAINER = '''
import os, signal
from trainingjob_agent.orphans import die_with_parent
die_with_parent()
print(os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
'''
AGENT = f'''
import subprocess, sys, time
trainer = subprocess.Popen([sys.executable, "-c", {TRAINER!r}])
time.sleep(60)
'''
agent = subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE, text=True)
trainer = int(agent.stdout.readline())
while open(f"/proc/{trainer}/stat").read().rpartition(") ")[2].split()[0] != "T":
    pass
agent.kill()
agent.wait()
watch = threading.Timer(30, lambda: os.kill(trainer, signal.SIGCONT))  # where it lives it goes on, and ends by itself
watch.start()
print(os.waitstatus_to_exitcode(os.waitpid(trainer, 0)[1]))
watch.cancel()
"""


def test_stalled_trainer_ends_with_its_agent() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout == "-9\n"
