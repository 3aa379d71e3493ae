"""The table of mutations: a line of the code, its mutated form, and the tests that fail then.

Each part of the code has a table. `make mutations` runs them all.
"""

from dataclasses import dataclass

SHELL = "operator/trainingjob_operator/shell"
CORE = "operator/trainingjob_operator/core"
TRAINER = "trainer/trainingjob_trainer"
AGENT = "trainer/trainingjob_agent"
API = "crds/trainingjob_api"


@dataclass(frozen=True)
class Mutation:
    """One fault. `old` occurs in the file exactly once."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


SHELL_MUTATIONS = (
    Mutation(
        "announce before the status is written",
        f"{SHELL}/reconcile.py",
        "        try:\n            job = await self._write_if_changed(job, uid, fresh)\n",
        "        try:\n            self._hub.publish(_job_key(job), make_directive(plan, seen, decision, fresh))\n"
        "            job = await self._write_if_changed(job, uid, fresh)\n",
        ("tests/shell/test_each_write.py::test_each_single_write_is_struck_again_and_again",),
    ),
    Mutation(
        "use a generation again whose claim may have arrived",
        f"{SHELL}/hub.py",
        "        line.max_unconfirmed_generation = max(line.max_unconfirmed_generation, generation)\n",
        "        pass\n",
        ("tests/shell/test_hub.py",),
    ),
    Mutation(
        "a JobSet that is there already is an error",
        f"{SHELL}/children.py",
        "                with suppress(ConflictError):  # it is there; the next look sees it\n",
        "                if True:\n",
        ("tests/shell/test_each_write.py::test_jobset_that_is_missing_in_the_watch_is_read_once_per_reconciliation",),
    ),
    Mutation(
        "the rendezvous answers with what it was sent",
        f"{SHELL}/rendezvous.py",
        "{item['msg']}\" for item in error.errors()[:5]",
        "{item['msg']} {item['input']}\" for item in error.errors()[:5]",
        ("tests/shell/test_secrets.py",),
    ),
    Mutation(
        "a pause lets queued looks go on",
        f"{SHELL}/scheduler.py",
        "                entry.task.cancel()\n",
        "                pass\n",
        ("tests/shell/test_scheduler.py",),
    ),
    Mutation(
        "write without the Lease",
        f"{SHELL}/fenced_cluster.py",
        "        if not self._is_leading():\n",
        "        if False:\n",
        ("tests/shell/test_fenced_cluster.py",),
    ),
    Mutation(
        "announce what was written when the Lease was lost",
        f"{SHELL}/fenced_cluster.py",
        "        self._check()\n        return written\n",
        "        return written\n",
        ("tests/shell/test_fenced_cluster.py",),
    ),
    Mutation(
        "believe the reference to the TrainingJob unread",
        f"{SHELL}/authentication.py",
        "OWNER_CHAIN = (JOB, JOB_SET, TRAINING_JOB)\n",
        "OWNER_CHAIN = (JOB, JOB_SET)\n",
        ("tests/shell/test_authentication.py",),
    ),
    Mutation(
        "compare owners by kind alone",
        f"{SHELL}/authentication.py",
        '    return api_version.rpartition("/")[0]\n',
        '    return ""\n',
        ("tests/shell/test_authentication.py",),
    ),
    Mutation(
        "take an owner of that name for the owner",
        f"{SHELL}/authentication.py",
        '        return known if known is not None and get_text(known, "metadata", "uid") == uid else None\n',
        "        return known\n",
        ("tests/shell/test_authentication.py",),
    ),
    Mutation(
        "one hub for a UID in all namespaces",
        f"{SHELL}/interfaces.py",
        "        return self.namespace, self.job_uid\n",
        '        return "", self.job_uid\n',
        ("tests/shell/test_hub.py",),
    ),
    Mutation(
        "let a pod speak for another",
        f"{SHELL}/rendezvous.py",
        "        if (report.job_uid, report.pod_uid) != (caller.job_uid, caller.pod_uid):\n",
        "        if report.job_uid != caller.job_uid:\n",
        ("tests/shell/test_rendezvous.py",),
    ),
    Mutation(
        "keep tokens instead of their hashes",
        f"{SHELL}/authentication.py",
        "        digest = hashlib.sha256(token.encode()).hexdigest()\n",
        "        digest = token\n",
        ("tests/shell/test_authentication.py",),
    ),
    Mutation(
        "take children by their labels alone",
        f"{SHELL}/reconcile.py",
        "        return filter_owned(await self._cluster.read_children(namespace, uid), name, uid)\n",
        "        return await self._cluster.read_children(namespace, uid)\n",
        ("tests/shell/test_foreign_objects.py",),
    ),
    Mutation(
        "an orphan stands for its host",
        f"{CORE}/observe/pods.py",
        " or uid in children.orphans,\n",
        ",\n",
        ("tests/core/observe/test_ownership.py",),
    ),
    Mutation(
        "believe every generation that a host reports",
        f"{CORE}/decide/world_formation.py",
        " if one <= newest + MAX_GENERATION_LEAD",
        "",
        ("tests/core/decide/test_decision_rules.py", "tests/shell/test_hostile_reports.py"),
    ),
    Mutation(
        "an immutable field that may be removed",
        f"{API}/cel.py",
        "                if field.may_be_absent:  # a transition rule needs a value before and after\n",
        "                if False:\n",
        ("tests/api/test_schema.py",),
    ),
    Mutation(
        "a live field in an immutable section that may not change",
        f"{API}/cel.py",
        "            if not field.has_live_parts:\n",
        "            if True:\n",
        ("tests/api/test_meta.py", "tests/api/test_schema.py"),
    ),
    Mutation(
        "measures that are not finite",
        f"{API}/protocol.py",
        "Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]\n",
        "Seconds = float\n",
        ("tests/api/test_protocol_bounds.py",),
    ),
    Mutation(
        "no retry after a conflict",
        f"{SHELL}/reconcile.py",
        "                with suppress(ConflictError):  # somebody else wrote: look again at what is there now\n",
        "                if True:\n",
        ("tests/shell/test_reconcile_edges.py",),
    ),
)
SERVICE_ACCOUNT_MUTATIONS = (
    Mutation(
        "allow any ServiceAccount without the webhook",
        f"{SHELL}/service_account_check.py",
        '        if not self._is_enabled:\n            return "the operator runs without its webhook"\n',
        '        if not self._is_enabled:\n            return ""\n',
        ("tests/shell/test_service_account_check.py",),
    ),
    Mutation(
        "allow a ServiceAccount of a job that is older than the webhook",
        f"{SHELL}/service_account_check.py",
        " or created < since + WEBHOOK_ROLLOUT",
        "",
        ("tests/shell/test_service_account_check.py",),
    ),
    Mutation(
        "look at no ServiceAccount",
        f"{SHELL}/reconcile.py",
        "        if problem := await self._check_account(job):\n",
        "        if (problem := await self._check_account(job)) and False:\n",
        ("tests/shell/test_service_account_check.py",),
    ),
)
AGENT_MUTATIONS = (
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
        f"{SHELL}/authentication.py",
        '        error = get_text(status, "error").replace(token, "TOKEN")\n',
        '        error = get_text(status, "error")\n',
        ("tests/shell/test_secrets.py",),
    ),
    Mutation(
        "remember damaged steps without end",
        f"{AGENT}/host.py",
        "[-MAX_DAMAGED:]",
        "",
        ("tests/trainer/agent/test_host_report.py",),
    ),
)
TRAINER_MUTATIONS = (
    Mutation(
        "load a program that another job wrote",
        f"{TRAINER}/runtime/compile_cache_files.py",
        "    if not hmac.compare_digest(code, _sign(name, content, secret)):\n",
        "    if False:\n",
        ("tests/trainer/runtime/test_compile_cache_files.py",),
    ),
    Mutation(
        "load a program under another's name",
        f"{TRAINER}/runtime/compile_cache_files.py",
        'CONTENT_CONTEXT + name.encode() + b"\\0"',
        "CONTENT_CONTEXT",
        ("tests/trainer/runtime/test_compile_cache_files.py",),
    ),
    Mutation(
        "leave the modules in folders out of the key",
        f"{TRAINER}/runtime/compile_cache_key.py",
        '        folders[:] = [name for name in folders if name != "__pycache__"]\n',
        "        folders[:] = []\n",
        ("tests/trainer/runtime/test_compile_cache_key.py",),
    ),
    Mutation(
        "leave the optimizer out of the key",
        f"{TRAINER}/runtime/compile_cache_key.py",
        '    described: dict[str, Any] = spec.model_dump(mode="json", by_alias=True)\n',
        '    described: dict[str, Any] = spec.model_dump(mode="json", by_alias=True, exclude={"optimizer"})\n',
        ("tests/trainer/runtime/test_compile_cache_key.py",),
    ),
    Mutation(
        "cut documents as a tokenizer file says",
        f"{TRAINER}/data/tokenizers.py",
        "    parsed.no_truncation()\n",
        "",
        ("tests/trainer/data/test_tokenizers.py",),
    ),
    Mutation(
        "fill documents up as a tokenizer file says",
        f"{TRAINER}/data/tokenizers.py",
        "    parsed.no_padding()\n",
        "",
        ("tests/trainer/data/test_tokenizers.py",),
    ),
    Mutation(
        "make an index of a file that changes meanwhile",
        f"{TRAINER}/data/token_cache.py",
        "            hashed.check(source_file, hasher.hexdigest())\n",
        "",
        ("tests/trainer/data/test_texts.py",),
    ),
    Mutation(
        "move the data position with the batch size",
        f"{TRAINER}/data/sampler.py",
        "(*before, (step + 1, global_batch_size))",
        "((1, global_batch_size),)",
        ("tests/trainer/data/test_sampler.py",),
    ),
)
CHECKPOINT_MUTATIONS = (
    Mutation(
        "a world takes the marker of another one of its generation",
        f"{TRAINER}/checkpoint/fence.py",
        "            self._store.create_exclusive(self._marker, self._identity)\n",
        "            self._store.write(self._marker, (self._identity,))\n",
        ("tests/trainer/checkpoint/test_reused_generation.py", "tests/trainer/checkpoint/test_fence.py"),
    ),
    Mutation(
        "keep a late step of a fenced-off world in place of another",
        f"{TRAINER}/checkpoint/fence.py",
        "return generation < self.generation and self.resumed_step is not None and step > self.resumed_step\n",
        "return False\n",
        ("tests/trainer/checkpoint/test_fence.py",),
    ),
    Mutation(
        "a step of the world's own generation is no evidence",
        f"{TRAINER}/checkpoint/candidates.py",
        "if newest >= self._world.generation:",
        "if newest > self._world.generation:",
        ("tests/trainer/checkpoint/test_reused_generation.py",),
    ),
    Mutation(
        "restore a checkpoint that lacks a required item",
        f"{TRAINER}/checkpoint/items.py",
        "return equal if saved.layout == STATE_LAYOUT and required <= equal else None",
        "return equal if saved.layout == STATE_LAYOUT else None",
        ("tests/trainer/checkpoint/test_items.py",),
    ),
    Mutation(
        "keep what a fenced-off world has committed",
        f"{TRAINER}/checkpoint/commit.py",
        "            folder.store.delete(folder.file(MANIFEST_FILE))\n",
        "            pass\n",
        ("tests/trainer/checkpoint/test_fence.py",),
    ),
    Mutation(
        "delete a manifest after its files",
        f"{TRAINER}/checkpoint/step_changes.py",
        "    folder.store.delete(folder.file(MANIFEST_FILE))\n",
        "",
        ("tests/trainer/checkpoint/test_retention.py",),
    ),
    Mutation(
        "keep the last step of a stage by the rule of the next one",
        f"{API}/spec/checkpoint.py",
        "one.until is None or step <= one.until), None)",
        "one.until is None or step < one.until), None)",
        ("tests/api/test_retention_stages.py",),
    ),
    Mutation(
        "delete what a later world writes",
        f"{TRAINER}/checkpoint/saved_steps.py",
        " or writer.generation < fence.generation + own\n",
        " or True\n",
        ("tests/trainer/checkpoint/test_restore_search.py",),
    ),
    Mutation(
        "write every save into one folder",
        f"{TRAINER}/checkpoint/commit.py",
        "        self._num_saves += 1  # the same on all processes: they save together\n",
        "        self._num_saves = 1\n",
        ("tests/trainer/checkpoint/test_commit.py",),
    ),
)
START_MUTATIONS = (
    Mutation(
        "wait for a stopped process without end",
        f"{CORE}/diagnose/hangs.py",
        "    return [item for item in member_statuses if _remaining_stopped_seconds(plan, seen, item) <= 0]\n",
        "    return [item for item in member_statuses if _remaining_stopped_seconds(plan, seen, item) < -1e9]\n",
        ("tests/core/diagnose/test_start_budgets.py",),
    ),
    Mutation(
        "name one of several that are behind",
        f"{CORE}/diagnose/hang_localization.py",
        " and stages.count(min(stages)) == 1:\n",
        ":\n",
        ("tests/core/diagnose/test_hang_localization.py",),
    ),
    Mutation(
        "form worlds that wait for new pods to import",
        f"{CORE}/decide/world_formation.py",
        "    return prepared if plan.find_largest_size(len(prepared)) else ready\n",
        "    return ready\n",
        ("tests/core/decide/test_world_formation.py",),
    ),
)
MUTATIONS = (
    *SHELL_MUTATIONS,
    *SERVICE_ACCOUNT_MUTATIONS,
    *AGENT_MUTATIONS,
    *TRAINER_MUTATIONS,
    *CHECKPOINT_MUTATIONS,
    *START_MUTATIONS,
)
