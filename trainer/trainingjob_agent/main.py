"""The entry point `trainingjob-agent`: process 1 of every pod.

The exit code is 0 when the job is over, 143 when the pod is deleted, and 78 when the pod's environment is invalid.
"""

import asyncio
import logging
import os
import sys

from trainingjob_agent.host_environment import (
    BrokenEnvironmentError,
    Environment,
    find_termination_log,
    read_environment,
)
from trainingjob_agent.orphans import become_subreaper
from trainingjob_agent.supervisor import Supervisor, write_termination_message

LOG = logging.getLogger(__name__)


def main() -> int:
    """Run the agent of this pod; return its exit code."""
    logging.basicConfig(level=logging.INFO, format="[agent] %(message)s")
    try:
        environment = read_environment(os.environ)
    except BrokenEnvironmentError as error:
        LOG.error("%s", error)
        write_termination_message(find_termination_log(os.environ), str(error))
        return os.EX_CONFIG
    become_subreaper()
    return asyncio.run(_run(environment))


async def _run(environment: Environment) -> int:
    return await Supervisor(environment).run()


if __name__ == "__main__":
    sys.exit(main())
