"""Reports of damaged steps to the operator: each process reports all damage, because any report may be read first."""

import json

from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.protocol import Damage
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.process_group import ProcessGroup

ANSWER_SECONDS = 1800
"""Seconds for which a process waits for process 0, which reads and cleans the stores meanwhile."""


class DamageReports:
    """The damage that the processes of a world have found and reported."""

    def __init__(self, peers: ProcessGroup, events: AgentEvents) -> None:
        self._peers = peers
        self._events = events
        self._num_shared = 0
        self.found: list[Damage] = []

    def report(self, step: int, message: str) -> None:
        """Report a damaged step from this process."""
        damage = Damage(step=step, message=message)
        self.found.append(damage)
        self._events.send(AgentEvent(damaged=damage))

    def report_together(self, step: int, message: str) -> None:
        """Report a damaged step of which all processes know."""
        self.report(step, message)
        self._num_shared = len(self.found)

    def broadcast(self, name: str, text: str = "") -> str:
        """Return a text of process 0, and report on all processes the damage that only process 0 has reported.

        Raises:
            JaxRuntimeError: another process is gone.
        """
        new = [(report.step, report.message) for report in self.found[self._num_shared :]]
        answer, damaged = json.loads(self._peers.exchange(name, json.dumps([text, new]), ANSWER_SECONDS)[0])
        if self._peers.process != 0:
            for step, message in damaged:
                self.report(step, message)
        self._num_shared = len(self.found)
        return str(answer)
