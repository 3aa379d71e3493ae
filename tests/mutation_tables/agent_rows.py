"""Mutations of the agent."""

from tests.mutation_tables.mutation import AGENT, CORE, SHELL, TRAINER, Mutation

AGENT_MUTATIONS = (
    Mutation(
        "defaults hide the flags of a job's file from XLA",
        f"{AGENT}/world_environment.py",
        'joined, found = " ".join(defaults), _read_flags(job_flags)\n',
        'joined, found = " ".join(defaults), job_flags\n',
        ("tests/trainer/agent/test_world_environment.py::test_flags_of_a_file_stay_beside_the_defaults",),
    ),
    Mutation(
        "report secrets",
        f"{AGENT}/supervisor.py",
        "        return self._redactor.redact_report(report)\n",
        "        return report\n",
        ("tests/trainer/agent/test_supervisor.py::test_a_secret_that_a_trainer_logs_as_it_dies_is_not_reported",),
    ),
    Mutation(
        "normalize queries alone",
        f"{TRAINER}/models/attention.py",
        "self._normalize(self.query_norm, q_BLHK), self._normalize(self.key_norm, k_BLGK)",
        "self._normalize(self.query_norm, q_BLHK), k_BLGK",
        ("tests/trainer/models/test_query_key_norm.py::test_steps_in_float32_are_those_of_the_reference",),
    ),
    Mutation(
        "count repeated pairs of blocks",
        f"{TRAINER}/kernels/score_blocks.py",
        "    is_visible_BLM &= counts > 0\n",
        "",
        ("tests/trainer/models/test_attention_layouts.py",),
    ),
    Mutation(
        "wait at the end for an unreachable tracker",
        f"{TRAINER}/trackers/tracker.py",
        "        if not self._is_unreachable:\n",
        "        if True:\n",
        ("tests/trainer/trackers/test_tracker.py",),
    ),
    Mutation(
        "know no value of a Secret",
        f"{AGENT}/redaction.py",
        "pod_variables(spec) if variable.secret_key_ref)",
        "pod_variables(spec) if variable.config_map_key_ref)",
        ("tests/trainer/agent/test_redaction.py",),
    ),
    Mutation(
        "carry on what the API server quotes of a token",
        f"{SHELL}/reviews.py",
        '    return {**status, "error": get_text(status, "error").replace(token, "TOKEN")}\n',
        "    return status\n",
        ("tests/shell/test_secrets.py",),
    ),
    Mutation(
        "remember damaged steps without end",
        f"{AGENT}/host.py",
        "[-MAX_DAMAGED:]",
        "",
        ("tests/trainer/agent/test_host_report.py",),
    ),
    Mutation(
        "let a file in the working directory replace a module of the trainer",
        f"{AGENT}/supervisor.py",
        'TRAINER = (sys.executable, "-P", "-m",',
        'TRAINER = (sys.executable, "-m",',
        ("tests/trainer/agent/test_working_directory.py",),
    ),
    Mutation(
        "hosts that start later repeat a trace",
        f"{CORE}/observe/observed.py",
        "        and seconds_between(request.requested, now) <= INSPECTION_LIFETIME_SECONDS\n",
        "",
        ("tests/core/report/test_inspections.py",),
    ),
    Mutation(
        "two requests for the stacks of a child read the same dump",
        f"{AGENT}/trainer_process.py",
        "        async with self._diagnosing:\n",
        "        if True:\n",
        ("tests/trainer/agent/test_trainer_process.py",),
    ),
    Mutation(
        "the agent of a container that was stopped enters its former world again",
        f"{AGENT}/supervisor.py",
        "        if code == FINISHED_EXIT_CODE:  # a stopped container may start again in the same pod\n",
        "        if True:\n",
        ("tests/trainer/agent/test_supervisor_stops.py",),
    ),
    Mutation(
        "an agent stays with an operator that has lost the API server",
        f"{AGENT}/rendezvous.py",
        "            await self._reconnect_if_due()\n",
        "",
        ("tests/trainer/agent/test_rendezvous.py",),
    ),
)
